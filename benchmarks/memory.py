"""What URLs take of time, memory and disk, and to be open again: BloomDupeFilter and Scrapy's own filter.

Every filter is filled, and opened again, in a process of its own. request_seen() gets numbers in place of requests, and
a fingerprinter turns them into 20 bytes. Opening is timed by the clock, with the files in the page cache.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

from benchmarks import measure

KILLED = "scrapy-bloom, after a kill"


class FingerprintOfNumber:
    """A ``REQUEST_FINGERPRINTER_CLASS`` for numbers."""

    def fingerprint(self, request: Any) -> bytes:
        """Return 20 bytes."""
        return sha1(b"%d" % request).digest()


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print three tables."""
    parser.add_argument("--urls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="openings of each (default: %(default)s)")
    parser.add_argument("--alone", action="store_true", help="without Scrapy's, which takes 100 bytes for each URL")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "bitarray")
    names = [measure.OURS] if options.alone else [measure.OURS, measure.SCRAPY]
    sides = measure.of_each(filled, names, count=options.urls, jobdir=None)
    measure.print_side_by_side(f"{options.urls:,} URLs in memory", sides, options.old, 1)

    with tempfile.TemporaryDirectory() as temporary:
        sides = measure.with_old({**sides, KILLED: sides[measure.OURS]}, options.old)
        fillings: dict[str, list[measure.Figures]] = {}
        for number, (name, side) in enumerate(sides.items()):
            jobdir = str(Path(temporary, str(number)))
            fillings[name] = [side(jobdir=jobdir)]
            given = {**side.keywords, "jobdir": jobdir, "dies": name == KILLED}
            sides[name] = partial(measure.in_own_process, opened, **given)
        sides[KILLED]()  # leaves the filter as a kill does for the first round
        found = measure.side_by_side(sides, options.rounds)
    measure.print_figures(f"{options.urls:,} URLs into a job directory", fillings)
    measure.print_figures(f"{options.urls:,} URLs in a job directory", found)


def _filter(name: str, capacity: int, jobdir: str | None) -> Any:
    from scrapy.utils.misc import load_object

    from benchmarks.engine import quiet_crawler

    settings = {"REQUEST_FINGERPRINTER_CLASS": "benchmarks.memory.FingerprintOfNumber", "JOBDIR": jobdir}
    settings |= {"BLOOM_CAPACITY": capacity} if name == measure.OURS else {}
    return load_object(measure.DUPEFILTERS[name]).from_crawler(quiet_crawler(settings))


def filled(name: str, count: int, jobdir: str | None) -> measure.Figures:
    """Let a filter see *count* URLs, and return what each takes of CPU time and of resident memory."""
    _filter(name, 1, None)  # what it imports is no memory of URLs
    gc.collect()
    before = measure.resident_bytes()
    filling = _filter(name, count, jobdir)
    filling.open()
    start = time.process_time()
    for number in range(count):
        filling.request_seen(number)
    seconds = time.process_time() - start
    resident = measure.resident_bytes() - before
    filling.close("finished")
    return {"us per URL": seconds / count * 1e6, "bytes per URL": resident / count}


def opened(name: str, count: int, jobdir: str, *, dies: bool) -> measure.Figures:
    """Open the filter in *jobdir*, check that it knows what it should, and close it or die."""
    _filter(name, 1, None)
    start = time.perf_counter()
    opening = _filter(name, count, jobdir)
    opening.open()
    seconds = time.perf_counter() - start
    if not all(map(opening.request_seen, range(0, count, max(1, count // 1000)))):
        sys.exit("the filter has forgotten URLs")
    figures = {"s to open": seconds, **measure.peak_and_disk(jobdir)}
    if dies:
        measure.die_with(figures)
    opening.close("finished")
    return figures
