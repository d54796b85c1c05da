"""Crawls drawn sites under the loop guard, without a network, and counts the honest pages."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from scrapy.http import HtmlResponse, TextResponse

from benchmarks import measure
from benchmarks.sites import Site, site
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops.limits import LoopOptions, objection_by
from scrapy_bloom.loops.novelty import NOTHING, Novelty
from scrapy_bloom.loops.share import Share

if TYPE_CHECKING:
    import argparse

DRY_PAGES = 150  # as many as a trap that brings nothing should take at most
COLUMNS = [
    "seed", "honest pages", "% at 1 x", "1.5 x", "2 x", "3 x", "largest trap / section", f"dry traps over {DRY_PAGES}",
    "pages", "left", "CPU, s",
]  # fmt: skip
_hrefs = re.compile(rb'<a href="?([^">]*)').findall


class Result:
    """What a crawl came to: the share of honest pages at each budget, the pages of each part of the site."""

    def __init__(self) -> None:
        self.at: dict[float, float] = {}
        self.by_part: Counter[str] = Counter()
        self.pages = 0
        self.cpu = 0.0
        self.ended = False


def crawl(
    drawn: Site, budget: float = 2.0, *, fifo: bool = False, at=(1, 1.5, 2, 3), missing: bool = False, each_page=None
) -> Result:
    """Crawl *drawn* with *budget* times its honest pages, and note the share of them at each of *at* times."""
    objection = objection_by(LoopOptions())
    share, novelty = Share(), Novelty(ScalableBloomFilter(1_000_000, 1e-3).add)
    group = share.group()
    lanes: dict[str, list] = {}
    seen = {drawn.start}
    result = Result()

    def push(url, origin):
        mark = share.mark(url, origin)
        lanes.setdefault(mark.lane, []).append((url, mark))
        share.waiting(group, mark.lane, 1)

    push(drawn.start, None)
    honest = len(drawn.honest)
    got = 0
    marks = [int(honest * f) for f in at]
    started = time.process_time()
    while len(group) and result.pages < honest * budget:
        if result.pages % 20 == 0 and share.is_over([group]):
            result.ended = True
            break
        lane = share.choose(group)
        queue = lanes[lane]
        url, mark = queue.pop(0) if fifo else queue.pop()
        share.handed_out(group, lane)
        asked = url
        answer = drawn.page(url)
        if answer.status == 302:
            target = urljoin(url, answer.headers["Location"])
            if target in seen:
                result.pages += 1
                result.by_part[drawn.part_of(asked)] += 1
                share.page_done(mark, NOTHING)
                continue
            seen.add(target)
            url = target
            answer = drawn.page(url)
        result.pages += 1
        got += url in drawn.honest
        result.by_part[drawn.part_of(asked)] += 1
        if each_page is not None:
            each_page(got, share, group)
        if result.pages in marks:
            result.at[at[marks.index(result.pages)]] = got / honest
        if answer.status != 200:
            share.page_done(mark, NOTHING)
            continue
        kind = HtmlResponse if "html" in answer.headers["Content-Type"] else TextResponse
        response = kind(url, body=answer.body, encoding="utf-8")
        brought = novelty.brought(response)
        origin = share.page_done(mark, brought, url)
        if kind is HtmlResponse:
            found = [unescape(h.decode()) for h in _hrefs(answer.body)]
        else:
            found = json.loads(answer.body)["links"] if answer.body[:1] == b"{" else []
        for href in found:
            target = urljoin(url, href)
            if target not in seen:
                seen.add(target)
                if not objection(target):
                    push(target, origin)
    result.cpu = time.process_time() - started
    for f in at:
        result.at.setdefault(f, got / honest)
    result.waiting = len(group)
    result.missing = Counter(drawn.honest[u] for u in drawn.honest if u not in seen)
    result.share = share
    result.lanes = lanes
    if missing:
        done = Counter({n: c for n, c in result.by_part.items() if not n.startswith("trap")})
        total = Counter(drawn.honest.values())
        print("   missed", {n: f"{done[n]}/{c}" for n, c in total.items() if done[n] < c})
        print("   traps", {n[5:]: c for n, c in result.by_part.most_common() if n.startswith("trap")})
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seeds", default="0-9", help="below 100 for tuning, 100 to 199 for scoring")
    parser.add_argument("--budget", type=float, default=2.0, help="pages, by the number of honest pages")
    parser.add_argument("--fifo", action="store_true")
    parser.add_argument("--honest", action="store_true", help="without traps")
    parser.add_argument("-v", action="store_true", help="what was missed, and what each trap took")


def run(given: argparse.Namespace) -> None:
    """Crawl the sites of some seeds and print the share of honest pages fetched."""
    first, last = map(int, given.seeds.split("-"))
    scores, ratios, rows = [], [], []
    for seed in range(first, last + 1):
        drawn = site(seed, traps=not given.honest)
        r = crawl(drawn, given.budget, fifo=given.fifo, missing=given.v)
        traps = {name: pages for name, pages in r.by_part.items() if name.startswith("trap")}
        endless = {f"trap {trap.name}" for trap in drawn.traps if trap.brings_something}
        honest = len(drawn.honest)
        scores.append(r.at.get(2, r.at[1]) * 100)
        ratios.append(max(traps.values(), default=0) / max(Counter(drawn.honest.values()).values()))
        dry = sum(pages > DRY_PAGES for name, pages in traps.items() if name not in endless)
        shares = [f"{share * 100:.1f}" for share in r.at.values()]
        end = f"{r.pages / honest:.2f} x" + " by itself" * r.ended
        rows.append(
            [str(seed), str(honest), *shares, f"{ratios[-1]:.2f}", str(dry), end, str(r.waiting), f"{r.cpu:.1f}"]
        )
    measure.print_table(COLUMNS, rows)
    print(
        f"\nmedian {statistics.median(scores):.1f} mean {statistics.mean(scores):.1f} worst {min(scores):.1f} %;",
        f"largest trap, median {statistics.median(ratios):.2f} worst {max(ratios):.2f}",
    )
