"""What a page brings: CPU time per page of the loop guard's look at it, beside parsing the page.

Pages with news come from a folder, in random order, or are generated. "Again" shows them a second time: copies are
read to the end.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.http import HtmlResponse

from benchmarks import measure
from benchmarks.linksite import GeneratedPages
from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.old.loops.news import News

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

TARGET_MS = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--html", type=Path, metavar="DIR", help="look at the HTML files of this folder")
    parser.add_argument("--pages", type=int, default=500, help="so many pages at most (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, each with an empty memory (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "lxml")
    if options.html:
        files = sorted(options.html.rglob("*.html"))
        random.Random(1).shuffle(files)
        bodies = [file.read_bytes() for file in files[: options.pages]]
        name = str(options.html)
    else:
        site = GeneratedPages(options.pages, links=50, words=400)
        bodies = [found[0] for found in map(site.find, site.paths()) if found]
        name = "generated pages"
    print(f"{len(bodies):,} pages of {name}, {sum(map(len, bodies)) / len(bodies) / 1024:.0f} KiB each on average")
    print(f"ms of CPU time per page (lowest-highest); medians of {options.rounds} rounds\n")
    spent: dict[str, list[float]] = {"parsing, for comparison": [], "news": [], "again": []}
    brought = again = 0
    for _ in range(options.rounds):
        pages = [HtmlResponse(f"https://example.com/{i}", body=body, encoding="utf-8") for i, body in enumerate(bodies)]
        news = News(ScalableBloomFilter(1_000_000, 1e-3))
        spent["news"].append(_milliseconds(lambda: [news.brought(page) for page in pages]) / len(pages))  # noqa: B023
        spent["parsing, for comparison"].append(
            _milliseconds(lambda: [page.selector for page in pages]) / len(pages)  # noqa: B023 - called at once
        )
        spent["again"].append(_milliseconds(lambda: [news.brought(page) for page in pages]) / len(pages))  # noqa: B023
        fresh = News(ScalableBloomFilter(1_000_000, 1e-3))
        brought = sum(fresh.brought(page) for page in pages)
        again = sum(fresh.brought(page) for page in pages)
    spreads = {what: measure.Spread.of(values) for what, values in spent.items()}
    counts = {"news": f"{brought:,}", "again": f"{again:,}"}
    rows = [[what, f"{spread:.3f}", counts.get(what, "")] for what, spread in spreads.items()]
    measure.print_table(["", "ms a page", "pages with news"], rows)
    measure.print_target("news, ms of CPU a page", spreads["news"].median, at_most=TARGET_MS)
    return measure.Picture(f"What {name} bring", "ms of CPU time per page", spreads)


def _milliseconds(work: Callable[[], object]) -> float:
    with measure.uncollected():
        start = time.process_time()
        work()
        return 1e3 * (time.process_time() - start)
