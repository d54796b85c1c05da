"""DurableScheduler beside Scrapy's own scheduler with JOBDIR: whole crawls, and a queue of many pending requests.

The crawl begins with a job directory in which the first pages of a generated site wait: once these alone, once with
many more requests below them in priority. It ends before it has fetched the whole site, so their turn
never comes; nothing could send their scheme anyway. Both sides use BloomDupeFilter. Times run from the opening of the
spider to the last page, by the clock too, as waiting for the disk takes no CPU time.

The queue is filled, opened anew, pushed to once more, and popped from twice as often. Every measurement is in a process
of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawl import local_root, served

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

DURABLE, SCRAPY = "DurableScheduler", "Scrapy's scheduler"
SCHEDULERS = {SCRAPY: "scrapy.core.scheduler.Scheduler", DURABLE: "scrapy_bloom.DurableScheduler"}

SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    # The same in every version, or each process would sort anew the queue that the last one filled.
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
}

SEEDS = 512
"""Pages that wait at the beginning, so that there is always one to fetch before those of low priority: Scrapy 2.13 had
160 in flight before the first callback was done."""

RESERVE = 500
"""Pages of the site that are left when a crawl ends, for the same reason. The more is in flight, the more it takes."""

LOW = -1000
"""A priority below that of every page."""

UNSENDABLE = "pending"
"""Scheme of the requests that only wait. Their host is the site's, to be in one download slot with its pages."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=250, help="pages of each crawl (default: %(default)s)")
    parser.add_argument("--links", type=int, default=30, help="links of each page (default: %(default)s)")
    parser.add_argument("--pending", type=int, default=30_000, help="requests in the queue (default: %(default)s)")
    parser.add_argument("--work", type=int, default=10_000, help="pushed and popped on top (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--large",
        action="store_true",
        help="the same as --pages 2000 --pending 1000000 --work 50000, and five rounds of the crawls",
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print two tables."""
    measure.print_environment("Scrapy", "queuelib")
    pages, pending, work = (
        (2_000, 1_000_000, 50_000) if options.large else (options.pages, options.pending, options.work)
    )
    rounds = max(5, options.rounds) if options.large else options.rounds
    picture = compare_crawls(pages, options.links, pending, rounds)
    _compare_queues(pending, work, options.rounds)
    return picture


# -- crawls ------------------------------------------------------------------------------------------------------------


def compare_crawls(pages: int, links: int, pending: int, rounds: int) -> measure.Picture:
    """Crawl with and without *pending* requests below the pages; print a table and the targets."""
    sides = [(side, count) for count in (0, pending) for side in SCHEDULERS]
    with (
        served(["--pages", str(pages + SEEDS + RESERVE), "--links", str(links)]) as url,
        tempfile.TemporaryDirectory() as directory,
    ):
        filled = {side: Path(directory, str(number)) for number, side in enumerate(sides)}
        for (side, count), job in filled.items():
            measure.in_own_process(_fill, scheduler=SCHEDULERS[side], jobdir=str(job), url=url, pending=count)

        def crawled(side: tuple[str, int]) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=directory) as copies:
                job = shutil.copytree(filled[side], Path(copies, "job"))
                if hasattr(os, "sync"):
                    os.sync()  # or the disk is busy with the copy, and each commit of ours waits for it
                return measure.in_own_process(
                    _crawl, scheduler=SCHEDULERS[side[0]], jobdir=str(job), url=url, pages=pages
                )

        found = measure.side_by_side({side: lambda side=side: crawled(side) for side in sides}, rounds)
    for (_, count), ones in found.items():
        if any(one["left"] < count for one in ones):
            raise AssertionError(f"some of the {count:,} requests that should only wait have had their turn")
    print(
        f"{pages:,} of {pages + SEEDS + RESERVE:,} generated pages with {links} links each. Scrapy's time over ours "
        f"(lowest-highest), then\nmedians of {rounds} interleaved crawls; RAM at its peak, opening included\n"
    )
    rows = []
    drawn = {}
    for (side, count), ones in found.items():
        theirs = found[SCRAPY, count]
        ratios = [measure.ratios([one[clock] for one in theirs], [one[clock] for one in ones]) for clock in _CLOCKS]
        name = f"{side}, {count:,} pending"
        drawn[name] = measure.Spread.of([pages / one["wall"] * 60 for one in ones])
        cpu, peak = (measure.Spread.of([one[figure] for one in ones]).median for figure in ("cpu", "peak_mb"))
        rates = [f"{ratio:.2f}" for ratio in ratios]
        rows.append([name, *rates, f"{drawn[name].median:.0f}", f"{cpu:.2f}", f"{peak:.0f}"])
    measure.print_table(["", "times as fast, CPU", "by the clock", "pages a minute", "CPU s", "RAM, MB"], rows)
    for count in dict.fromkeys((0, pending)):
        ratio = measure.ratios(*([one["wall"] for one in found[side, count]] for side in (SCRAPY, DURABLE)))
        measure.print_target(
            f"frontier, pages a minute with {count:,} pending over Scrapy's", ratio.median, at_least=0.9
        )
    more = {
        side: measure.Spread.of(
            [
                full["peak_mb"] - empty["peak_mb"]
                for full, empty in zip(found[side, pending], found[side, 0], strict=True)
            ]
        ).median
        for side in SCHEDULERS
    }
    measure.print_target(
        f"frontier, MB of RAM more with {pending:,} pending ({SCRAPY}: {round(more[SCRAPY])})",
        more[DURABLE],
        at_most=150,
    )
    print()
    return measure.Picture(f"A crawl of {pages:,} pages with JOBDIR", "pages a minute", drawn)


_CLOCKS = ("cpu", "wall")


def _fill(scheduler: str, jobdir: str, url: str, pending: int) -> dict[str, float]:
    """Make a job directory in which the first pages of the site wait, and *pending* requests that cannot be sent."""
    from scrapy import Request

    from tests.old.support.schedulers import EngineCalls

    logging.disable(logging.WARNING)  # that a queue of Scrapy's is lost if it is killed
    calls = EngineCalls(Path(jobdir), scheduler, **SETTINGS)
    for n in range(pending):
        meta = {"depth": n % 9, "link_text": "a link"}
        calls.push(Request(f"{UNSENDABLE}://127.0.0.1/products/{n}?page={n % 7}", meta=meta, priority=LOW))
    root = local_root(url)
    calls.push(*(Request(f"{root}page/{n}.html") for n in range(SEEDS)))
    calls.stop()
    return {}


def _crawl(
    scheduler: str,
    jobdir: str,
    url: str,
    pages: int,
    settings: Mapping[str, Any] = MappingProxyType({}),
    clocks: Mapping[str, Callable[[], float]] = MappingProxyType({}),
) -> dict[str, float]:
    """Go on with the job until *pages* pages were parsed; return the times from the opening of the spider to then.

    *clocks* are asked at both moments, too; what they have gone on by is returned under their names.
    """
    from scrapy import Spider, signals
    from scrapy.crawler import CrawlerProcess
    from scrapy.exceptions import CloseSpider
    from scrapy.linkextractors import LinkExtractor

    from tests.old.support.schedulers import PlainSpider

    root = local_root(url)
    seen: set[str] = set()
    extractor = LinkExtractor()
    found: dict[str, float] = {}
    begun: dict[str, float] = {}
    clocks = {"cpu": time.process_time, "wall": time.perf_counter, **clocks}

    class LinkSpider(Spider):
        name = PlainSpider.name  # the job was begun under it

        def parse(self, response: Any) -> Any:
            seen.add(response.url)
            if len(seen) < pages:
                yield from response.follow_all(
                    [link for link in extractor.extract_links(response) if link.url.startswith(root)]
                )
                return
            if not found:
                found.update({name: clock() - begun[name] for name, clock in clocks.items()})
                found["left"] = len(crawler.engine._slot.scheduler)
            raise CloseSpider("pages")

    process = CrawlerProcess(
        {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False, "DOWNLOAD_DELAY": 0}
        | {"HTTPERROR_ALLOW_ALL": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "JOBDIR": jobdir, "SCHEDULER": scheduler}
        | SETTINGS
        | dict(settings)
    )
    crawler: Any = process.create_crawler(LinkSpider)

    def opened() -> None:
        begun.update({name: clock() for name, clock in clocks.items()})

    crawler.signals.connect(opened, signals.spider_opened)
    process.crawl(crawler)
    process.start()
    return {**found, "peak_mb": measure.peak_bytes() / 1e6}


# -- the queue alone ---------------------------------------------------------------------------------------------------


def _compare_queues(pending: int, work: int, rounds: int) -> None:
    def measured(side: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as directory:
            return measure.in_own_process(
                _queue, scheduler=SCHEDULERS[side], jobdir=directory, pending=pending, work=work
            )

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
    from tests.old.support.schedulers import EngineCalls  # an engine that downloads nothing

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
