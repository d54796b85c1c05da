"""BloomDupeFilter.request_seen beside that of Scrapy's own filter, with and without a job directory.

Four of five requests are duplicates. Every request is a fresh object, since Scrapy remembers the fingerprint of an
object; building them is outside of the measured time. The filters live through all rounds, so they fill up.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.reactor import install_reactor
from scrapy.utils.test import get_crawler

from benchmarks import measure, urls
from scrapy_bloom import BloomDupeFilter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

OURS, SCRAPY = "scrapy-bloom", "Scrapy"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--html", type=Path, metavar="DIR", help="take the links of the HTML files in this folder, too")
    parser.add_argument("--base", default="https://docs.python.org/3.11/", help="URL that the folder stands for")
    parser.add_argument("--sample", type=int, default=2_000, help="requests per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=39, help="default: %(default)s")
    parser.add_argument("--known", type=int, default=0, help="URLs seen before the first round (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="the same as --known 1000000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")  # Scrapy 2.13 asks which one it is
    measure.print_environment("Scrapy", "w3lib", "bitarray", "mmh3")
    known = 1_000_000 if options.large else options.known
    new = max(1, options.sample // 5)
    sources = {"composed": urls.accepted(urls.composed_urls(new * options.rounds, seed=1))}
    if options.html:
        found = sorted(set(urls.accepted(urls.html_urls(options.html, options.base))))
        random.Random(3).shuffle(found)
        sources[f"links of {options.html}"] = found
    print(
        f"Scrapy's time over ours (lowest-highest), and ns of CPU time per call; medians of {options.rounds} rounds of "
        f"{options.sample:,} requests; {known:,} URLs known before\n"
    )
    rows = []
    drawn = {}
    for name, found in sources.items():
        share = min(new, len(found) // options.rounds)
        for has_jobdir in (True, False):
            times = _times(found, share, options.rounds, known, has_jobdir=has_jobdir)
            ratio = measure.ratios(times[SCRAPY], times[OURS])
            label = f"{name}, {'with' if has_jobdir else 'without'} JOBDIR"
            drawn[label] = ratio
            medians = [f"{measure.Spread.of(times[side]).median:.0f}" for side in (OURS, SCRAPY)]
            rows.append([label, f"{ratio:.1f}", *medians])
    measure.print_table(["", "times as fast", "ns", "Scrapy's ns"], rows)
    for label, ratio in drawn.items():
        measure.print_target(f"request_seen, {label}, times as fast as Scrapy", ratio.median, at_least=6)
    return measure.Picture("request_seen, 80 % duplicates", "times as fast as Scrapy", drawn)


def _times(found: list[str], new: int, rounds: int, known: int, *, has_jobdir: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as directory:
        filters = {}
        for side, cls in ((OURS, BloomDupeFilter), (SCRAPY, RFPDupeFilter)):
            settings = {"JOBDIR": str(Path(directory, side))} if has_jobdir else {}
            filters[side] = dupefilter = cls.from_crawler(get_crawler(Spider, settings))
            dupefilter.open()
            for at in range(known):
                dupefilter.request_seen(Request(f"http://known.example.com/{at}"))
        try:
            with measure.uncollected():
                return measure.side_by_side(
                    {side: _round_of(dupefilter, found, new) for side, dupefilter in filters.items()}, rounds
                )
        finally:
            for dupefilter in filters.values():
                dupefilter.close("finished")


def _round_of(dupefilter: Any, found: Sequence[str], new: int) -> Callable[[], float]:
    """Return a function that times a pass over *new* more of the *found* URLs, each five times, in random order."""
    number = 0

    def one_round() -> float:
        nonlocal number
        chosen = found[number * new : (number + 1) * new] * 5
        random.Random(number).shuffle(chosen)
        number += 1
        return measure.nanoseconds_each(dupefilter.request_seen, [Request(url) for url in chosen])

    return one_round
