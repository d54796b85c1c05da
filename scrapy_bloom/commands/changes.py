"""Says what has changed on a site from one cycle of a job to the next."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import OK, show, utc, write
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.changes import Change
from scrapy_bloom.job.cycles import Cycle, last_cycles, told_in
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.inspect import files_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_MOST_CYCLES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``changes``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl with BLOOM_CHANGES, also while it runs")
    which = parser.add_mutually_exclusive_group()
    for change in Change:
        name = change.name.lower()
        which.add_argument(
            f"--{name}", dest="change", action="store_const", const=change, help=f"list what is {name}, as JSON lines"
        )


def run(options: argparse.Namespace) -> int:
    """Print the table of the last cycles, or a JSON line for each item of which something was told in the last one."""
    _, path = files_of(options.directory)
    with closing(Database(path, read_only=True)) as database:
        cycles = last_cycles(database)
        if not cycles:
            raise UnusableError(options.directory, "has no cycle", advice="Crawl with BLOOM_CHANGES = True first.")
        if options.change is None:
            show({"directory": options.directory, "cycles": table_of(cycles)}, options)
        else:
            write(map(json.dumps, _told(database, cycles, options.change)))
    return OK


def table_of(cycles: Sequence[Cycle]) -> list[dict[str, Any]]:
    """Return the last *cycles*, the newest first, in plain types."""
    return [
        {**cycle._asdict(), "began": utc(cycle.began), "ended": cycle.ended and utc(cycle.ended)}
        for cycle in cycles[: -_MOST_CYCLES - 1 : -1]
    ]


def _told(database: Database, cycles: Sequence[Cycle], change: Change) -> Iterator[dict[str, Any]]:
    began = {cycle.number: utc(cycle.began) for cycle in cycles}
    for told in told_in(database, cycles[-1].number, change):
        yield {
            "change": change.name.lower(),
            "url": told.url,
            "key": told.label,
            "last_seen": began.get(told.cycle),
        }
