"""Crawls drawn sites under the loop guard, without a network, and counts the honest pages."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter, deque
from hashlib import blake2b
from html import unescape
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from scrapy.http import HtmlResponse, Response, TextResponse

from benchmarks import measure
from benchmarks.sites import Site, site
from benchmarks.sites.programs import PROGRAMS
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops import aliases, kinds, novelty
from scrapy_bloom.loops.limits import LoopOptions, objection_by
from scrapy_bloom.loops.novelty import NOTHING, Novelty
from scrapy_bloom.loops.share import Mark, Share

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.sites.draw import Answer
    from scrapy_bloom.loops.kinds import Node

AT = (1, 1.5, 2, 3)  # times the honest pages
DRY_PAGES = 150  # as many as a trap that brings nothing should take at most
COLUMNS = [
    "site", "honest pages", "% at 1 x", "1.5 x", "2 x", "3 x", "largest trap / section", f"dry traps over {DRY_PAGES}",
    "pages", "left", "CPU, s",
]  # fmt: skip
CONSTANTS = (
    (kinds, "BEGIN"), (kinds, "LATELY"), (kinds, "SECTION"), (kinds, "GIVE_UP"), (kinds, "OWN"), (aliases, "TOKENS"),
    (novelty, "ENOUGH"), (novelty, "LITTLE"),
)  # fmt: skip
_hrefs = re.compile(rb'<a href="?([^">]*)').findall


class Result(NamedTuple):
    """What a crawl came to."""

    at: dict[float, float]
    """The share of the honest pages, at each of AT."""
    by_part: Counter[str]
    """The pages of each section and trap."""
    pages: int
    waiting: int
    is_over: bool
    """Whether the guard ended the crawl."""
    cpu: float


def seeds(text: str) -> range:
    """Return the seeds of an option: ``0-9`` are ten."""
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def crawl(
    drawn: Site,
    budget: float = 2.0,
    *,
    fifo: bool = False,
    by_kind: bool = True,
    each_page: Callable[[int, Share, Node], None] | None = None,
) -> Result:
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

    def pop(lane: str) -> tuple[str, Mark]:
        url, mark = lanes[lane].popleft() if fifo else lanes[lane].pop()
        guard.handed_out(group, mark.lane)
        return url, mark

    push(drawn.start, None, _fingerprint(drawn.start))
    total, pages, is_over = len(drawn.honest), 0, False
    reached: set[str] = set()
    moments = {int(total * times): times for times in AT}
    at: dict[float, float] = {}
    by_part: Counter[str] = Counter()
    started = time.process_time()
    while group.waiting and pages < total * budget:
        lane = guard.choose(group) if by_kind else ""
        if lane is None:
            is_over = True
            break
        url, mark = pop(lane)
        pages += 1
        by_part[drawn.part_of(url)] += 1
        url, answer = _followed(drawn, url, seen)
        if answer is None:
            guard.page_done(mark, NOTHING)
            continue
        reached |= {drawn.content_of(url)} & drawn.honest.keys()
        if each_page:
            each_page(len(reached), guard, group)
        if pages in moments:
            at[moments[pages]] = len(reached) / total
        if answer.status != 200:
            guard.page_done(mark, NOTHING)
            continue
        guard.page_done(mark, judge.brought(_response(url, answer)), url)
        for target in dict.fromkeys(urljoin(url, href) for href in _links(answer)):
            fingerprint = _fingerprint(target)
            guard.links.add(fingerprint)
            if target not in seen:
                seen.add(target)
                if not objection(target):
                    push(target, mark, fingerprint)
    cpu = time.process_time() - started
    got = len(reached)
    return Result({times: at.get(times, got / total) for times in AT}, by_part, pages, group.waiting, is_over, cpu)


def _followed(drawn: Site, url: str, seen: set[str]) -> tuple[str, Answer | None]:
    """Return where a redirect at *url* leads, and the answer; no answer from what was *seen*."""
    answer = drawn.page(url)
    if answer.status != 302:
        return url, answer
    target = urljoin(url, answer.headers["Location"])
    if target in seen:
        return target, None
    seen.add(target)
    return target, drawn.page(target)


def _response(url: str, answer: Answer) -> Response:
    content_type = answer.headers["Content-Type"]
    if "octet" in content_type:
        return Response(url, body=answer.body)
    kind = HtmlResponse if "html" in content_type else TextResponse
    return kind(url, body=answer.body, encoding="utf-8")


def _links(answer: Answer) -> list[str]:
    if "html" in answer.headers["Content-Type"]:
        return [unescape(href.decode()) for href in _hrefs(answer.body)]
    links: list[str] = json.loads(answer.body)["links"] if answer.body[:1] == b"{" else []
    return links


def _fingerprint(url: str) -> bytes:
    return blake2b(url.encode(), digest_size=8).digest()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seeds", type=seeds, default="0-9", help="below 100 for tuning, 100 to 199 for scoring")
    parser.add_argument("--budget", type=float, default=2.0, help="pages, by the number of honest pages")
    parser.add_argument("--fifo", action="store_true")
    parser.add_argument("--honest", action="store_true", help="without traps")
    parser.add_argument("--programs", action="store_true", help="sites in the manner of real programs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--limits", action="store_true", help="without sharing by kinds, as in a fleet")
    how.add_argument("--constants", action="store_true", help="with half and twice each constant of the guard")
    how.add_argument("--hosts", type=int, nargs="+", help="what the guard costs with so many hosts, instead of a crawl")


def run(given: argparse.Namespace) -> None:
    """Crawl the sites of some seeds and print the share of honest pages fetched."""
    if given.hosts:
        sides = {f"{hosts:,} hosts": measure.Side(cost_with_hosts, {"hosts": hosts}) for hosts in given.hosts}
        measure.print_figures("the guard, of a page", measure.side_by_side(sides, 3))
        return
    if given.programs:
        sites = [(f"{program.__name__} {seed}", program(seed)) for program in PROGRAMS for seed in given.seeds]
    else:
        sites = [(str(seed), site(seed, traps=not given.honest)) for seed in given.seeds]
    if given.constants:
        compare_constants([drawn for _, drawn in sites], given)
    else:
        compare_sites(sites, given)


def cost_with_hosts(hosts: int, pages: int = 200_000) -> measure.Figures:
    """Return what the guard costs if *pages* are spread evenly over *hosts*, each in one of seven sections."""
    add = ScalableBloomFilter(1_000_000, 1e-3).add
    guard, judge = Share(add), Novelty(add)
    responses = []
    for number in range(pages):
        url = f"http://{number % hosts}.example/section{number // hosts % 7}/{number}"
        text = " ".join(f"w{number * prime % 9973}" for prime in range(1, 31))
        responses.append((url, f"<html><body><p>{text}</p></body></html>".encode()))
    before, started = measure.resident_bytes(), time.process_time()
    for url, body in responses:
        group = guard.group()
        mark = guard.mark(url, None, _fingerprint(url))
        guard.waiting(group, mark.lane, 1)
        guard.handed_out(group, guard.choose(group) or mark.lane)
        guard.page_done(mark, judge.brought(HtmlResponse(url, body=body, encoding="utf-8")), url)
    cpu = time.process_time() - started
    return {"CPU, us": cpu / pages * 1e6, "RAM, MB": (measure.resident_bytes() - before) / 1e6}


def compare_constants(sites: list[Site], given: argparse.Namespace) -> None:
    """Print the share of honest pages with each constant of the guard as it is, halved and doubled."""

    def scores() -> str:
        shares = [100 * crawl(drawn, given.budget, fifo=given.fifo).at[2] for drawn in sites]
        return f"{statistics.mean(shares):.1f} ({min(shares):.1f})"

    usual, rows = scores(), []
    for module, name in CONSTANTS:
        value = getattr(module, name)
        row = [name, str(value)]
        for factor in (0.5, 2):
            setattr(module, name, type(value)(value * factor))
            row.append(scores())
        setattr(module, name, value)
        rows.append(row)
    measure.print_table(["constant", "value", "mean (worst) with half", "with twice"], rows)
    print(f"\nas they are: {usual} % of the honest pages")


def compare_sites(sites: list[tuple[str, Site]], given: argparse.Namespace) -> None:
    """Print the share of honest pages of each site."""
    scores, ratios, rows = [], [], []
    for name, drawn in sites:
        result = crawl(drawn, given.budget, fifo=given.fifo, by_kind=not given.limits)
        traps = {name: pages for name, pages in result.by_part.items() if name.startswith("trap")}
        endless = {f"trap {trap.name}" for trap in drawn.traps if trap.brings_something}
        scores.append(result.at[2] * 100)
        ratios.append(max(traps.values(), default=0) / max(Counter(drawn.honest.values()).values()))
        dry = sum(pages > DRY_PAGES for name, pages in traps.items() if name not in endless)
        shares = [f"{part * 100:.1f}" for part in result.at.values()]
        end = f"{result.pages / len(drawn.honest):.2f} x" + " by itself" * result.is_over
        last = [f"{ratios[-1]:.2f}", str(dry), end, str(result.waiting), f"{result.cpu:.1f}"]
        rows.append([name, str(len(drawn.honest)), *shares, *last])
    measure.print_table(COLUMNS, rows)
    print(
        f"\nmedian {statistics.median(scores):.1f} mean {statistics.mean(scores):.1f} worst {min(scores):.1f} %;",
        f"largest trap, median {statistics.median(ratios):.2f} worst {max(ratios):.2f}",
    )
