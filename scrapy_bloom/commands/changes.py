"""Prints the cycles of a job, or the items that are new, changed or gone in the last one."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import OK, show, utc, write
from scrapy_bloom.crawl.changes import last_cycles, reported_items
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.changes import Change
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.inspect import files_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

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
    """Print the table of the last cycles, or a JSON line for each item whose change was noted in the last one."""
    cycles = cycles_of(options.directory)
    if not cycles:
        raise UnusableError(options.directory, "has no cycle", advice="Crawl with BLOOM_CHANGES = True first.")
    if options.change is None:
        show({"directory": options.directory, "cycles": cycles[:_MOST_CYCLES]}, options)
        return OK
    began = {cycle["number"]: cycle["began"] for cycle in cycles}
    name = options.change.name.lower()
    with closing(Database(files_of(options.directory)[1], read_only=True)) as database:
        for url, label, cycle in reported_items(database, cycles[0]["number"], options.change):
            write([json.dumps({"change": name, "url": url, "key": label, "last_seen": began.get(cycle)})])
    return OK


def cycles_of(jobdir: str | Path) -> list[dict[str, Any]]:
    """Return the cycles of the job in *jobdir*, the newest first, in plain types."""
    with closing(Database(files_of(jobdir)[1], read_only=True)) as database:
        return [
            {**cycle._asdict(), "began": utc(cycle.began), "ended": cycle.ended and utc(cycle.ended)}
            for cycle in reversed(last_cycles(database))
        ]
