"""DurableScheduler beside Scrapy's own scheduler with JOBDIR: a whole crawl, and a queue of many pending requests.

The crawl is the same as in ``crawl``, with BloomDupeFilter on both sides; here the time by the clock counts as well, as
waiting for the disk takes no CPU time. The queue is filled, opened anew, pushed to once more, and popped from twice as
often. Every measurement is in a process of its own.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawl import crawl_in_own_process, served

if TYPE_CHECKING:
    import argparse

DURABLE, SCRAPY = "DurableScheduler", "Scrapy's scheduler"
SCHEDULERS = {SCRAPY: "scrapy.core.scheduler.Scheduler", DURABLE: "scrapy_bloom.DurableScheduler"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=300, help="pages of the crawl (default: %(default)s)")
    parser.add_argument("--links", type=int, default=30, help="links of each page (default: %(default)s)")
    parser.add_argument("--pending", type=int, default=50_000, help="requests in the queue (default: %(default)s)")
    parser.add_argument("--work", type=int, default=10_000, help="pushed and popped on top (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--large", action="store_true", help="the same as --pages 2000 --pending 1000000 --work 50000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print two tables."""
    measure.print_environment("Scrapy", "queuelib")
    pages, pending, work = (
        (2_000, 1_000_000, 50_000) if options.large else (options.pages, options.pending, options.work)
    )
    picture = _compare_crawls(pages, options.links, options.rounds)
    _compare_queues(pending, work, options.rounds)
    return picture


def _compare_crawls(pages: int, links: int, rounds: int) -> measure.Picture:
    def crawled(side: str, url: str) -> dict[str, Any]:
        settings = {"SCHEDULER": SCHEDULERS[side], "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
        return crawl_in_own_process(url, "LinkSpider", settings, has_jobdir=True)

    with served(["--pages", str(pages), "--links", str(links)]) as url:
        found = measure.side_by_side(
            {side: lambda side=side: crawled(side, url) for side in SCHEDULERS},
            rounds,
        )
    if len({one["pages_digest"] for ones in found.values() for one in ones}) != 1:
        raise AssertionError("not all crawls fetched the same pages")
    print(
        f"{pages:,} generated pages with {links} links each. Scrapy's time over ours (lowest-highest); medians of "
        f"{rounds} interleaved crawls\n"
    )
    rows = []
    drawn = {}
    for side, ones in found.items():
        ratios = [measure.ratios([s[clock] for s in found[SCRAPY]], [one[clock] for one in ones]) for clock in _CLOCKS]
        drawn[side] = measure.Spread.of([pages / one["wall"] * 60 for one in ones])
        cpu = measure.Spread.of([one["cpu"] for one in ones]).median
        rows.append([side, *(f"{ratio:.2f}" for ratio in ratios), f"{drawn[side].median:.0f}", f"{cpu:.2f}"])
    measure.print_table(["", "times as fast, CPU", "by the clock", "pages a minute", "CPU s"], rows)
    return measure.Picture(f"A crawl of {pages:,} pages with JOBDIR", "pages a minute", drawn)


_CLOCKS = ("cpu", "wall")


def _compare_queues(pending: int, work: int, rounds: int) -> None:
    def measured(side: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as directory:
            found: dict[str, float] = measure.in_own_process(
                "benchmarks.frontier", scheduler=SCHEDULERS[side], jobdir=directory, pending=pending, work=work
            )
        return found

    found = measure.side_by_side({side: lambda side=side: measured(side) for side in SCHEDULERS}, rounds)
    print(
        f"{pending:,} requests pending, {work:,} pushed on top and twice as many popped; by the clock, medians of "
        f"{rounds}\n"
    )
    figures = ("fill_us", "work_us", "open_s", "memory_mb")
    rows = []
    for side, ones in found.items():
        ratio = measure.ratios([one["work_us"] for one in found[SCRAPY]], [one["work_us"] for one in ones])
        medians = [measure.Spread.of([one[figure] for one in ones]).median for figure in figures]
        rows.append([side, f"{ratio:.2f}", *(f"{median:.2f}" for median in medians)])
    header = [
        "",
        "times as fast, pushing and popping",
        "push, us",
        "one push and two pops, us",
        "opening, s",
        "RAM more, MB",
    ]
    measure.print_table(header, rows)


def _queue(scheduler: str, jobdir: str, pending: int, work: int) -> dict[str, float]:
    """Fill a queue, open it anew, and push and pop *work* requests more, as an engine does."""
    from tests.frontier.schedulers import EngineCalls  # an engine that downloads nothing

    logging.disable(logging.WARNING)  # that a filter which filters nothing is not durable

    def opened() -> Any:
        return EngineCalls(Path(jobdir), scheduler, DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter")

    calls = opened()
    _push(calls, 0, 100)
    calls.drain()
    before = measure.resident_bytes()
    filling = _push(calls, 0, pending)
    calls.stop()
    start = time.perf_counter()
    calls = opened()
    opening = time.perf_counter() - start
    working = _push(calls, pending, work)
    start = time.perf_counter()
    for _ in range(work + min(work, pending)):  # down to those that have come back from disk
        request = calls.scheduler.next_request()
        calls.engine._slot.add_request(request)
        calls.engine._slot.inprogress.remove(request)
    working += time.perf_counter() - start
    memory = measure.resident_bytes() - before
    calls.stop()
    return {
        "fill_us": filling / pending * 1e6,
        "work_us": working / work * 1e6,
        "open_s": opening,
        "memory_mb": memory / 1e6,
    }


def _push(calls: Any, first: int, count: int) -> float:
    """Push *count* requests to three hosts, with the meta of an ordinary crawl; return the seconds it takes."""
    from scrapy import Request

    start = time.perf_counter()
    push = calls.scheduler.enqueue_request
    for n in range(first, first + count):
        meta = {"depth": n % 9, "link_text": "a link", "download_slot": f"slot-{n % 3}"}
        push(Request(f"http://127.0.0.1/products/{n}?page={n % 7}", meta=meta))
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(_queue(**json.loads(sys.argv[1]))))
