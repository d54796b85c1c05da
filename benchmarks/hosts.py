"""Many hosts: what a request costs to hand out with ten of them and with a hundred thousand, beside Scrapy's queue.

Requests are spread evenly over the hosts, two each at the largest number, and pushed into a scheduler with JOBDIR whose
downloader is busy with as many requests as a crawl's would be. Pops are timed, each followed by has_pending_requests()
and by the push of another request to a random host, as an engine does; the thread that writes counts too, up to and
with the commit of all that was done. Scrapy's scheduler keeps its requests in memory here: on disk it opens a file per
host, and ends with "Too many open files" at a few thousand. Every measurement is in a process of its own; CPU time. A
round measures all numbers of hosts, so that what is compared was measured within a minute or two.
"""

from __future__ import annotations

import gc
import logging
import random
import time
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import measure

if TYPE_CHECKING:
    import argparse

SCRAPY, SCRAPY_OURS, DURABLE = "Scrapy", "Scrapy with SlotQueue", "DurableScheduler"
SCRAPYS = "scrapy.pqueues.DownloaderAwarePriorityQueue"
SIDES = {
    SCRAPY: ("scrapy.core.scheduler.Scheduler", SCRAPYS),
    SCRAPY_OURS: ("scrapy.core.scheduler.Scheduler", "scrapy_bloom.SlotQueue"),
    DURABLE: ("scrapy_bloom.DurableScheduler", SCRAPYS),
}

IN_FLIGHT = 16
"""Requests with the downloader: Scrapy's default for ``CONCURRENT_REQUESTS``."""

_WORK_SECONDS = 2.0
"""After which a side has shown what it costs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=[10, 1_000, 20_000], help="numbers of hosts (default: %(default)s)"
    )
    parser.add_argument("--work", type=int, default=5_000, help="requests to hand out (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--large", action="store_true", help="the same as --hosts 10 1000 20000 100000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print two tables."""
    measure.print_environment("Scrapy")
    counts = sorted([10, 1_000, 20_000, 100_000] if options.large else options.hosts)
    pending = 2 * counts[-1]
    found = measure.side_by_side(
        {
            (hosts, side): lambda side=side, hosts=hosts: measure.in_own_process(
                _work, side=side, hosts=hosts, pending=pending, work=options.work
            )
            for side in SIDES
            for hosts in counts
        },
        options.rounds,
    )
    print(
        f"{pending:,} requests pending. Microseconds of CPU time for one request handed out and one pushed, medians of "
        f"{options.rounds} (lowest-highest)\n"
    )
    spreads = {each: measure.Spread.of([one["us"] for one in ones]) for each, ones in found.items()}
    rows = [[f"{hosts:,}", *(f"{spreads[hosts, side]:.0f}" for side in SIDES)] for hosts in counts]
    measure.print_table(["hosts", *SIDES], rows)
    opened = measure.side_by_side(
        {DURABLE: lambda: measure.in_own_process(_open, DURABLE, counts[-1], pending)}, options.rounds
    )[DURABLE]
    medians = {name: measure.Spread.of([one[name] for one in opened]) for name in ("wall", "peak_mb")}
    print(f"{DURABLE} with {pending:,} requests for {counts[-1]:,} hosts in its job directory\n")
    measure.print_table(["", "opening, s", "RAM at its peak, MB"], [[DURABLE, *(f"{m:.2f}" for m in medians.values())]])
    fewest, most = counts[0], counts[-1]
    for side in (SCRAPY_OURS, DURABLE):
        ratio = measure.ratios(*([one["us"] for one in found[hosts, side]] for hosts in (most, fewest)))
        print(f"{side}: a request at {most:,} hosts over one at {fewest:,}, in the rounds: {ratio:.2f}")
        measure.print_target(
            f"hosts, {side}: a request at {most:,} hosts over one at {fewest:,}", ratio.median, at_most=1.5
        )
    measure.print_target(f"hosts, opening with {most:,} hosts, s", medians["wall"].median, at_most=3)
    measure.print_target(f"hosts, RAM with {most:,} hosts, MB", medians["peak_mb"].median, at_most=400)
    return measure.Picture(
        "Requests over many hosts",
        "microseconds of CPU time per request",
        {side: [(float(hosts), spreads[hosts, side].median) for hosts in counts] for side in SIDES},
        x_axis="hosts",
    )


def _calls(side: str, jobdir: str) -> Any:
    from tests.old.support.schedulers import EngineCalls  # an engine that downloads nothing

    logging.disable(logging.WARNING)  # that a filter which filters nothing is not durable
    scheduler, queue = SIDES[side]
    return EngineCalls(
        Path(jobdir) if side == DURABLE else None,
        scheduler,
        SCHEDULER_PRIORITY_QUEUE=queue,
        DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter",
    )


def _request(number: int, host: int) -> Any:
    from scrapy import Request

    meta = {"depth": number % 9, "link_text": "a link"}
    return Request(f"http://www.host-{host}.example/products/{number}?page={number % 7}", meta=meta)


def _fill(calls: Any, hosts: int, pending: int) -> None:
    push = calls.scheduler.enqueue_request
    for number in range(pending):
        push(_request(number, number % hosts))


def _work(side: str, hosts: int, pending: int, work: int) -> dict[str, float]:
    """Return what one request costs to hand out, with another one pushed for it."""
    with TemporaryDirectory() as directory:
        calls = _calls(side, directory)
        _fill(calls, hosts, pending)
        new = [_request(pending + number, random.Random(number).randrange(hosts)) for number in range(work)]
        busy = deque(calls.start() for _ in range(IN_FLIGHT))
        journal = getattr(calls.scheduler, "_journal", None)
        if journal is not None:
            journal.commit()  # which may have fallen far behind
        gc.collect()
        gc.disable()
        scheduler, inside = calls.scheduler, 0.0
        done = 0
        begun_all, begun_thread = time.process_time(), time.thread_time()
        for request in new:
            begun = time.thread_time()
            following = scheduler.next_request()
            scheduler.has_pending_requests()
            scheduler.enqueue_request(request)
            inside += time.thread_time() - begun
            calls.engine._slot.add_request(following)
            calls.slot(following).active.add(following)
            busy.append(following)
            ended = busy.popleft()
            calls.end(ended)
            if not calls.slot(ended).active:
                del calls.engine.downloader.slots[calls.engine.downloader.get_slot_key(ended)]  # as it does in time
            done += 1
            if inside > _WORK_SECONDS:
                break
        in_thread = time.thread_time() - begun_thread
        if journal is not None:
            journal.commit()
        others = time.process_time() - begun_all - in_thread  # the last commit, and all that other threads did
        gc.enable()
        calls.stop()
    return {"us": (inside + others) / done * 1e6}


def _open(side: str, hosts: int, pending: int) -> dict[str, float]:
    """Return the seconds that opening a job takes, and the memory that it has needed, in a process of its own."""
    with TemporaryDirectory() as directory:
        measure.in_own_process(_leave, side=side, jobdir=directory, hosts=hosts, pending=pending)
        return measure.in_own_process(_opened, side=side, jobdir=directory, pending=pending)


def _leave(side: str, jobdir: str, hosts: int, pending: int) -> dict[str, float]:
    calls = _calls(side, jobdir)
    _fill(calls, hosts, pending)
    calls.stop()
    return {}


def _opened(side: str, jobdir: str, pending: int) -> dict[str, float]:
    begun = time.perf_counter()
    calls = _calls(side, jobdir)
    wall = time.perf_counter() - begun
    if len(calls.scheduler) != pending:
        raise AssertionError(f"{len(calls.scheduler)} requests are pending, not {pending}")
    peak = measure.peak_bytes() / 1e6
    calls.stop()
    return {"wall": wall, "peak_mb": peak}
