"""A fleet of two workers beside scrapy-redis, and one process beside both: speed, and what the server has to do.

A first worker fills the queue and stops. Then two crawl what is left, each in a process of its own, while a server on
127.0.0.1 counts. Pages a minute are by the clock, from the first page to the last: look at them on a machine with two
idle cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawls import FLEET, REDIS, SCRAPY, crawl, sides
from benchmarks.links import served
from benchmarks.redis_server import redis_server

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

ONE = "Scrapy, one process"
SIDES = {measure.OURS: FLEET, REDIS: REDIS, ONE: SCRAPY}
SETTINGS = {"DOWNLOAD_DELAY": 0, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
FIRST_PAGES = 20
SET_URLS = 200_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=1_000, help="of the site (default: %(default)s)")
    parser.add_argument("--links", type=int, default=40, help="on each page (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Measure and print two tables."""
    measure.print_environment("Scrapy", "scrapy-redis", "redis")
    with served(["--pages", str(options.pages), "--links", str(options.links)]) as url:
        ways = sides(SIDES, options.old)
        calls = {name: lambda way=way: crawled(*way, url, options.pages) for name, way in ways.items()}
        found = measure.side_by_side(calls, options.rounds)
    measure.print_figures(f"{options.pages:,} pages with {options.links} links each", found)
    with redis_server() as (_, client):
        for start in range(0, SET_URLS, 10_000):
            client.sadd("seen", *(sha1(b"%d" % number).hexdigest() for number in range(start, start + 10_000)))
        each = client.memory_usage("seen", samples=0) / SET_URLS
    print(f"The set of {REDIS} takes {each:.0f} bytes of the server for each of {SET_URLS:,} URLs.")


def crawled(way: str, package: Path | None, url: str, site_pages: int) -> measure.Figures:
    """Crawl all of the site, and return what it took from when the queue was filled."""
    with redis_server() as (redis_url, client), ExitStack() as stack:

        def start(settings: dict[str, int]) -> subprocess.Popen[str]:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            given = (way, url, directory, redis_url, {**SETTINGS, **settings})
            command, environment = measure.command_for(crawl, *given, package=package)
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        first = [] if way == SCRAPY else [start({"CLOSESPIDER_PAGECOUNT": FIRST_PAGES})]
        done = sum(_figures(worker)["pages"] for worker in first)
        before = _counters(client)
        said = [_figures(worker) for worker in [start({}) for _ in range(1 if way == SCRAPY else 2)]]
        server = {key: value - before[key] for key, value in _counters(client).items()}
    pages = sum(one["pages"] for one in said)
    if done + pages < site_pages:
        sys.exit(f"{way} has fetched {done + pages} of {site_pages} pages")
    seconds = max(one["last"] for one in said) - min(one["first"] for one in said)
    return {
        "pages a minute": 60 * pages / seconds,
        "workers' CPU, ms a page": sum(one["cpu"] for one in said) / pages * 1e3,
        "commands a page": server["total_commands_processed"] / pages,
        "kB to the server a page": server["total_net_input_bytes"] / pages / 1e3,
        "server's CPU, us a page": (server["used_cpu_user"] + server["used_cpu_sys"]) / pages * 1e6,
    }


def _figures(worker: subprocess.Popen[str]) -> measure.Figures:
    figures: measure.Figures = json.loads(worker.communicate()[0].splitlines()[-1])
    return figures


def _counters(client: Any) -> dict[str, float]:
    info = client.info()
    names = ("total_commands_processed", "total_net_input_bytes", "used_cpu_user", "used_cpu_sys")
    return {name: float(info[name]) for name in names}
