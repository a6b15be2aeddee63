"""Draws the ranking."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from ranking import Ranking

SHOWN = 18
INK, QUIET, BAR = "#1f2933", "#7b8794", "#3e7cb1"


def draw(ranking: Ranking) -> bytes:
    """A PNG with the largest packages, their docstring coverage, and the modules that the library imports most."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(13, 7.2), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    colours = ScalarMappable(Normalize(0, 1), "viridis")
    packages = ranking.packages[:SHOWN]
    shades = list(colours.to_rgba(np.array([package.coverage for package in packages])))
    _bars(left, {package.name: package.tokens / 1000 for package in packages}, shades, "{:,.0f}k")
    left.set_title("Largest packages: tokens", **_TITLE)
    bar = figure.colorbar(colours, ax=left, location="bottom", shrink=0.6, aspect=40, pad=0.03)
    bar.ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    bar.set_label("definitions with a docstring", color=QUIET)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET, length=0)
    _bars(right, dict(ranking.imported_by.most_common(SHOWN)), [BAR] * SHOWN, "{:,.0f}")
    right.set_title("Most imported: by how many modules", **_TITLE)
    library = ranking.modules - ranking.test_modules
    figure.suptitle(
        f"The Python standard library: {library:,} modules, test suites left out", x=0.01, ha="left", color=QUIET
    )
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130)
    return png.getvalue()


_TITLE = {"loc": "left", "color": INK, "fontweight": "bold", "fontsize": 13}


def _bars(axes: Axes, values: dict[str, float], colours: Sequence[object], form: str) -> None:
    bars = axes.barh(list(values), list(values.values()), color=colours, height=0.72)
    axes.bar_label(bars, [form.format(value) for value in values.values()], padding=4, color=QUIET, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.01)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.get_xaxis().set_visible(False)
