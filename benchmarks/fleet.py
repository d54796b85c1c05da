"""A fleet of two workers beside scrapy-redis, and one process beside both: speed, and what the server has to do.

A first worker fills the queue and stops. Then two crawl what is left, each in a process of its own, while a server on
127.0.0.1 counts. Pages a minute are by the clock, from the first page to the last: look at them on a machine with two
idle cores. Last comes what one new link takes of the server, in calls of 300, beside a PING.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.crawls import FLEET, REDIS, SCRAPY, UNSEEN, crawl, sides
from benchmarks.servers import generated_pages, redis_server, served

ONE, ALONE = "Scrapy, one process", "scrapy-bloom, one worker"
SIDES = {measure.OURS: FLEET, UNSEEN: UNSEEN, ALONE: FLEET, REDIS: REDIS, ONE: SCRAPY}
SETTINGS = {"DOWNLOAD_DELAY": 0, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
FIRST_PAGES = 20
SET_URLS = 200_000
CALLS, CALL_LINKS = 100, 300


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print two tables."""
    parser.add_argument("--pages", type=int, default=1_000, help="of the site (default: %(default)s)")
    parser.add_argument("--links", type=int, default=40, help="on each page (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "scrapy-redis", "redis")
    with served(*generated_pages(options.pages, options.links)) as url:
        ways = sides(SIDES, options.old)
        workers = {name: 1 if name.startswith((ONE, ALONE)) else 2 for name in ways}
        calls = {name: partial(crawled, *way, url, options.pages, workers[name]) for name, way in ways.items()}
        found = measure.side_by_side(calls, options.rounds)
    measure.print_figures(f"{options.pages:,} pages with {options.links} links each", found)
    with redis_server() as (redis_url, client):
        _print_link_cost(redis_url, client)
        for start in range(0, SET_URLS, 10_000):
            client.sadd("seen", *(sha1(b"%d" % number).hexdigest() for number in range(start, start + 10_000)))
        each = client.memory_usage("seen", samples=0) / SET_URLS
    print(f"The set of {REDIS} takes {each:.0f} bytes of the server for each of {SET_URLS:,} URLs.")


def crawled(way: str, package: Path | None, url: str, site_pages: int, workers: int) -> measure.Figures:
    """Crawl all of the site, and return what it took so many *workers* from when the queue was filled."""
    with redis_server() as (redis_url, client), ExitStack() as stack:

        def start(settings: dict[str, int]) -> subprocess.Popen[str]:
            places = {"job": stack.enter_context(tempfile.TemporaryDirectory()), "server": redis_url}
            given = (way, url, places, {**SETTINGS, **settings})
            command, environment = measure.command_for(crawl, *given, package=package)
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        first = [] if way == SCRAPY else [start({"CLOSESPIDER_PAGECOUNT": FIRST_PAGES})]
        done = sum(_figures(worker)["pages"] for worker in first)
        before = _counters(client)
        said = [_figures(worker) for worker in [start({}) for _ in range(workers)]]
        server = {key: value - before[key] for key, value in _counters(client).items()}
    pages = sum(one["pages"] for one in said)
    if done + pages < site_pages:
        sys.exit(f"{way} has fetched {done + pages} of {site_pages} pages")
    seconds = max(one["last"] for one in said) - min(one["first"] for one in said)
    return {
        "pages a minute": 60 * pages / seconds,
        "workers' CPU, ms a page": sum(one["cpu"] for one in said) / pages * 1e3,
        "commands a page": server["commands"] / pages,
        "kB to the server a page": server["bytes"] / pages / 1e3,
        "server's CPU, us a page": server["cpu"] / pages * 1e6,
    }


def _print_link_cost(redis_url: str, client: Any) -> None:
    from scrapy_bloom.fleet.messages import Link, QueueLane
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.fleet.server import Server

    queue, lane, entry = Queue(Server(redis_url), "benchmark"), QueueLane("host", "0", "RPUSH"), bytes(120)
    queue.begin()
    queue.join("token", "worker")

    def finish(number: int) -> None:
        numbers = range(number * CALL_LINKS, (number + 1) * CALL_LINKS)
        queue.finish(0, "token", number, [Link(0, sha1(b"%d" % n).digest(), lane, entry) for n in numbers])

    def cost(call: Callable[[int], object]) -> float:
        before = _counters(client)["cpu"]
        for number in range(1, CALLS + 1):
            call(number)
        return (_counters(client)["cpu"] - before) / CALLS * 1e6

    ping, link = cost(lambda _: client.ping()), cost(finish) / CALL_LINKS
    print(f"A new link takes {link:.1f} us of the server's CPU, where a PING takes {ping:.0f} us.")


def _figures(worker: subprocess.Popen[str]) -> measure.Figures:
    figures: measure.Figures = json.loads(worker.communicate()[0].splitlines()[-1])
    return figures


def _counters(client: Any) -> dict[str, float]:
    info = client.info()
    cpu = info["used_cpu_user"] + info["used_cpu_sys"]
    return {"commands": info["total_commands_processed"], "bytes": info["total_net_input_bytes"], "cpu": cpu}
