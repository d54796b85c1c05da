"""How often the estimate of how many pages are left holds: documentation and drawn sites, without a network.

Each is crawled depth first and breadth first, with one request at a time and with 16. When so much of it is done, the
true number of pages is in the range that is told, or not. "2 x known" is the simplest range there is: from the pages
known to twice as many. At half of a crawl it always holds, whatever the site is like, and says the least.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections import deque
from html import unescape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urldefrag, urljoin

from benchmarks import loops, measure
from benchmarks.linksite import directory_pages
from benchmarks.sites import site
from benchmarks.sites.manuals import MANUALS, Links
from scrapy_bloom.crawl.estimate import Estimate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from scrapy_bloom.loops.kinds import Node

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
_hrefs = re.compile(rb"<a\s[^>]*?href\s*=\s*[\"']?([^\"'>\s]+)", re.IGNORECASE).findall


class Told(NamedTuple):
    """The range that was told of a crawl of *total* pages when a share of them, *at*, was done."""

    at: float
    total: int
    known: int
    low: int
    high: float
    """Infinite if it was too early to tell."""

    @classmethod
    def by(cls, estimate: Estimate, at: float, total: int, done: int, pending: int) -> Told:
        """Return what *estimate* tells."""
        low, high = estimate.left(pending)
        return cls(at, total, done + pending, done + low, math.inf if high is None else done + high)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument(
        "--seeds", type=loops.seeds, default="0-19", help="below 100 for tuning, 100 to 199 for scoring"
    )
    parser.add_argument("--trees", type=Path, nargs="*", default=[], metavar="DIR", help="documentation, as HTML")
    parser.add_argument("--traps", action="store_true", help="sites with traps, under the loop guard, instead")


def run(options: argparse.Namespace) -> None:
    """Crawl, and print how often the range held."""
    if options.traps:
        print_held("sites with traps, loop guard", [told for seed in options.seeds for told in guarded(seed)])
        return
    first = options.seeds[0]
    made = [make(random.Random(f"{make.__name__} {first}")) for make in MANUALS]
    trees = [tree(path) for path in options.trees] or made
    half = at_half("documentation", trees) + at_half("drawn sites", [drawn(seed) for seed in options.seeds])
    widest = max(each.high / each.low for each in half)
    print(f"At half of the crawl, {held(half)} of {len(half)} ranges hold; the widest is {widest:.2f} : 1")


def at_half(name: str, graphs: list[Links]) -> list[Told]:
    """Crawl *graphs*, print how often the range held, and return what was told when half of the pages were done."""
    half: list[Told] = []
    for order in ("depth first", "breadth first"):
        told = [told for links in graphs for width in (1, 16) for told in crawl(links, order, width)]
        half += [each for each in told if each.at == 0.5]
        print_held(f"{name}, {order}", told)
    return half


def print_held(title: str, told: list[Told]) -> None:
    """Print a table with a row for each moment."""
    rows = []
    for at in SHARES:
        ones = [each for each in told if each.at == at]
        ends = [each.high / each.low for each in ones if each.high < math.inf]
        too_high = sum(each.low > each.total for each in ones)
        doubled = sum(each.known <= each.total <= 2 * each.known for each in ones)
        width = f"{statistics.median(ends):.2f}" if ends else "-"
        shares = [f"{number / len(ones):.0%}" for number in (too_high, len(ones) - len(ends), doubled)]
        rows.append([f"{at:.0%}", held(ones), width, *shares])
    measure.print_table([f"{title}; done", "holds", "ends, x : 1", "too high", "too early", "2 x known"], rows)
    print()


def held(told: list[Told]) -> str:
    """Return in how many of *told* the range holds."""
    return f"{sum(each.low <= each.total <= each.high < math.inf for each in told) / len(told):.0%}"


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
            yield Told.by(estimate, moments[done], total, done, len(seen) - done)


def guarded(seed: int) -> list[Told]:
    """Crawl the site of *seed* with its traps under the loop guard; left are honest pages."""
    crawled, estimate, told, done = site(seed), Estimate(), [], count(1)
    total = len(crawled.honest)
    moments = {int(total * at): at for at in SHARES}

    def look(honest: int, share: loops.Share, group: Node) -> None:
        estimate.finished.append(0)
        pages = next(done)
        if honest in moments:
            estimate.promise, _ = share.promise([group])
            told.append(Told.by(estimate, moments.pop(honest), pages + total - honest, pages, group.waiting))

    loops.crawl(crawled, 12, each_page=look)
    return told


def numbered(start: str, find: Callable[[str], list[str]]) -> Links:
    """Return the links of all pages that are reached from *start*."""
    numbers, urls = {start: 0}, [start]
    links: Links = []
    for url in urls:
        links.append([numbers.setdefault(found, len(numbers)) for found in find(url)])
        urls += list(numbers)[len(urls) :]
    return links


def drawn(seed: int) -> Links:
    """Return the links of the site of *seed*, without traps."""
    pages = site(seed, traps=False)
    return numbered(pages.start, lambda url: [urljoin(url, each) for each in _texts(pages.page(url).body)])


def tree(directory: Path) -> Links:
    """Return the links of the HTML files in *directory*."""
    starts, page = directory_pages(directory)

    def find(path: str) -> list[str]:
        body = page(path) if path.endswith(("/", ".html", ".htm")) else None
        targets = [urldefrag(urljoin(f"http://docs{path}", each))[0] for each in _texts(body or b"")]
        return [each.removeprefix("http://docs") for each in targets if each.startswith("http://docs/")]

    return numbered(starts[0], find)


def _texts(body: bytes) -> list[str]:
    return [unescape(href.decode(errors="replace")) for href in _hrefs(body)]
