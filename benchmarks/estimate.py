"""How often the estimate of how many pages are left holds: crawls of drawn sites, without a network.

Each site is crawled depth first and breadth first, with one request at a time and with 16. When so much of it is done,
the true number of pages is in the range that is told, or not.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import statistics
from collections import deque
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple
from urllib.parse import urljoin

from benchmarks import loops, measure
from benchmarks.sites import site
from scrapy_bloom.crawl.estimate import Estimate

Links = list[list[int]]
"""The numbers of the pages that each page links to; a crawl starts at page 0."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
_hrefs = re.compile(rb'<a href="([^"]*)').findall


class Told(NamedTuple):
    """The range that was told of a crawl of *total* pages when a share of them, *at*, was done."""

    at: float
    total: int
    low: int
    high: float
    """Infinite if it was too early to tell."""


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Crawl, and print how often the range held."""
    how = "below 100 for tuning, 100 to 199 for scoring"
    parser.add_argument("--seeds", type=loops.seeds, default="100-119", help=how)
    options = parser.parse_args(arguments)
    graphs = [links_of(seed) for seed in options.seeds]
    for order in ("depth first", "breadth first"):
        told = [told for links in graphs for width in (1, 16) for told in crawl(links, order, width)]
        rows = [row_of(at, [one for one in told if one.at == at]) for at in SHARES]
        measure.print_table([f"{order}; done", "holds", "ends, x : 1", "too high", "too early"], rows)


def row_of(at: float, told: list[Told]) -> list[str]:
    """Return how often what was *told* holds, how wide it is, and how often it is too high or infinite."""
    ends = [one.high / one.low for one in told if one.high < math.inf]
    held = sum(one.low <= one.total <= one.high < math.inf for one in told)
    numbers = (held, sum(one.low > one.total for one in told), len(told) - len(ends))
    shares = [f"{number / len(told):.0%}" for number in numbers]
    return [f"{at:.0%}", shares[0], f"{statistics.median(ends):.2f}" if ends else "-", *shares[1:]]


def crawl(links: Links, order: str, in_flight: int) -> Iterator[Told]:
    """Crawl as Scrapy does, and yield what is told at each of SHARES."""
    rng, estimate = random.Random(1), Estimate()
    waiting, flying = deque([(0, 0)]), []
    seen, done, total = {0}, 0, len(links)
    moments = {max(int(total * at), 1): at for at in SHARES}
    estimate.queued.append(0)
    while waiting or flying:
        while waiting and len(flying) < in_flight:
            flying.append(waiting.popleft() if order == "breadth first" else waiting.pop())
        page, depth = flying.pop(rng.choice([0, rng.randrange(len(flying))]))  # most answers come in order
        for link in links[page]:
            if link not in seen:
                seen.add(link)
                waiting.append((link, depth + 1))
                estimate.queued.append(depth + 1)
        estimate.finished.append(depth)
        done += 1
        if done in moments:
            low, high = estimate.left(len(seen) - done)
            yield Told(moments[done], total, done + low, math.inf if high is None else done + high)


def links_of(seed: int) -> Links:
    """Return the links of the site of *seed*, without traps."""
    pages = site(seed, traps=False)
    numbers, urls = {pages.start: 0}, [pages.start]
    links: Links = []
    for url in urls:
        hrefs = [unescape(href.decode()) for href in _hrefs(pages.page(url).body)]
        links.append([numbers.setdefault(urljoin(url, href), len(numbers)) for href in hrefs])
        urls += list(numbers)[len(urls) :]
    return links
