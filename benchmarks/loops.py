"""Crawls sites with traps under the loop guard, without a network, and counts the honest pages."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from html import unescape
from typing import NamedTuple
from urllib.parse import urljoin

from benchmarks import measure
from benchmarks.sites import Site, draw
from benchmarks.sites.programs import GROUPS, NAMED
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops import aliases, kinds, novelty
from scrapy_bloom.loops.limits import LoopOptions, objection_by
from scrapy_bloom.loops.novelty import NOTHING, Answer, Novelty
from scrapy_bloom.loops.share import Mark, Share
from scrapy_bloom.url.canonical import canonicalize_url
from scrapy_bloom.url.rules import resolve

AT = (1, 2)  # times the honest pages
ORDERS = {"lifo": False, "fifo": True}
CONSTANTS = ("BEGIN", "LATELY", "SECTION", "GIVE_UP", "OWN", "TOKENS", "ENOUGH", "COMMON")
GUARD = (kinds, aliases, novelty)
"""The modules with these constants; some of them in two."""
_hrefs = re.compile(rb'<a href="?([^">]*)').findall


class Result(NamedTuple):
    """What a crawl came to."""

    at: dict[int, float]
    """The share of the honest pages, at each of AT."""
    by_part: Counter[str]
    """The pages of each section and trap."""
    pages: int
    waiting: int
    is_over: bool
    """Whether the guard ended the crawl."""
    share: float
    """The share of the honest pages at its end."""
    advice: list[str]
    """The URL rules that the guard suggests."""
    seen: set[str]
    """All URLs that were linked to."""


def seeds(text: str) -> range:
    """Return the seeds of an option: ``0-9`` are ten."""
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def crawl(drawn: Site, budget: float = 2.0, *, fifo: bool = False, by_kind: bool = True) -> Result:
    """Crawl *drawn* with *budget* times its honest pages. Unless *by_kind*, the guard only limits URLs."""
    objection = objection_by(LoopOptions())
    add = ScalableBloomFilter(1_000_000, 1e-3).add
    guard, judge = Share(add), Novelty(add)
    group = guard.group()
    lanes: dict[str, deque[tuple[str, Mark]]] = {}
    seen = {drawn.start}

    def push(url: str, origin: Mark | None, fingerprint: bytes) -> None:
        mark = guard.mark(url, origin, fingerprint)
        lanes.setdefault(mark.lane if by_kind else "", deque()).append((url, mark))
        guard.waiting(group, mark.lane, 1)

    push(drawn.start, None, _fingerprint(drawn.start))
    total, is_over = len(drawn.honest), False
    reached: set[str] = set()
    shares: list[float] = []
    by_part: Counter[str] = Counter()
    while group.waiting and len(shares) < total * budget:
        lane = guard.choose(group) if by_kind else ""
        if lane is None:
            is_over = True
            break
        url, mark = lanes[lane].popleft() if fifo else lanes[lane].pop()
        guard.handed_out(group, mark.lane)
        by_part[drawn.part_of(url)] += 1
        url, answer = _followed(drawn, url, seen)
        if answer is not None:
            reached |= {drawn.content_of(url)} & drawn.honest.keys()
        shares.append(len(reached) / total)
        if answer is None or answer.status != 200:
            guard.page_done(mark, NOTHING)
            continue
        form = "markup" if "html" in answer.headers["Content-Type"] else "text"
        guard.page_done(mark, judge.brought(Answer(url, answer.body, form)), url)
        for target, fingerprint in _new_links(url, answer, guard, seen):
            if not objection(target):
                push(target, mark, fingerprint)
    at = {times: shares[min(total * times, len(shares)) - 1] for times in AT}
    advice = sorted({rule for alias in guard.aliases.believed() if (rule := alias.rule())})
    return Result(at, by_part, len(shares), group.waiting, is_over, shares[-1], advice, seen)


def merged(drawn: Site, rule: str, urls: Iterable[str]) -> set[str]:
    """Return the honest pages that *rule* takes for others, of those that *urls* and the site's own lead to."""
    apply, by_form = resolve([rule]).apply, dict[str, set[str]]()
    for url in {*urls, *drawn.honest}:
        content = drawn.content_of(url)
        if content in drawn.honest:
            by_form.setdefault(apply(canonicalize_url(url)), set()).add(content)
    return {content for contents in by_form.values() if len(contents) > 1 for content in contents}


def _followed(drawn: Site, url: str, seen: set[str]) -> tuple[str, draw.Answer | None]:
    """Return where a redirect at *url* leads, and the answer; no answer from what was *seen*."""
    answer = drawn.page(url)
    if answer.status != 302:
        return url, answer
    target = urljoin(url, answer.headers["Location"])
    if target in seen:
        return target, None
    seen.add(target)
    return target, drawn.page(target)


def _new_links(url: str, answer: draw.Answer, guard: Share, seen: set[str]) -> Iterator[tuple[str, bytes]]:
    """Tell *guard* of all links of a page, and yield those to what was not *seen*, with their fingerprints."""
    for target in dict.fromkeys(urljoin(url, href) for href in _links(answer)):
        fingerprint = _fingerprint(target)
        guard.links.add(fingerprint)
        if target not in seen:
            seen.add(target)
            yield target, fingerprint


def _links(answer: draw.Answer) -> list[str]:
    if "html" in answer.headers["Content-Type"]:
        return [unescape(href.decode()) for href in _hrefs(answer.body)]
    links: list[str] = json.loads(answer.body)["links"] if answer.body[:1] == b"{" else []
    return links


def _fingerprint(url: str) -> bytes:
    return blake2b(url.encode(), digest_size=8).digest()


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Crawl the sites of some seeds and print the share of honest pages fetched."""
    parser.add_argument("--seeds", type=seeds, default="0-9", help="below 100 for tuning, 100 to 199 for scoring")
    parser.add_argument("--budget", type=float, default=2.0, help="pages, by the number of honest pages")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=[*ORDERS])
    parser.add_argument("--programs", nargs="*", metavar="NAME", help=f"instead: {', '.join(GROUPS)}, or one of these")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--limits", action="store_true", help="without sharing by kinds, as in a fleet")
    how.add_argument("--constants", action="store_true", help="with half and twice each constant of the guard")
    given = parser.parse_args(arguments)
    groups = ["drawn"] if given.programs is None else given.programs or [name for name in GROUPS if name != "drawn"]
    names = [name for group in groups for name in GROUPS.get(group, [group])]
    if given.constants:
        compare_constants([partial(NAMED[name], seed) for name in names for seed in given.seeds], given)
    else:
        compare_sites([(name, seed) for name in names for seed in given.seeds], given)


def compare_constants(sites: list[Callable[[], Site]], given: argparse.Namespace) -> None:
    """Print the share of honest pages with each constant of the guard as it is, halved and doubled."""

    def scores() -> list[str]:
        found = []
        for order in given.orders:
            shares = [100 * crawl(draw(), given.budget, fifo=ORDERS[order]).at[2] for draw in sites]
            found.append(f"{statistics.mean(shares):.1f} ({min(shares):.1f})")
        return found

    rows = [["as they are", "", *scores(), *[""] * len(given.orders)]]
    for name in CONSTANTS:
        modules = [module for module in GUARD if hasattr(module, name)]
        value = getattr(modules[0], name)
        row = [name, str(value)]
        for other in (type(value)(value / 2), value * 2, value):
            for module in modules:
                setattr(module, name, other)
            row += scores() if other != value else []
        rows.append(row)
    heads = [f"{order}, {how}: mean (worst), %" for how in ("half", "twice") for order in given.orders]
    measure.print_table(["constant", "value", *heads], rows)


def compare_sites(sites: list[tuple[str, int]], given: argparse.Namespace) -> None:
    """Print what becomes of each site in each order."""
    shares: dict[str, list[float]] = {}
    rows = []
    for name, seed in sites:
        for order in given.orders:
            drawn = NAMED[name](seed)
            result = crawl(drawn, given.budget, fifo=ORDERS[order], by_kind=not given.limits)
            columns = row_of(drawn, result)
            shares.setdefault(order, []).append(result.at[2] * 100)
            bad = {rule: len(merged(drawn, rule, result.seen)) for rule in result.advice}
            advice = [rule.partition("@")[0] + f" (merges {count:,})" * bool(count) for rule, count in bad.items()]
            rows.append([f"{name} {seed}", order, f"{len(drawn.honest):,}", *columns, ", ".join(advice)])
    heads = ["% at 1 x", "2 x", "largest trap", "/ section", "ended"]
    measure.print_table(["site", "order", "honest", *heads, "advice"], rows)
    for order, of in shares.items():
        print(f"{order}: median {statistics.median(of):.1f} mean {statistics.mean(of):.1f} worst {min(of):.1f} %")


def row_of(drawn: Site, result: Result) -> list[str]:
    """Return the cells of a crawl that came to *result*."""
    traps = {part: pages for part, pages in result.by_part.items() if part.startswith("trap")}
    largest = max(traps, key=lambda part: traps[part], default="")
    pages, total = traps.get(largest, 0), len(drawn.honest)
    end = "whole" if not result.waiting else f"given up at {result.share:.1%}" if result.is_over else "budget"
    ratio = pages / max(Counter(drawn.honest.values()).values())
    shares = [f"{result.at[times] * 100:.1f}" for times in AT]
    cells = [*shares, f"{pages:,} {largest.removeprefix('trap ')}", f"{ratio:.2f}"]
    return [*cells, f"{result.pages / total:.2f} x, {end}"]
