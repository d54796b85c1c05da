"""BloomDupeFilter.request_seen beside Scrapy's own filter, with and without a job directory.

Four of five requests are duplicates. Every request is a fresh object, since Scrapy remembers the fingerprint of an
object; building them is outside of the measured time.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks import measure, urls

if TYPE_CHECKING:
    import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--sample", type=int, default=50_000, help="requests per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table for each place."""
    measure.print_environment("Scrapy", "w3lib", "bitarray", "mmh3")
    print(f"{options.sample:,} requests a round; medians of {options.rounds} rounds\n")
    for has_jobdir in (False, True):
        sides = measure.of_each(measured, has_jobdir=has_jobdir, sample=options.sample)
        what = "with JOBDIR" if has_jobdir else "in memory"
        measure.print_side_by_side(what, sides, options.old, options.rounds)


def measured(name: str, has_jobdir: bool, sample: int) -> measure.Figures:
    """Return the microseconds of CPU time that a call takes."""
    from scrapy import Request
    from scrapy.utils.misc import load_object

    from benchmarks.engine import quiet_crawler

    new = urls.composed_urls(max(1, sample // 5), seed=1)
    chosen = new * 5
    random.Random(2).shuffle(chosen)
    with tempfile.TemporaryDirectory() as directory:
        asked = load_object(measure.DUPEFILTERS[name]).from_crawler(
            quiet_crawler({"JOBDIR": directory if has_jobdir else None})
        )
        asked.open()
        requests = [Request(url) for url in chosen]
        gc.collect()
        gc.disable()  # or one side is charged for walking over what the other does not have
        start = time.process_time()
        for request in requests:
            asked.request_seen(request)
        elapsed = time.process_time() - start
        asked.close("finished")
    return {"us per call": elapsed / len(requests) * 1e6}
