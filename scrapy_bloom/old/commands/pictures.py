"""Draws: curves of a filter and the course of a crawl, as SVG. Does not know where the figures come from.

Needs matplotlib (the extra ``plot``). A picture of the same figures is the same file, byte for byte. Lines differ in
style and are labelled where they end, so that they can be told apart in black and white.
"""

from __future__ import annotations

import io
import math
import re
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.terminal import size
from scrapy_bloom.old.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from scrapy_bloom.old.commands.curves import Curves
    from scrapy_bloom.old.files.figures import Figures

INK = "#000000"
"""Text, axes and the main line. A page may replace it by its own colour of text."""

_OTHER, _THIRD, _QUIET = "#c2521a", "#2b74c9", "#808080"
"""Readable on white and on black, and of different darkness."""

_MOST_LAYERS = 10
"""The newest, if there are more: their capacities double, so the others hardly count."""

_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}

_TIME_UNITS = (("days", 1 / 24, 72), ("hours", 1.0, 2), ("minutes", 60.0, 0.05), ("seconds", 3600.0, 0))
"""For the axis of a crawl's time: the unit, how many make an hour, and from how many hours on it is used."""

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": _QUIET,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def save_filter_picture(curves: Curves, path: Path) -> None:
    """Draw the pictures of a filter into the file at *path*, in the format of its ending.

    Raises:
        MissingPackageError: matplotlib is not installed.
        ValueError: It does not know the format.
        OSError: The file cannot be written.

    """
    with _figure(path.name.rpartition(".")[0] or "picture", 9.6, 7.2) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=[3, 2])
        draw_rate(figure.add_subplot(grid[0, 0]), curves)
        draw_memory(figure.add_subplot(grid[0, 1]), curves)
        draw_fill(figure.add_subplot(grid[1, :]), curves)
        figure.savefig(path, **_without_date(path.suffix))


def svg(name: str, draw: Callable[[Axes], None], *, width: float = 4.9, height: float = 3.4) -> str:
    """Return one drawing as an ``<svg>`` element for a page; *name* keeps its ids apart from those of others.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    written = io.StringIO()
    with _figure(name, width, height) as figure:
        draw(figure.add_subplot())
        figure.savefig(written, format="svg", transparent=True, metadata=_NO_METADATA)
    text = written.getvalue()
    return re.sub(r"""(\bid="|url\(#|href="#)""", rf"\1{name}-", text[text.index("<svg") :])


def draw_rate(axes: Axes, curves: Curves) -> None:
    """Draw the chance that a new URL is taken for seen."""
    axes.set_title("A new URL is taken for seen")
    axes.loglog(curves.urls, curves.chain_rate, color=INK)
    axes.loglog(curves.urls, curves.fixed_rate, color=_OTHER, linestyle="--")
    axes.axhline(curves.error_rate, color=_QUIET, linewidth=1.2, linestyle=":")
    floor = curves.error_rate / 1e4
    axes.set_ylim(floor, 3)
    axes.set_xlim(curves.urls[0], curves.urls[-1])
    first = curves.urls[0] * 1.15
    axes.text(first, curves.error_rate * 1.3, f"promised: {curves.error_rate:g}", color=_QUIET, va="bottom")
    axes.text(first, floor * 1.5, "Scrapy's set: never", color=_THIRD, va="bottom")
    above = next((at for at, rate in enumerate(curves.fixed_rate) if rate > 30 * curves.error_rate), -1)
    if above > 0:
        # Left of the steep line, where nothing else is.
        axes.text(
            curves.urls[above] * 0.8,
            min(curves.fixed_rate[above] * 30, 0.5),
            f"fixed filter for\n{_short(curves.fixed_capacity)} URLs",
            color=_OTHER,
            ha="right",
            va="center",
        )
    middle = min(range(len(curves.urls)), key=lambda at: abs(curves.chain_rate[at] - curves.error_rate / 20))
    axes.text(curves.urls[middle] * 1.25, curves.chain_rate[middle] / 3, "this filter", color=INK, va="top")
    axes.set_ylabel("chance")
    _count_axis(axes, "URLs")
    axes.yaxis.set_major_formatter(_formatter(lambda value: "1" if value == 1 else f"{value:.0e}".replace("e-0", "e-")))
    axes.minorticks_off()
    _mark_now(axes, curves)


def draw_memory(axes: Axes, curves: Curves) -> None:
    """Draw memory against URLs."""
    axes.set_title("Memory")
    axes.loglog(curves.urls, curves.chain_bytes, color=INK)
    axes.axhline(curves.fixed_bytes, color=_OTHER, linestyle="--")
    axes.loglog(curves.urls, curves.scrapy_bytes, color=_THIRD, linestyle=":", linewidth=2.4)
    axes.set_xlim(curves.urls[0], curves.urls[-1])
    lowest = min(curves.fixed_bytes, curves.chain_bytes[0]) / 12
    axes.set_ylim(lowest, curves.scrapy_bytes[-1] * 3)
    middle = 2 * len(curves.urls) // 3
    axes.text(
        curves.urls[middle] * 0.8,
        curves.scrapy_bytes[middle] * 1.3,
        "Scrapy's set",
        color=_THIRD,
        ha="right",
        va="bottom",
    )
    axes.text(curves.urls[0] * 1.15, curves.chain_bytes[0] * 1.25, "this filter", color=INK, va="bottom")
    axes.text(
        curves.urls[-1] * 0.87, curves.fixed_bytes / 1.3, "fixed filter, saturated", color=_OTHER, ha="right", va="top"
    )
    _count_axis(axes, "URLs")
    axes.yaxis.set_major_formatter(_formatter(lambda value: size(value).replace(".0 ", " ")))
    axes.minorticks_off()
    _mark_now(axes, curves)


def draw_fill(axes: Axes, curves: Curves) -> None:
    """Draw how full each layer is, and how large."""
    axes.set_title("Fill of the layers" + (", at the end of the planned crawl" if curves.is_planned else ""))
    shown = curves.layers[-_MOST_LAYERS:]
    heights = range(len(shown))
    axes.barh(heights, [1.0 for _ in shown], color="none", edgecolor=INK, linewidth=0.8, height=0.62)
    shares = [min(layer.urls / layer.capacity, 1) for layer in shown]
    axes.barh(heights, shares, color=_QUIET, alpha=0.55, hatch="//", edgecolor=INK, linewidth=0.8, height=0.62)
    for height, layer in zip(heights, shown, strict=True):
        text = f"{_short(layer.urls)} of {_short(layer.capacity)} URLs,\n{layer.fill_ratio:.0%} of the bits set"
        axes.text(1.015, height, text, va="center", color=INK)
    axes.set_yticks(heights, [f"layer {layer.index}" for layer in shown])
    axes.set_ylim(max(len(shown), 4) - 0.5, -0.6)  # the oldest on top, and few layers no fatter than many
    axes.set_xlim(0, 1.7)
    axes.set_xticks([0, 0.5, 1], ["0", "half of its URLs", "full"])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_bounds(0, 1)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)


def draw_pages(axes: Axes, rows: Sequence[Figures]) -> None:
    """Draw what was crawled: pages, URLs and duplicates."""
    axes.set_title("Crawled")
    _draw_course(
        axes,
        rows,
        [
            ("URLs known", [row.urls for row in rows], INK, "-"),
            ("duplicates", [row.duplicates for row in rows], _OTHER, "--"),
            ("pages", [row.pages for row in rows], _THIRD, "-."),
        ],
    )


def draw_waiting(axes: Axes, rows: Sequence[Figures]) -> None:
    """Draw what was still to come: pending and parked requests."""
    axes.set_title("Waiting")
    pending = [math.nan if row.pending < 0 else row.pending for row in rows]
    lines = [("pending requests", pending, INK, "-")]
    if any(row.parked for row in rows):
        lines.append(("parked by the loop guard", [row.parked for row in rows], _OTHER, "--"))
    _draw_course(axes, rows, lines)


def draw_errors(axes: Axes, rows: Sequence[Figures]) -> None:
    """Draw what went wrong."""
    axes.set_title("Errors")
    _draw_course(
        axes,
        rows,
        [
            ("HTTP status 400 or more", [row.http_errors for row in rows], INK, "-"),
            ("downloads failed", [row.failures for row in rows], _OTHER, "--"),
            ("exceptions in callbacks", [row.spider_errors for row in rows], _THIRD, "-."),
        ],
    )


def _draw_course(axes: Axes, rows: Sequence[Figures], lines: Sequence[tuple[str, Sequence[float], str, str]]) -> None:
    """Draw *lines*, each a name, its values, a colour and a style, over the hours of *rows* in which a crawl ran."""
    from matplotlib.ticker import MaxNLocator

    hours, pauses = _hours_of_work(rows)
    unit, per_unit = next((unit, per_hour) for unit, per_hour, least in _TIME_UNITS if hours[-1] >= least)
    times = [hour * per_unit for hour in hours]
    for _, values, colour, style in lines:
        axes.plot(times, values, color=colour, linestyle=style)
    top = max((value for _, values, _, _ in lines for value in values if not math.isnan(value)), default=0)
    axes.set_ylim(0, max(top, 1) * 1.08)
    axes.set_xlim(0, max(times[-1], 1e-6) * 1.0)
    axes.yaxis.set_major_formatter(_formatter(_short))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_xlabel(f"{unit} of crawling")
    for pause in pauses:
        axes.axvline(pause * per_unit, color=_QUIET, linewidth=0.8, linestyle=(0, (1, 3)))
    ends = [
        (name, [value for value in values if not math.isnan(value)][-1:], colour) for name, values, colour, _ in lines
    ]
    _label_ends(axes, [(name, end[0], colour) for name, end, colour in ends if end])


def _label_ends(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write each name, with its last value, to the right of the axes at the height of the value, none over another."""
    _, top = axes.get_ylim()
    least_gap = 0.15 * top
    heights = sorted(ends, key=lambda end: end[1])
    at = -least_gap
    placed = []
    for name, value, colour in heights:
        at = max(value, at + least_gap)
        placed.append((name, value, colour, at))
    over = max(0.0, placed[-1][3] - top * 0.95) if placed else 0.0
    for name, value, colour, height in placed:
        axes.annotate(
            f"{name}\n{_short(value)}",
            (1.02, (height - over) / top),
            xycoords="axes fraction",
            color=colour,
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )


def _hours_of_work(rows: Sequence[Figures]) -> tuple[list[float], list[float]]:
    """Return for each row the hours that the crawl had run, and the hours at which runs began. Pauses do not count."""
    hours, pauses = [0.0], []
    for before, row in pairwise(rows):
        if row.run == before.run:
            hours.append(hours[-1] + max(row.time - before.time, 0) / 3600)
        else:
            hours.append(hours[-1])
            pauses.append(hours[-1])
    return hours, pauses


def _mark_now(axes: Axes, curves: Curves) -> None:
    if not curves.urls[0] < curves.now < curves.urls[-1]:
        return
    axes.axvline(curves.now, color=_QUIET, linewidth=0.9)
    what = "planned" if curves.is_planned else "now"
    axes.annotate(
        f"{what}: {_short(curves.now)}",
        (curves.now, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        color=_QUIET,
        fontsize=8.5,
        annotation_clip=False,
    )


def _count_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(_formatter(_short))


def _formatter(text: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: text(value))


def _short(count: float) -> str:
    """Return *count* in a few characters: ``"1.5 M"``."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.3g}"


def _without_date(suffix: str) -> dict[str, Any]:
    """Return the metadata that keep the date out of a file of this kind."""
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    return {"metadata": dates[suffix.lower()]} if suffix.lower() in dates else {}


@contextmanager
def _figure(name: str, width: float, height: float) -> Iterator[Any]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("matplotlib", "plot", "A picture") from None
    with rc_context({**_SETTINGS, "svg.hashsalt": f"scrapy-bloom {name}"}):
        yield Figure(figsize=(width, height), layout="constrained")
