"""What URLs take of memory and disk, and how long they take to be open again: BloomDupeFilter and Scrapy's own filter.

Every filter is filled, and opened again, in a process of its own. request_seen() gets numbers in place of requests, and
a fingerprinter turns them into 20 bytes. Opening is timed by the clock, with the files in the page cache.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure

if TYPE_CHECKING:
    import argparse

DEFAULT, KILLED = "scrapy-bloom, BLOOM_CAPACITY as it is", "scrapy-bloom, after a kill"


class FingerprintOfNumber:
    """A ``REQUEST_FINGERPRINTER_CLASS`` for numbers."""

    def fingerprint(self, request: Any) -> bytes:
        """Return 20 bytes."""
        return sha1(b"%d" % request).digest()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="openings of each (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="the same as --urls 10000000")


def run(options: argparse.Namespace) -> None:
    """Measure and print two tables."""
    measure.print_environment("Scrapy", "bitarray")
    count = 10_000_000 if options.large else options.urls
    in_memory, in_job = _sides(count, None), _sides(count, "")
    in_memory[DEFAULT] = in_memory[measure.OURS]._replace(
        arguments={**in_memory[measure.OURS].arguments, "capacity": 1_000_000}
    )
    in_memory["SQLite, WITHOUT ROWID (disk)"] = measure.Side(sqlite_bytes, {"count": count})
    found = measure.side_by_side(measure.with_old(in_memory, options.old), 1)
    measure.print_figures(f"{count:,} URLs in memory", found, {"each": ("bytes per URL", ".2f")})

    with tempfile.TemporaryDirectory() as temporary:
        sides = measure.with_old({**in_job, KILLED: in_job[measure.OURS]}, options.old)
        for number, (name, side) in enumerate(sides.items()):
            given = {**side.arguments, "jobdir": str(Path(temporary, str(number)))}
            measure.in_own_process(filled, package=side.package, **given)
            sides[name] = side._replace(function=opened, arguments={**given, "dies": name == KILLED})
        sides[KILLED]()  # leaves the filter as a kill does for the first round
        found = measure.side_by_side(sides, options.rounds)
    columns = {"seconds": ("s to open", ".4f"), "peak_mb": ("peak RAM, MB", ".0f"), "disk_mb": ("disk, MB", ".0f")}
    measure.print_figures(f"{count:,} URLs in a job directory", found, columns)


def _sides(count: int, jobdir: str | None) -> dict[str, measure.Side]:
    return {
        name: measure.Side(filled, {"dupefilter": path, "count": count, "capacity": count, "jobdir": jobdir})
        for name, path in measure.DUPEFILTERS.items()
    }


def _filter(dupefilter: str, capacity: int, jobdir: str | None) -> Any:
    from scrapy.utils.misc import load_object

    from benchmarks.engine import quiet_crawler

    settings = {"REQUEST_FINGERPRINTER_CLASS": "benchmarks.memory.FingerprintOfNumber", "JOBDIR": jobdir}
    settings |= {"BLOOM_CAPACITY": capacity} if dupefilter.startswith("scrapy_bloom") else {}
    return load_object(dupefilter).from_crawler(quiet_crawler(settings))


def filled(dupefilter: str, count: int, capacity: int, jobdir: str | None) -> measure.Figures:
    """Let a *dupefilter* see *count* URLs, and return how many more bytes are resident for each."""
    _filter(dupefilter, 1, None)  # what it imports is no memory of URLs
    gc.collect()
    before = measure.resident_bytes()
    filling = _filter(dupefilter, capacity, jobdir)
    filling.open()
    for number in range(count):
        filling.request_seen(number)
    resident = measure.resident_bytes() - before
    filling.close("finished")
    return {"each": resident / count}


def opened(dupefilter: str, count: int, capacity: int, jobdir: str, *, dies: bool) -> measure.Figures:
    """Open the filter in *jobdir*, check that it knows what it should, and close it or die."""
    _filter(dupefilter, 1, None)
    start = time.perf_counter()
    opening = _filter(dupefilter, capacity, jobdir)
    opening.open()
    seconds = time.perf_counter() - start
    if not all(map(opening.request_seen, range(0, count, max(1, count // 1000)))):
        sys.exit("the filter has forgotten URLs")
    figures = {"seconds": seconds, "peak_mb": measure.peak_bytes() / 1e6, "disk_mb": measure.disk_bytes(jobdir) / 1e6}
    if dies:
        measure.die_with(figures)
    opening.close("finished")
    return figures


def sqlite_bytes(count: int) -> measure.Figures:
    """Return the size of a table of *count* random fingerprints, written ten thousand at a time."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "seen.db")
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID")
            for start in range(0, count, 10_000):
                rows = [(sha1(b"%d" % number).digest(),) for number in range(start, min(start + 10_000, count))]
                with database:
                    database.executemany("INSERT OR IGNORE INTO seen VALUES (?)", rows)
        return {"each": path.stat().st_size / count}
