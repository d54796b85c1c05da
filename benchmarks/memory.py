"""Resident memory per URL of BloomDupeFilter and of Scrapy's own filter, each in a process of its own.

Beside it stands the disk that a table of fingerprints in SQLite takes.

request_seen() gets numbers in place of requests, and a fingerprinter turns them into 20 bytes in less time than it
takes for a request. The result is how much more memory is resident afterwards.
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

OURS = "scrapy_bloom.BloomDupeFilter"
SCRAPY = "scrapy.dupefilters.RFPDupeFilter"


class FingerprintOfNumber:
    """A ``REQUEST_FINGERPRINTER_CLASS`` for numbers."""

    def fingerprint(self, request: Any) -> bytes:
        """Return 20 bytes."""
        return sha1(b"%d" % request).digest()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, nargs="+", default=[1_000_000], help="default: %(default)s")
    parser.add_argument("--large", action="store_true", help="10 million URLs, too")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "bitarray")
    print("Bytes of RAM per URL, and how many times less that is than Scrapy takes\n")
    rows = []
    drawn = {}
    targets = []
    counts = [*options.urls, *([10_000_000] if options.large else [])]
    for count in counts:
        sides = {
            "BLOOM_CAPACITY set to that": (OURS, {"BLOOM_CAPACITY": count}),
            "default settings": (OURS, {}),
            "Scrapy": (SCRAPY, {}),
        }
        found = {
            name: measure.in_own_process(measured, dupefilter=cls, count=count, settings=settings)
            for name, (cls, settings) in sides.items()
        }
        for name, one in found.items():
            each = one["resident"] / count
            layers = str(one["layers"]) if one["layers"] else "-"
            bits = f"{one['nbytes'] / count:.2f}" if one["nbytes"] else "-"
            times_less = f"{found['Scrapy']['resident'] / one['resident']:.0f}"
            rows.append([f"{count:,} URLs, {name}", times_less, f"{each:.2f}", bits, layers])
            drawn[f"{count:,} URLs, {name}"] = measure.Spread(each, each, each)
        targets.append((count, found["BLOOM_CAPACITY set to that"]["resident"] / count))
    measure.print_table(["", "times less", "bytes per URL", "of these bits", "layers"], rows)
    print("Bytes on disk per URL\n")
    tables = [
        [f"{count:,} URLs, SQLite, a table WITHOUT ROWID", f"{_sqlite_bytes(count) / count:.1f}"] for count in counts
    ]
    measure.print_table(["", "bytes per URL"], tables)
    for count, each in targets:
        measure.print_target(f"memory, bytes per URL at a capacity of {count:,}", each, at_most=4.5)
    return measure.Picture("Resident memory", "bytes per URL", drawn)


def measured(dupefilter: str, count: int, settings: dict[str, Any]) -> dict[str, int]:
    """Fill a *dupefilter* with *count* URLs and return how many more bytes are resident."""
    from scrapy import Spider
    from scrapy.utils.misc import load_object
    from scrapy.utils.reactor import install_reactor
    from scrapy.utils.test import get_crawler

    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")  # Scrapy 2.13 asks which one it is
    fingerprinter = {"REQUEST_FINGERPRINTER_CLASS": "benchmarks.memory.FingerprintOfNumber"}
    crawler = get_crawler(Spider, {**settings, **fingerprinter})
    cls = load_object(dupefilter)
    gc.collect()
    before = measure.resident_bytes()
    filling = cls.from_crawler(crawler)
    filling.open()
    request_seen = filling.request_seen
    for number in range(count):
        request_seen(number)
    resident = measure.resident_bytes() - before
    filling.close("finished")
    stats = crawler.stats.get_stats() if crawler.stats else {}
    return {"resident": resident, "nbytes": stats.get("bloom/bytes", 0), "layers": stats.get("bloom/layers", 0)}


def _sqlite_bytes(count: int) -> int:
    """Return the size of a table of *count* random fingerprints, written ten thousand at a time."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "seen.db")
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID")
            for start in range(0, count, 10_000):
                numbers = range(start, min(start + 10_000, count))
                rows = [(sha1(b"%d" % number).digest(),) for number in numbers]
                with database:
                    database.executemany("INSERT OR IGNORE INTO seen VALUES (?)", rows)
        return path.stat().st_size
