"""How every command prints and ends: JSON or lines, rich's tables and progress bars, exit codes."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table
from rich.text import Text

from scrapy_bloom.crawl.estimate import Left

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_bloom.fleet.shared_queue import Listed
    from scrapy_bloom.frontier.page import FailedRow

_T = TypeVar("_T")

OK, WRONG, USAGE = 0, 1, 2
"""Exit codes: all is well; there are findings, or (``check``) a URL is new; it could not run, as in argparse."""
INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit codes that a shell reports for SIGINT and SIGPIPE."""

_WIDE = 250
"""Columns of a table that is written to a file or a pipe, whose width is unknown."""
_MOST_ROWS = 30
"""Of a table; JSON has all."""

_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if number != ord("\n")}
"""Control characters: a terminal would obey those in names and URLs that a crawl has found."""


def show(summary: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the *summary* of a command, with ``--json`` as it is.

    Otherwise a line for each name and value, then a table for each list of mappings, and each list of sentences.
    """
    if options.json:
        print(json.dumps(summary, indent=2))  # noqa: T201 - commands print here
        return
    for name, value in summary.items():
        if not isinstance(value, list):
            write([f"{name.replace('_', ' '):<20}{shown(name, value) or 'none'}"])
        elif value and isinstance(value[0], dict):
            rows = [[shown(column, cell) for column, cell in row.items()] for row in value[:_MOST_ROWS]]
            write(["", name.replace("_", " "), table([column.replace("_", " ") for column in value[0]], rows)])
            write([f"and {len(value) - _MOST_ROWS:,} more"] if len(value) > _MOST_ROWS else [])
        elif value:
            write(["", *(f"! {line}" if name == "findings" else line for line in value)])


def shown(name: str, value: Any) -> str:
    """Return *value* for people; *name* begins with ``bytes`` if it counts bytes."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(key, detail) or 'none'}" for key, detail in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if name.startswith("bytes"):
        return decimal(value)
    if isinstance(value, float) and value < 10:
        return f"{value:.2g}"
    return str(value) if isinstance(value, str) else f"{value:,.0f}"


def write(lines: Iterable[str]) -> None:
    """Print *lines* without control characters."""
    for line in lines:
        print(safe(line), flush=True)  # noqa: T201 - commands print here


def console(*, stderr: bool = False) -> Console:
    """Return rich's console for standard output or standard error."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, markup=False, width=None if is_terminal else _WIDE)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: its first column is aligned left, the others right."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, name in enumerate(header):
        drawn.add_column(Text(name), justify="right" if at else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(safe(cell)) for cell in row))
    output = console()
    with output.capture() as captured:  # printing by itself, rich would end the process when a pipe is closed
        output.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def tracked(items: Iterable[_T], label: str, *, total: int | None = None) -> Iterator[_T]:
    """Iterate over *items*; on a terminal, a bar on standard error shows how many of *total* were read."""
    output = console(stderr=True)
    yield from track(items, safe(label), total, console=output, transient=True) if output.is_terminal else items


def safe(text: str) -> str:
    """Return *text* with its control characters written out."""
    return text.translate(_ESCAPED)


def utc(moment: float) -> str:
    """Return *moment*, in seconds since 1970, as ``2026-02-28T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def left_of(summary: Mapping[str, Any]) -> Left | None:
    """Return how many pages are left, after the *summary* of a command."""
    low = summary["left_at_least"]
    return None if low is None else Left(low, summary["left_at_most"])


def by_host(rows: Sequence[FailedRow | Listed]) -> dict[str, Any]:
    """Return how many requests have failed, by host and reason, and each of *rows*, the newest first."""
    groups = Counter((row.host, row.reason) for row in rows)
    return {
        "failed": len(rows),
        "failed_by_host": [
            {"host": host, "reason": reason, "requests": count} for (host, reason), count in groups.most_common()
        ],
        "requests": [
            {"url": row.url, "host": row.host, "reason": row.reason, "when": utc(row.time)}
            for row in sorted(rows, key=lambda row: -row.time)
        ],
    }
