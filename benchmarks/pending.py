"""Pending requests: pushing and handing out with few and many hosts, opening after a kill, memory and disk.

A scheduler with its filter is called as the engine does. First many requests are pushed, then one is handed out and
one pushed in turn, with 16 in flight, as in a crawl; CPU time of all threads. Scrapy's scheduler keeps its requests in
memory there: on disk it opens a file per host, and ends with "Too many open files" at a few thousand. Then jobs are
left by ``kill -9`` and opened in new processes, which die in turn.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import measure

WORK_SECONDS = 2.0
"""After which a side has shown what handing out costs."""
TURNS = 20_000
FILES = 1_000
"""Hosts with which Scrapy's queue on disk, of a file for each, can be measured."""


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print three kinds of tables."""
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 100_000], help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=200_000, help="for these hosts (default: %(default)s)")
    parser.add_argument("--pending", type=int, default=300_000, help="after a kill (default: %(default)s)")
    parser.add_argument("--spread", type=int, default=3, help="hosts of those (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "queuelib")
    for hosts in options.hosts:
        sides = measure.of_each(handed_out, hosts=hosts, requests=options.requests)
        what = f"{options.requests:,} requests to {hosts:,} hosts"
        measure.print_side_by_side(what, sides, options.old, options.rounds)
    names = [measure.OURS, measure.SCRAPY] if options.spread <= FILES else [measure.OURS]
    sides = measure.of_each(held, names, pending=options.pending, hosts=options.spread)
    what = f"{options.pending:,} pending of {options.spread:,} hosts"
    measure.print_side_by_side(f"{what}, with JOBDIR", sides, options.old, options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        sides = measure.with_old({measure.OURS: partial(measure.in_own_process, opened)}, options.old)
        for number, (name, side) in enumerate(sides.items()):
            jobdir = str(Path(temporary, str(number)))
            measure.in_own_process(leave, jobdir, options.pending, options.spread, **side.keywords)
            sides[name] = partial(side, jobdir)
        found = measure.side_by_side(sides, 2 * options.rounds - 1)
    measure.print_figures(f"{what}, after a kill", found)


def _engine(jobdir: str | None, name: str = measure.OURS) -> Any:
    from benchmarks.engine import Engine

    settings = {"SCHEDULER": measure.SCHEDULERS[name], "DUPEFILTER_CLASS": measure.DUPEFILTERS[name], "JOBDIR": jobdir}
    return Engine({**settings, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"})


def handed_out(name: str, hosts: int, requests: int) -> measure.Figures:
    """Return what it takes to push one of *requests* requests, and to hand out one and push another."""
    from benchmarks.engine import IN_FLIGHT, request_of

    with tempfile.TemporaryDirectory() as directory:
        engine = _engine(directory if name == measure.OURS else None, name)
        pushed = [request_of(number, hosts) for number in range(requests)]
        others = [request_of(requests + number, hosts) for number in range(TURNS)]
        gc.collect()
        gc.disable()
        start = time.process_time()
        while pushed:
            engine.scheduler.enqueue_request(pushed.pop())
        engine.flush()
        push = time.process_time() - start
        for _ in range(min(IN_FLIGHT, requests)):
            engine.start()
        start = time.process_time()
        while others and time.process_time() - start < WORK_SECONDS:
            engine.scheduler.enqueue_request(others.pop())
            engine.start()
            engine.end()
        turns, turn = TURNS - len(others), time.process_time() - start
        engine.stop()
        whole = push + time.process_time() - start
    return {
        "to push, us": push / requests * 1e6,
        "to hand out and push, us": turn / turns * 1e6,
        "both with all commits, us": whole / (requests + turns) * 1e6,
    }


def held(name: str, pending: int, hosts: int) -> measure.Figures:
    """Return what *pending* requests to *hosts* hosts take of memory and disk, filter included."""
    with tempfile.TemporaryDirectory() as directory:
        engine = _engine(directory, name)
        before = measure.resident_bytes()
        engine.push(pending, hosts)
        ram, running = measure.resident_bytes() - before, measure.disk_bytes(directory)
        engine.stop()
        stopped = measure.disk_bytes(directory)
    return {"RAM more, MB": ram / 1e6, "disk while running, MB": running / 1e6, "disk after a stop, MB": stopped / 1e6}


def leave(jobdir: str, pending: int, hosts: int) -> NoReturn:
    """Push *pending* requests to *hosts* hosts, and die."""
    _engine(jobdir).push(pending, hosts)
    measure.die_with({})


def opened(jobdir: str) -> NoReturn:
    """Open the job, and die."""
    with tempfile.TemporaryDirectory() as other:
        _engine(other).stop()  # opening does not include importing Scrapy
    start = time.perf_counter()
    engine = _engine(jobdir)
    seconds = time.perf_counter() - start
    figures = {"pending then": len(engine.scheduler), "s to open, by the clock": seconds}
    measure.die_with(figures | measure.peak_and_disk(jobdir))
