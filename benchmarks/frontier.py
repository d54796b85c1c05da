"""DurableScheduler beside Scrapy's own scheduler with JOBDIR: whole crawls, and queues of many pending requests.

    python benchmarks/frontier.py crawl [--pages 2000] [--rounds 5]
    python benchmarks/frontier.py queue [--pending 1000000]

``crawl`` crawls the same local site with both in turns, each in a process of its own, and prints pages per minute:
medians and their ratio. ``queue`` fills a queue, then pushes and pops (with the engine's add and remove) 50,000 more
on top, and prints microseconds per request and how much more memory the process has than with an empty queue.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

SCHEDULERS = {
    "Scrapy": "scrapy.core.scheduler.Scheduler",
    "Durable": "scrapy_bloom.DurableScheduler",
}


def run_self(*arguments: str) -> dict[str, float]:
    """Run this file in a fresh process and return the JSON it prints last."""
    command = [sys.executable, __file__, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def crawl(pages: int, rounds: int, pending: int) -> None:
    """Print pages per minute of both schedulers over the same site, in turns."""
    from tests.localsite import LocalSite

    rates: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    with LocalSite(pages=pages, links_per_page=30, body=2000) as site:
        for round_ in range(rounds):
            for name in sorted(SCHEDULERS, reverse=bool(round_ % 2)):
                with tempfile.TemporaryDirectory() as directory:
                    options = {
                        "url": site.url(),
                        "jobdir": directory + "/job",
                        "log": directory + "/log",
                        "stats": directory + "/stats",
                        "settings": {
                            "SCHEDULER": SCHEDULERS[name],
                            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
                            "CONCURRENT_REQUESTS": 16,
                            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
                        },
                    }
                    if pending:
                        fill(Path(options["jobdir"]), name, pending)
                        options["settings"]["CLOSESPIDER_PAGECOUNT"] = pages
                    script = ROOT / "tests" / "frontier" / "crawl.py"
                    command = [sys.executable, str(script), json.dumps(options)]
                    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
                    stats = json.loads(Path(options["stats"]).read_text(encoding="utf-8"))
                    rate = stats["response_received_count"] / stats["elapsed_time_seconds"] * 60
                    rates[name].append(rate)
                    print(f"  {name:8} {rate:8.0f} pages/min", flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = medians["Durable"] / medians["Scrapy"]
    print(
        f"{pages} pages, {pending} pending before, median of {rounds}: "
        f"Scrapy {medians['Scrapy']:.0f}, Durable {medians['Durable']:.0f} pages/min, ratio {ratio:.2f}"
    )


def fill(jobdir: Path, name: str, pending: int) -> None:
    """Leave *pending* requests of low priority in the queue of the job directory."""
    run_self("fill-and-stop", "--scheduler", name, "--pending", str(pending), "--jobdir", str(jobdir))


def calls_of(name: str, jobdir: Path) -> object:
    """Return an opened scheduler with an engine around it."""
    from tests.frontier.schedulers import EngineCalls

    return EngineCalls(jobdir, SCHEDULERS[name], DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter")


def push_many(calls: object, first: int, count: int, priority: int = 0) -> None:
    """Push *count* requests to three hosts, with the meta of an ordinary crawl."""
    from scrapy import Request

    push = calls.scheduler.enqueue_request
    for n in range(first, first + count):
        meta = {"depth": n % 9, "link_text": "a link", "download_slot": f"slot-{n % 3}"}
        push(Request(f"http://127.0.0.1/products/{n}?page={n % 7}", priority=priority, meta=meta))


def memory() -> float:
    """Resident memory of this process now, in MB (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def fill_and_measure(name: str, pending: int, jobdir: Path) -> None:
    """Print microseconds per push and per push and pop, and memory, with *pending* requests in the queue."""
    calls = calls_of(name, jobdir)
    push_many(calls, 0, 100)
    calls.drain()
    before = memory()
    start = time.perf_counter()
    push_many(calls, 0, pending)
    filling = time.perf_counter() - start
    result = {"fill_us": filling / pending * 1e6}
    calls.stop()
    start = time.perf_counter()
    calls = calls_of(name, jobdir)
    result["open_s"] = time.perf_counter() - start
    work = 50_000
    start = time.perf_counter()
    push_many(calls, pending, work)
    for _ in range(2 * work):
        request = calls.scheduler.next_request()
        calls.engine._slot.add_request(request)
        calls.engine._slot.inprogress.remove(request)
    result["work_us"] = (time.perf_counter() - start) / work * 1e6
    result["memory_mb"] = memory() - before
    calls.stop()
    print(json.dumps(result))


def queue(pending: int) -> None:
    """Print the figures of both schedulers, each in a process of its own."""
    for count in (pending,):
        for name in SCHEDULERS:
            with tempfile.TemporaryDirectory() as directory:
                found = run_self("fill", "--scheduler", name, "--pending", str(count), "--jobdir", directory)
            print(
                f"{count:>9,} pending {name:8} push {found['fill_us']:5.1f} us, push + two pops "
                f"{found['work_us']:5.1f} us, open {found['open_s']:5.2f} s, memory +{found['memory_mb']:.0f} MB",
                flush=True,
            )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["crawl", "queue", "fill", "fill-and-stop"])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--scheduler", choices=list(SCHEDULERS))
    parser.add_argument("--jobdir", type=Path)
    options = parser.parse_args()
    if options.what == "crawl":
        crawl(options.pages, options.rounds, options.pending)
    elif options.what == "queue":
        queue(options.pending or 1_000_000)
    elif options.what == "fill":
        fill_and_measure(options.scheduler, options.pending, options.jobdir)
    else:
        calls = calls_of(options.scheduler, options.jobdir)
        push_many(calls, 0, options.pending, priority=-10)
        calls.stop()
        print("{}")


if __name__ == "__main__":
    main()
