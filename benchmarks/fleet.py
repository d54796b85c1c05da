"""A fleet of two workers beside scrapy-redis, and one process beside both: speed, and what the server has to do.

A first worker fills the queue and stops. Then two crawl what is left, each in a process of its own, while a server on
127.0.0.1 counts. Pages a minute are by the clock, from the first page to the last: look at them on a machine with two
idle cores. ``--callback-ms`` lets the callbacks work as those of real spiders do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.links import local_root, served
from benchmarks.redis_server import redis_server

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

REDIS, ONE = "scrapy-redis", "Scrapy, one process"
WAYS: dict[str, dict[str, Any]] = {
    measure.OURS: {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_REDIS_URL": "here"},
    REDIS: {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "REDIS_URL": "here",
    },
    ONE: {},
}
FIRST_PAGES = 20
SET_URLS = 200_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=1_000, help="of the site (default: %(default)s)")
    parser.add_argument("--links", type=int, default=40, help="on each page (default: %(default)s)")
    parser.add_argument("--callback-ms", type=float, default=0.0, help="CPU of each callback (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Measure and print two tables."""
    measure.print_environment("Scrapy", "scrapy-redis", "redis")
    ways: dict[str, tuple[str, Path | None]] = {name: (name, None) for name in WAYS}
    if options.old:
        ways[measure.OLD] = (measure.OURS, options.old.resolve())
    if measure.installed(REDIS) == "(not installed)":
        print(f"left out, since it is not installed: {ways.pop(REDIS)[0]}\n")
    with served(["--pages", str(options.pages), "--links", str(options.links)]) as url:
        found = measure.side_by_side(
            {name: lambda way=way: crawled(*way, url, options) for name, way in ways.items()}, options.rounds
        )
    columns = {
        "per_minute": ("pages a minute", ",.0f"),
        "worker_ms": ("workers' CPU, ms a page", ".2f"),
        "commands": ("commands a page", ".1f"),
        "kilobytes": ("kB to the server a page", ".2f"),
        "server_us": ("server's CPU, us a page", ".1f"),
    }
    measure.print_figures(f"{options.pages:,} pages with {options.links} links each", found, columns)
    with redis_server() as (_, client):
        for start in range(0, SET_URLS, 10_000):
            client.sadd("seen", *(sha1(b"%d" % number).hexdigest() for number in range(start, start + 10_000)))
        each = client.memory_usage("seen", samples=0) / SET_URLS
    print(f"The set of {REDIS} takes {each:.0f} bytes of the server for each of {SET_URLS:,} URLs.")


def crawled(name: str, package: Path | None, url: str, options: argparse.Namespace) -> measure.Figures:
    """Crawl all of the site, and return what it took from when the queue was filled."""
    with redis_server() as (redis_url, client), ExitStack() as stack:
        given = {"name": name, "url": url, "redis_url": redis_url, "callback_ms": options.callback_ms}
        done = 0
        if name != ONE:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            first = {**given, "jobdir": directory, "most": FIRST_PAGES}
            done = measure.in_own_process(crawl, package=package, **first)["pages"]
        before = _counters(client)
        workers = []
        for _ in range(1 if name == ONE else 2):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            command, environment = measure.command_for(crawl, package=package, jobdir=directory, **given)
            workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        said = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
        server = {key: value - before[key] for key, value in _counters(client).items()}
    pages = sum(one["pages"] for one in said)
    if done + pages < options.pages:
        sys.exit(f"{name} has fetched {done + pages} of {options.pages} pages")
    seconds = max(one["last"] for one in said) - min(one["first"] for one in said)
    return {
        "per_minute": 60 * pages / seconds,
        "worker_ms": sum(one["cpu"] for one in said) / pages * 1e3,
        "commands": server["total_commands_processed"] / pages,
        "kilobytes": server["total_net_input_bytes"] / pages / 1e3,
        "server_us": (server["used_cpu_user"] + server["used_cpu_sys"]) / pages * 1e6,
    }


def _counters(client: Any) -> dict[str, float]:
    info = client.info()
    names = ("total_commands_processed", "total_net_input_bytes", "used_cpu_user", "used_cpu_sys")
    return {name: float(info[name]) for name in names}


def crawl(name: str, url: str, redis_url: str, jobdir: str, callback_ms: float, most: int = 0) -> measure.Figures:
    """Crawl until nothing is left, or *most* pages have come; return pages, CPU time and when they came."""
    from scrapy import Request, Spider
    from scrapy.crawler import CrawlerProcess
    from scrapy.linkextractors import LinkExtractor

    links = LinkExtractor(allow=local_root(url))
    came: list[float] = []

    class SiteSpider(Spider):
        name = "site"

        async def start(self) -> Any:
            yield Request(url)

        def parse(self, response: Any) -> Any:
            came.append(time.time())
            until = time.thread_time() + callback_ms / 1e3
            while time.thread_time() < until:
                pass
            yield from response.follow_all(links.extract_links(response))

    settings = {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
    settings |= {key: redis_url if value == "here" else value for key, value in WAYS[name].items()}
    settings |= {"JOBDIR": jobdir} if name == measure.OURS else {}
    settings |= {"DOWNLOAD_DELAY": 0, "CLOSESPIDER_PAGECOUNT": most}
    process = CrawlerProcess(settings)
    process.crawl(SiteSpider)
    cpu = time.process_time()
    process.start()
    first, last = (came[0], came[-1]) if came else (time.time(), 0.0)
    return {"pages": len(came), "cpu": time.process_time() - cpu, "first": first, "last": last}
