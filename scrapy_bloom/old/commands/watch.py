"""Follows a running crawl by the figures that it keeps: ``scrapy bloom info --watch``. Only reads.

On a terminal with rich it redraws one table; elsewhere it prints a line each time. Does not know the crawl's process.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.old.commands.job import filter_directory
from scrapy_bloom.old.commands.terminal import OK, Table, drawn_table, print_lines, rich_console
from scrapy_bloom.old.files.figures import FIGURES_NAME, read_figures
from scrapy_bloom.old.files.inspect import inspect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_bloom.old.files.figures import Figures

DEFAULT_SECONDS = 5.0

_WINDOW = 30
"""Seconds over which a rate is averaged, once the run is that old."""
_ROW_EVERY = 6
"""Seconds without a new row after which a crawl counts as idle: a busy one adds a row every 5."""
_COUNTED = (
    ("urls", "URL", "URLs"),
    ("duplicates", "duplicate", "duplicates"),
    ("pages", "page", "pages"),
    ("errors", "error", "errors"),
    ("pending", "pending", "pending"),
)
_SHORTEST, _LONGEST = 0.1, 3600.0


class Rates(NamedTuple):
    """How fast a crawl is now, per second."""

    urls: float
    duplicates: float
    pages: float


def rates(rows: Sequence[Figures], now: float) -> Rates | None:
    """Return how fast the newest run was in the last half minute; None if it has too few rows to tell."""
    if not rows:
        return None
    last = rows[-1]
    first = next(row for row in rows if row.run == last.run and row.time >= last.time - _WINDOW)
    seconds = max(last.time, now - _ROW_EVERY) - first.time
    if seconds <= 0:
        return None
    return Rates(
        (last.urls - first.urls) / seconds,
        (last.duplicates - first.duplicates) / seconds,
        (last.pages - first.pages) / seconds,
    )


def watch(directory: str, seconds: float, *, as_json: bool) -> int:
    """Show how the crawl in *directory* is doing every so many *seconds*, until it ends or somebody presses Ctrl-C.

    Raises:
        UnusableError: There is no job.

    """
    path = filter_directory(directory)
    figures = path.parent / FIGURES_NAME
    try:
        with _shown(as_json=as_json) as show:
            while True:
                # Check the lock first: everything written before its release is then in the figures.
                is_running = inspect(path).is_in_use
                rows = read_figures(figures)
                show(_state(rows, time.time(), is_running=is_running))
                if is_running is False:
                    return OK
                time.sleep(seconds)
    except KeyboardInterrupt:
        return OK


def seconds_argument(text: str) -> float:
    """Read a number of seconds from the command line."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {_SHORTEST:g} to {_LONGEST:g}")
    return seconds


def _state(rows: Sequence[Figures], now: float, *, is_running: bool | None) -> dict[str, Any]:
    last = rows[-1] if rows else None
    rate = rates(rows, now) if is_running is not False else None
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "running": is_running,
        "urls": None if last is None else last.urls,
        "duplicates": None if last is None else last.duplicates,
        "pages": None if last is None else last.pages,
        "errors": None if last is None else last.failures + last.http_errors + last.spider_errors,
        "pending": None if last is None or last.pending < 0 else last.pending,
        "parked": None if last is None else last.parked,
        "urls_per_second": None if rate is None else round(rate.urls, 3),
        "duplicates_per_second": None if rate is None else round(rate.duplicates, 3),
        "pages_per_second": None if rate is None else round(rate.pages, 3),
    }


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what shows a state."""
    console = None if as_json else rich_console()
    if as_json:
        yield lambda state: print(json.dumps(state), flush=True)  # noqa: T201 - a line each time
    elif console is None:
        yield lambda state: print_lines([_line(state)])
    else:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            yield lambda state: live.update(drawn_table(_table(state), title=_title(state)), refresh=True)


def _title(state: dict[str, Any]) -> str:
    clock = state["time"][11:19] + " UTC"
    title = f"{clock}: the crawl has ended" if state["running"] is False else clock
    return f"{title}, no figures yet" if state["urls"] is None else title


def _line(state: dict[str, Any]) -> str:
    if state["urls"] is None:
        return _title(state)
    parts = [
        f"{_count(state[name])} {one if state[name] == 1 else several}"
        + (f" ({_rate(speed)}/s)" if (speed := state.get(f"{name}_per_second")) else "")
        for name, one, several in _COUNTED
    ]
    return f"{_title(state)}, " + ", ".join(parts)


def _table(state: dict[str, Any]) -> Table:
    names = ("urls", "duplicates", "pages", "errors", "pending", "parked")
    return Table(
        ["", "so far", "per second"],
        [
            (
                "URLs" if name == "urls" else name,
                _count(state[name]),
                _rate(state[f"{name}_per_second"]) if f"{name}_per_second" in state else "",
            )
            for name in names
        ],
    )


def _count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
