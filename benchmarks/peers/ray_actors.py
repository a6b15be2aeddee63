"""Ray's side of the actors bench: a local head without dashboard."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"  # or it leaves a token in the home directory

import ray
from calls import AsyncSubject, Side, Subject


class Handle:
    """An actor."""

    def __init__(self, kind: type, concurrency: int) -> None:
        self._actor = ray.remote(kind).options(max_concurrency=concurrency, num_cpus=0).remote()

    def call(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self._actor, method).remote(*args))

    def start(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method).remote(*args)

    def gather(self, started: Iterable[Any]) -> list[Any]:
        return ray.get(list(started))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # Ray prints to stdout
    os.dup2(2, 1)
    directory = tempfile.mkdtemp(prefix="ray-")
    here = {"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}}
    ray.init(include_dashboard=False, _temp_dir=directory, log_to_driver=False, runtime_env=here, logging_level="ERROR")
    try:
        side = Side(Handle(Subject, 1), Handle(Subject, 100), Handle(AsyncSubject, 100), "--quick" in sys.argv)
        print(json.dumps({"version": ray.__version__}), file=answers, flush=True)
        side.serve(answers)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


main()
