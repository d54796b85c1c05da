"""Many pending requests: opening after a kill, memory and disk, and a disk that takes its time.

The frontier is filled by the database's own writes, since pushing millions of requests takes longer than all the rest.
Then it is opened in one process after another, each of which takes requests out of the file, puts as many in and dies.
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
from typing import TYPE_CHECKING, Any
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
STEPS = 3_000
OPEN_SECONDS = {1_000_000: 1.0, 10_000_000: 3.0}
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

_FULL = {"BLOOM_SYNC_INTERVAL": 1.0}
"""Settings of crawls at full speed. They fetch more pages, to take some seconds as well."""

_MORE_PAGES = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pending", type=int, default=100_000, help="requests to open (default: %(default)s)")
    parser.add_argument("--beside", type=int, default=30_000, help="requests beside Scrapy's (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=200, help="pages of each crawl (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="default: %(default)s; of openings twice as many, less one"
    )
    parser.add_argument("--sync-ms", type=int, default=200, help="milliseconds per fsync (default: %(default)s)")
    parser.add_argument(
        "--large",
        action="store_true",
        help="the same as --pending 10000000 --beside 300000 --pages 500, with a row for 1,000,000 pending as well",
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print four tables."""
    measure.print_environment("Scrapy", "queuelib")
    pending = [FEW, 1_000_000, 10_000_000] if options.large else [min(FEW, options.pending), options.pending]
    _open_after_a_kill(pending, 2 * options.rounds - 1)
    _beside_scrapy(300_000 if options.large else options.beside)
    return _slow_disk(500 if options.large else options.pages, options.rounds, options.sync_ms)


def _open_after_a_kill(counts: list[int], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        jobs = {count: str(Path(directory, str(count))) for count in counts}
        for count, job in jobs.items():
            measure.in_own_process(_left_by_a_kill, jobdir=job, pending=count)
        found = measure.side_by_side(
            {
                count: lambda count=count, job=job: measure.in_own_process(_opening, jobdir=job, pending=count)
                for count, job in jobs.items()
            },
            rounds,
        )
    print(
        f"Opening a job after a kill, then {STEPS:,} requests popped and done, and as many pushed; CPU time of all "
        f"threads for each,\nmedians of {rounds} interleaved rounds (lowest-highest)\n"
    )
    rows = []
    targets = []
    for count, ones in found.items():
        opening, ram, step = (
            measure.Spread.of([one[name] for one in ones]) for name in ("open_s", "ram_mb", "step_us")
        )
        ratio = measure.ratios([one["step_us"] for one in ones], [one["step_us"] for one in found[counts[0]]])
        rows.append([f"{count:,} pending", f"{opening:.3f}", f"{ram.high:.0f}", f"{step:.0f}", f"{ratio:.2f}"])
        if count in OPEN_SECONDS:
            targets += [
                (f"pending, s to open {count:,}, at most in any round", opening.high, OPEN_SECONDS[count]),
                (f"pending, MB of RAM with {count:,}", ram.high, 300),
            ]
        if count > FEW:
            # Equal, as far as a machine can tell: the medians of the first row's own halves differ by as much.
            targets.append((f"pending, a request with {count:,} over one with {FEW:,}", ratio.median, 1.1))
    measure.print_table(["", "opening, s", "RAM of the process, MB", "a request, us", "over the first row"], rows)
    for what, value, at_most in targets:
        measure.print_target(what, value, at_most=at_most)
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
    speeds = {"at most 25 pages a second": (pages, _LIGHT), "as fast as it can": (_MORE_PAGES * pages, _FULL)}
    if shutil.which("cc") is None:
        print("No C compiler (cc) to make a slow disk with: the crawls are left out.\n")
        return measure.Picture("A crawl with JOBDIR", "pages a minute", {})
    with (
        served(["--pages", str(_MORE_PAGES * pages + frontier.SEEDS + frontier.RESERVE), "--links", "5"]) as url,
        tempfile.TemporaryDirectory() as directory,
    ):
        library = Path(directory, "slow_sync.so")
        source = library.with_suffix(".c")
        source.write_text(_SLOW_SYNC, encoding="ascii")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        job = Path(directory, "job")
        measure.in_own_process(_filled, jobdir=str(job), url=url)

        def crawled(speed: str, ms: int) -> dict[str, float]:
            count, settings = speeds[speed]
            environment = {"LD_PRELOAD": str(library), "SLOW_SYNC_LIBRARY": str(library), "SLOW_SYNC_MS": str(ms)}
            with tempfile.TemporaryDirectory(dir=directory) as copies:
                copy = shutil.copytree(job, Path(copies, "job"))
                with mock.patch.dict(os.environ, environment):
                    return measure.in_own_process(_crawled, jobdir=str(copy), url=url, pages=count, settings=settings)

        found = measure.side_by_side(
            {
                (speed, disk): lambda speed=speed, ms=ms: crawled(speed, ms)
                for speed in speeds
                for disk, ms in ((fast, 0), (slow, sync_ms))
            },
            rounds,
        )
    rates = {side: [speeds[side[0]][0] / one["wall"] * 60 for one in ones] for side, ones in found.items()}
    drawn = {", ".join(side): measure.Spread.of(rate) for side, rate in rates.items()}
    ratios = {speed: measure.ratios(rates[speed, slow], rates[speed, fast]) for speed in speeds}
    print(
        f"{pages:,} pages with 5 links each, or {_MORE_PAGES * pages:,} at full speed, from the first to the last; "
        f"medians of {rounds} interleaved crawls\n"
    )
    rows = []
    for (speed, disk), ones in found.items():
        rate = drawn[f"{speed}, {disk}"]
        syncs = [f"{measure.Spread.of([one[name] for one in ones]):.0f}" for name in ("syncs", "syncs_of_reactor")]
        over = f"{ratios[speed]:.2f}" if disk == slow else "1.00"
        rows.append([f"{speed}, {disk}", f"{rate.median:.0f}", over, *syncs])
    measure.print_table(
        ["", "pages a minute", "over a fast disk", "fsyncs", "of these in the reactor's thread"],
        rows,
    )
    for speed, ratio in ratios.items():
        measure.print_target(
            f"pending, {speed}: pages a minute at {slow} over a fast disk", ratio.median, at_least=0.95
        )
    waits = max(one["syncs_of_reactor"] for ones in found.values() for one in ones)
    measure.print_target("pending, fsyncs that the reactor waited for, at most in any crawl", waits, at_most=0)
    print()
    return measure.Picture("Crawls with JOBDIR", "pages a minute", drawn)


# -- in processes of their own -----------------------------------------------------------------------------------------


def _calls(jobdir: str) -> Any:
    from tests.old.support.schedulers import EngineCalls

    logging.disable(logging.WARNING)  # that the job was killed
    return EngineCalls(Path(jobdir), **{**frontier.SETTINGS, "BLOOM_SYNC_INTERVAL": 0})


def _left_by_a_kill(jobdir: str, pending: int) -> dict[str, float]:
    from scrapy import Request

    from scrapy_bloom.old.frontier.database import Batch

    calls = _calls(jobdir)
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
    return {}


def _opening(jobdir: str, pending: int) -> dict[str, float]:
    from scrapy import Request

    with tempfile.TemporaryDirectory() as other:
        _calls(other).stop()  # so that the time to import Scrapy is not in that of opening
    start = time.perf_counter()
    calls = _calls(jobdir)
    opening = time.perf_counter() - start
    if len(calls.scheduler) < pending:
        raise AssertionError(f"{len(calls.scheduler):,} requests are pending, not {pending:,}")
    steps = min(STEPS, pending // 2)
    start = time.process_time()
    for _ in range(steps):
        calls.end(calls.start())
    first = calls.scheduler._journal.last_id
    for number in range(first, first + steps):
        calls.push(Request(f"http://host-{number % HOSTS}.example/new/{number}"))
    calls.commit()
    step = (time.process_time() - start) / steps
    ram = measure.peak_bytes()
    calls.die()
    return {"open_s": opening, "step_us": step * 1e6, "ram_mb": ram / 1e6}


def _beside(side: str, pending: int) -> dict[str, float]:
    from tests.old.support.schedulers import EngineCalls

    logging.disable(logging.WARNING)
    scheduler, dupefilter = SIDES[side]
    if hasattr(os, "sync"):
        os.sync()  # or the disk is busy with what was measured before, and what waits to be written waits in memory
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


def _crawled(jobdir: str, url: str, pages: int, settings: dict[str, Any]) -> dict[str, float]:
    library = ctypes.CDLL(os.environ["SLOW_SYNC_LIBRARY"])  # the one that is loaded already
    clocks = {"syncs": library.syncs, "syncs_of_reactor": library.syncs_of_main_thread}
    return frontier._crawl(SIDES[OURS][0], jobdir, url, pages, settings, clocks)
