"""Resident memory per URL of BloomDupeFilter and of Scrapy's own filter, and the disk that a table in SQLite takes.

Every filter is in a process of its own. request_seen() gets numbers in place of requests, and a fingerprinter turns
them into 20 bytes. The result is how much more memory is resident afterwards.
"""

from __future__ import annotations

import gc
import sqlite3
import tempfile
from contextlib import closing
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure

if TYPE_CHECKING:
    import argparse


class FingerprintOfNumber:
    """A ``REQUEST_FINGERPRINTER_CLASS`` for numbers."""

    def fingerprint(self, request: Any) -> bytes:
        """Return 20 bytes."""
        return sha1(b"%d" % request).digest()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--large", action="store_true", help="the same as --urls 10000000")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "bitarray")
    count = 10_000_000 if options.large else options.urls
    sides = {
        name: measure.Side(measured, {"dupefilter": path, "count": count, "settings": {"BLOOM_CAPACITY": count}})
        for name, path in measure.DUPEFILTERS.items()
    }
    sides = measure.with_old(sides, options.old)
    default = {"dupefilter": measure.DUPEFILTERS[measure.OURS], "count": count, "settings": {}}
    sides["scrapy-bloom, BLOOM_CAPACITY as it is"] = measure.Side(measured, default)
    sides["SQLite, WITHOUT ROWID (disk)"] = measure.Side(sqlite_bytes, {"count": count})
    found = measure.side_by_side(sides, 1)
    measure.print_figures(f"{count:,} URLs", found, {"each": ("bytes per URL", ".2f")})


def measured(dupefilter: str, count: int, settings: dict[str, Any]) -> measure.Figures:
    """Fill a *dupefilter* with *count* URLs and return how many more bytes are resident for each."""
    from scrapy.utils.misc import load_object

    from benchmarks.engine import quiet_crawler

    crawler = quiet_crawler({**settings, "REQUEST_FINGERPRINTER_CLASS": "benchmarks.memory.FingerprintOfNumber"})
    cls = load_object(dupefilter)
    gc.collect()
    before = measure.resident_bytes()
    filling = cls.from_crawler(crawler)
    filling.open()
    for number in range(count):
        filling.request_seen(number)
    resident = measure.resident_bytes() - before
    filling.close("finished")
    return {"each": resident / count}


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
