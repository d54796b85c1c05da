"""Many pending requests: opening after a kill, memory and disk, and a disk that takes its time.

The frontier is filled by the database's own writes, since pushing millions of requests takes longer than all the rest.
Scrapy's side is filled by its scheduler, and is Scrapy's queue with Scrapy's filter. The slow disk is a library that
makes every fsync() and fdatasync() of the process wait, loaded before libc (LD_PRELOAD), so that SQLite's own calls and
those of the filter are slow, in whatever thread; it needs a C compiler. Every measurement is in a process of its own.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from benchmarks import frontier, measure
from benchmarks.crawl import served

if TYPE_CHECKING:
    import argparse

OURS, SCRAPYS = "ours", "Scrapy's"
SIDES = {
    OURS: ("scrapy_bloom.DurableScheduler", "scrapy_bloom.BloomDupeFilter"),
    SCRAPYS: ("scrapy.core.scheduler.Scheduler", "scrapy.dupefilters.RFPDupeFilter"),
}
HOSTS = 3
FEW = 10_000
_FILL_ROWS = 50_000

_SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int all = 0, of_main_thread = 0;
int syncs(void) { return all; }
int syncs_of_main_thread(void) { return of_main_thread; }
static void wait_for_disk(void) {
    __sync_fetch_and_add(&all, 1);
    if (syscall(SYS_gettid) == getpid()) __sync_fetch_and_add(&of_main_thread, 1);
    usleep(atoi(getenv("SLOW_SYNC_MS")) * 1000);
}
int fsync(int fd) { wait_for_disk(); return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { wait_for_disk(); return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""

_LIGHT = {
    "CONCURRENT_REQUESTS": 4,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "DOWNLOAD_DELAY": 0.04,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "BLOOM_SYNC_INTERVAL": 1.0,  # 30 seconds would be longer than the crawl
}
"""Settings of crawls that wait for their pages, 25 a second at most, and not for the CPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pending", type=int, default=100_000, help="requests to open (default: %(default)s)")
    parser.add_argument("--beside", type=int, default=30_000, help="requests beside Scrapy's (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=200, help="pages of each crawl (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the crawls (default: %(default)s)")
    parser.add_argument("--sync-ms", type=int, default=200, help="milliseconds per fsync (default: %(default)s)")
    parser.add_argument(
        "--large",
        action="store_true",
        help="the same as --pending 10000000 --beside 300000 --pages 1000, with a row for 1,000,000 pending as well",
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print three tables."""
    measure.print_environment("Scrapy", "queuelib")
    pending = [FEW, 1_000_000, 10_000_000] if options.large else [min(FEW, options.pending), options.pending]
    _open_after_a_kill(pending)
    _beside_scrapy(300_000 if options.large else options.beside)
    return _slow_disk(1000 if options.large else options.pages, options.rounds, options.sync_ms)


def _open_after_a_kill(counts: list[int]) -> None:
    found = {count: measure.in_own_process(_opening, pending=count) for count in counts}
    few = found[counts[0]]["step_us"]
    print("Opening a job after a kill, then 3,000 requests popped, done and replaced\n")
    rows = [
        [
            f"{count:,} pending",
            f"{one['open_s']:.3f}",
            f"{one['ram_mb']:.0f}",
            f"{one['step_us']:.0f}",
            f"{one['step_us'] / few:.2f}",
        ]
        for count, one in found.items()
    ]
    measure.print_table(["", "opening, s", "RAM of the process, MB", "a request, us", "over the first row"], rows)
    limit = {1_000_000: 1.0, 10_000_000: 3.0}
    for count, one in found.items():
        if count in limit:
            measure.print_target(f"pending, s to open {count:,}", one["open_s"], at_most=limit[count])
            measure.print_target(f"pending, MB of RAM with {count:,}", one["ram_mb"], at_most=300)
    print()


def _beside_scrapy(count: int) -> None:
    found = {side: measure.in_own_process(_beside, side=side, pending=count) for side in SIDES}
    print(f"{count:,} requests pushed and pending, queue and filter together\n")
    names = ("ram_mb", "disk_running_mb", "disk_mb")
    measure.print_table(
        ["", "RAM more, MB", "disk while running, MB", "disk after a stop, MB"],
        [[side, *(f"{one[name]:.1f}" for name in names)] for side, one in found.items()],
    )
    for name, what in (("ram_mb", "RAM"), ("disk_mb", "disk")):
        ratio = found[OURS][name] / max(found[SCRAPYS][name], 0.1)
        measure.print_target(f"pending, {what} with {count:,} over Scrapy's", ratio, at_most=1.0)
    print()


def _slow_disk(pages: int, rounds: int, sync_ms: int) -> measure.Picture:
    fast, slow = "a fast disk", f"{sync_ms} ms per fsync"
    if shutil.which("cc") is None:
        print("No C compiler (cc) to make a slow disk with: the crawls are left out.\n")
        return measure.Picture("A crawl with JOBDIR", "pages a minute", {})
    with (
        served(["--pages", str(pages + frontier.SEEDS + frontier.RESERVE), "--links", "5"]) as url,
        tempfile.TemporaryDirectory() as directory,
    ):
        library = Path(directory, "slow_sync.so")
        source = library.with_suffix(".c")
        source.write_text(_SLOW_SYNC, encoding="ascii")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        job = Path(directory, "job")
        measure.in_own_process(_filled, jobdir=str(job), url=url)

        def crawled(environment: dict[str, str]) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=directory) as copies:
                copy = shutil.copytree(job, Path(copies, "job"))
                with mock.patch.dict(os.environ, environment):
                    return measure.in_own_process(_crawled, jobdir=str(copy), url=url, pages=pages)

        sides = {
            side: {"LD_PRELOAD": str(library), "SLOW_SYNC_LIBRARY": str(library), "SLOW_SYNC_MS": str(ms)}
            for side, ms in ((fast, 0), (slow, sync_ms))
        }
        found = measure.side_by_side({side: lambda side=side: crawled(sides[side]) for side in sides}, rounds)
    rates = {side: [pages / one["wall"] * 60 for one in ones] for side, ones in found.items()}
    ratio = measure.ratios(rates[slow], rates[fast])
    drawn = {side: measure.Spread.of(rate) for side, rate in rates.items()}
    syncs = {
        side: [f"{measure.Spread.of([one[name] for one in ones]):.0f}" for name in ("syncs", "syncs_of_reactor")]
        for side, ones in found.items()
    }
    print(f"{pages:,} pages with 5 links each, at most 25 a second, medians of {rounds} interleaved crawls\n")
    measure.print_table(
        ["", "pages a minute", "over a fast disk", "fsyncs", "of these in the reactor's thread"],
        [
            [fast, f"{drawn[fast].median:.0f}", "1.00", *syncs[fast]],
            [slow, f"{drawn[slow].median:.0f}", f"{ratio:.2f}", *syncs[slow]],
        ],
    )
    measure.print_target(f"pending, pages a minute at {slow} over a fast disk", ratio.median, at_least=0.95)
    waits = max(one["syncs_of_reactor"] for ones in found.values() for one in ones)
    measure.print_target("pending, fsyncs that the reactor waited for, at most in any crawl", waits, at_most=0)
    print()
    return measure.Picture(f"A crawl of {pages:,} pages with JOBDIR", "pages a minute", drawn)


# -- in processes of their own -----------------------------------------------------------------------------------------


def _opening(pending: int) -> dict[str, float]:
    from scrapy import Request

    from scrapy_bloom.frontier.database import Batch
    from tests.support.schedulers import EngineCalls

    logging.disable(logging.WARNING)  # that the job was killed
    settings = {**frontier.SETTINGS, "BLOOM_SYNC_INTERVAL": 0}
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory, "job")
        calls = EngineCalls(job, **settings)
        for host in range(HOSTS):
            calls.push(Request(f"http://host-{host}.example/"))
        calls.commit()
        journal = calls.scheduler._journal
        database = journal.database
        lanes = {int(lane.name.split(".")[0].rpartition("-")[2]): lane.id for lane in database.lanes()}
        while journal.last_id < pending:
            added = {}
            for number in range(journal.last_id + 1, min(journal.last_id + _FILL_ROWS, pending) + 1):
                url = f"http://host-{number % HOSTS}.example/products/{number}?page={number % 7}"
                request = {"url": url, "meta": {"depth": number % 9, "link_text": "a link"}}
                added[number] = (lanes[number % HOSTS], pickle.dumps(request, protocol=4))
            journal.last_id = max(added)
            database.write(Batch({}, added, [], 0, journal.last_id))
        calls.scheduler._note(journal.last_id)  # as after the commits that would have written all this
        calls.push(Request("http://host-0.example/last"))
        calls.commit()
        calls.die()
        start = time.perf_counter()
        calls = EngineCalls(job, **settings)
        opening = time.perf_counter() - start
        start = time.perf_counter()
        for number in range(3000):
            calls.end(calls.start())
            calls.push(Request(f"http://host-{number % HOSTS}.example/new/{number}"))
        step = (time.perf_counter() - start) / 3000
        ram = measure.peak_bytes()
        calls.stop()
        return {"open_s": opening, "step_us": step * 1e6, "ram_mb": ram / 1e6}


def _beside(side: str, pending: int) -> dict[str, float]:
    from tests.support.schedulers import EngineCalls

    logging.disable(logging.WARNING)
    scheduler, dupefilter = SIDES[side]
    with tempfile.TemporaryDirectory() as directory:
        calls = EngineCalls(Path(directory), scheduler, **{**frontier.SETTINGS, "DUPEFILTER_CLASS": dupefilter})
        before = measure.resident_bytes()
        frontier._push(calls, 0, pending)
        ram = measure.resident_bytes() - before
        running = _disk(directory)
        calls.stop()
        return {"ram_mb": ram / 1e6, "disk_running_mb": running / 1e6, "disk_mb": _disk(directory) / 1e6}


def _disk(directory: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in Path(directory).rglob("*") if path.is_file())


def _filled(jobdir: str, url: str) -> dict[str, float]:
    return frontier._fill(SIDES[OURS][0], jobdir, url, 0)


def _crawled(jobdir: str, url: str, pages: int) -> dict[str, float]:
    library = ctypes.CDLL(os.environ["SLOW_SYNC_LIBRARY"])  # the one that is loaded already
    clocks = {"syncs": library.syncs, "syncs_of_reactor": library.syncs_of_main_thread}
    return frontier._crawl(SIDES[OURS][0], jobdir, url, pages, _LIGHT, clocks)
