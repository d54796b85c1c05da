"""What every command prints and returns: text or JSON, and an exit code. Knows no command.

On a terminal, tables are drawn by rich if it is installed (the extra ``commands``); elsewhere they are plain lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

_T = TypeVar("_T")

OK = 0
"""All is well."""
WRONG = 1
"""There are findings, or (``check``) a URL is new."""
USAGE = 2
"""There is no such job, it cannot be used, or the arguments make no sense. argparse returns this number, too."""

INTERRUPTED = 130
"""Ctrl-C: the exit code that a shell reports for SIGINT."""

PIPE_CLOSED = 141
"""Nobody reads what is printed any more, as after `| head`: the exit code that a shell reports for SIGPIPE."""

_UNPRINTABLE = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) != "\n"}
"""Control characters: a terminal would obey those in names and URLs that a crawl has found."""


class Table(NamedTuple):
    """Rows under a header: the first column left, all others right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Return the table as plain text."""
        cells = [[cell.translate(_UNPRINTABLE) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]


def show(found: Any, options: argparse.Namespace, lines: Callable[[Any], Iterable[str | Table]]) -> None:
    """Print *found*: as JSON with ``--json``, otherwise the *lines* and tables made of it."""
    if options.json:
        print(json.dumps(found, indent=2))  # noqa: T201 - this is where commands print
    else:
        print_lines(lines(found))


def print_lines(lines: Iterable[str | Table]) -> None:
    """Print *lines* and tables, without control characters."""
    console = rich_console()
    for each in lines:
        if isinstance(each, str):
            print(each.translate(_UNPRINTABLE), flush=True)  # noqa: T201 - this is where commands print
        elif console is None:
            print("\n".join(each.lines()))  # noqa: T201 - this is where commands print
        else:
            console.print(drawn_table(each))


def rich_console() -> Console | None:
    """Return rich's console; None if the output is no terminal, or rich is not installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, markup=False)


def tracked(items: Iterable[_T], what: str) -> Iterable[_T]:
    """Return an iterator over *items*; on a terminal with rich, a bar on standard error shows the progress.

    The bar shows *what* as its label. If the number of items is not known, it counts them.
    """
    if not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return items
    total = len(items) if isinstance(items, Sized) else None
    console = Console(stderr=True, highlight=False, markup=False)
    return track(items, what.translate(_UNPRINTABLE), total=total, console=console, transient=True)


def rows(labelled: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each label with its value, the values below each other."""
    pairs = list(labelled)
    width = max(16, 2 + max((len(label) for label, _ in pairs), default=0))
    return [f"{label:<{width}}{value}" for label, value in pairs]


def size(nbytes: float) -> str:
    """Return *nbytes* for people: ``"4.1 MB"``, in powers of 1,000."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 1000**power * 0.9995:
            number = nbytes / 1000**power
            return f"{number:,.1f} {unit}"
    return f"{nbytes:,.0f} bytes"


def drawn_table(table: Table, *, title: str | None = None) -> Any:
    """Return *table* as rich draws it. Needs rich."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for at, title in enumerate(table.header):
        drawn.add_column(Text(title), justify="right" if at else "left", no_wrap=bool(at))
    for row in table.rows:
        drawn.add_row(*(Text(cell.translate(_UNPRINTABLE)) for cell in row))
    return drawn
