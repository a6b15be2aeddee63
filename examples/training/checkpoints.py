"""Checkpoints under a URL: one object for every so many steps; the highest counts."""

from __future__ import annotations

import io
import re
from typing import Any

import fsspec
import numpy as np
from model import Model

_NAME = re.compile(r"step-(\d{8})\.npz$")


def save(model: Model, url: str, starts: list[int]) -> None:
    """Write the model. starts: the step at which each attempt so far began."""
    parts = {"weights": model.weights, "mean": model.mean, "square": model.square}
    arrays: dict[str, Any] = {
        f"{part}.{name}": values for part, named in parts.items() for name, values in named.items()
    }
    data = io.BytesIO()
    np.savez(data, step=model.step, starts=starts, **arrays)
    place = f"{url}/step-{model.step:08d}.npz"
    files, path = fsspec.core.url_to_fs(place, auto_mkdir=True)
    files.pipe_file(path + ".part", data.getvalue())
    files.mv(path + ".part", path)


def newest(url: str) -> tuple[Model, list[int]] | None:
    """The last written model, and where the attempts began; None if there is no checkpoint."""
    files, path = fsspec.core.url_to_fs(url)
    names = sorted(name for name in files.glob(f"{path}/step-*.npz") if _NAME.search(name))
    if not names:
        return None
    found = np.load(io.BytesIO(files.cat_file(names[-1])))
    parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "mean": {}, "square": {}}
    for key in found.files:
        part, _, name = key.partition(".")
        if name:
            parts[part][name] = found[key]
    return Model(**parts, step=int(found["step"])), [int(start) for start in found["starts"]]
