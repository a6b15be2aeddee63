"""Draws machines, waiting jobs and running jobs over time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

INK, QUIET = "#1f2933", "#7b8794"
STATES = {"creating": "#c9dbe9", "up": "#3e7cb1", "draining": "#e0a458", "deleting": "#b0413e"}


@dataclass(frozen=True)
class Sample:
    """What existed at one moment. machines: by state; at: seconds since the start."""

    at: float
    machines: Mapping[str, int]
    waiting: int
    running: int


def draw(samples: Sequence[Sample]) -> bytes:
    """A PNG with jobs at the top and machines by their states at the bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    at = [sample.at for sample in samples]
    above.step(at, [sample.waiting for sample in samples], where="post", color=QUIET, label="waiting jobs")
    above.step(at, [sample.running for sample in samples], where="post", color=STATES["up"], label="running jobs")
    counts = [[sample.machines.get(state, 0) for sample in samples] for state in STATES]
    labels = [f"machines {state}" for state in STATES]
    below.stackplot(at, counts, labels=labels, colors=list(STATES.values()), step="post")
    below.set_xlabel("seconds", color=QUIET)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=QUIET)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=INK)
        axes.margins(x=0)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130)
    return png.getvalue()
