"""scrapy-bloom beside what else people use: memory, time, what a kill costs, and what is wrongly taken for seen.

First each remembers the same URLs, in a process of its own; servers are fresh. Then each crawls a generated site, is
killed with SIGKILL when it has half of the pages, and is started again, until it ends by itself. Times are by the
clock, since some wait for a server. Each way is set up as its documentation says, in ``benchmarks/alternatives.py``.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.alternatives import OUR_FLEET, OURS, WAYS, Place, Way
from benchmarks.redis_server import redis_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SETTINGS = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "DOWNLOAD_DELAY": 0.01,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
}
"""A hundred pages a second, so that the crawl is killed some seconds after it began, as crawls are."""

STARTS = 5
"""Starts after the kill that are tried; a way that has not ended by itself then is not going to."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=20_000, help="URLs to remember (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=600, help="pages of the site (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help="only these")
    parser.add_argument("--large", action="store_true", help="the same as --urls 1000000 --pages 3000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print both tables."""
    urls, pages = (1_000_000, 3_000) if options.large else (options.urls, options.pages)
    ways = {name: WAYS[name] for name in options.ways if _is_installed(name, WAYS[name])}
    measure.print_environment(*dict.fromkeys(way.package for way in ways.values()))
    drawn = _compare_memories(ways, urls)
    _compare_kills(ways, pages)
    return measure.Picture("Memory of what was seen", "bytes of RAM per URL", drawn)


def _is_installed(name: str, way: Way) -> bool:
    try:
        version(way.package)
    except PackageNotFoundError:
        print(f"left out, since {way.package} is not installed: {name}")
        return False
    return True


# -- remembering -------------------------------------------------------------------------------------------------------


def _compare_memories(ways: dict[str, Way], urls: int) -> dict[str, measure.Spread]:
    rows = []
    drawn = {}
    for name, way in ways.items():
        count = min(urls, way.most or urls)
        with redis_server() as (redis_url, client), TemporaryDirectory() as directory:
            client.memory_purge()
            before = client.info("memory")["used_memory"]
            place = {"directory": directory, "redis_url": redis_url}
            filled = measure.in_own_process(_fill, name, count, **place)
            served = client.info("memory")["used_memory"] - before
            opened = measure.in_own_process(_open, name, count, **place)
            files = sum(path.stat().st_blocks * 512 for path in Path(directory).rglob("*") if path.is_file())
        ram = (filled["resident"] + max(0, served)) / count
        drawn[name] = measure.Spread(ram, ram, ram)
        rows.append(
            [
                f"{name}, {count:,}" if count < urls else name,
                f"{ram:.1f}",
                f"{files / count:.1f}",
                f"{filled['new']:.0f}",
                f"{filled['known']:.0f}",
                f"{opened['seconds']:.2f}",
                "yes" if opened["knows"] else "no",
            ]
        )
    print(f"{urls:,} URLs, each asked about twice. RAM of the process and of its server together\n")
    header = ["", "bytes of RAM per URL", "of disk", "us per new URL", "known", "s to open again", "then knows them"]
    measure.print_table(header, rows)
    return drawn


def _urls(count: int) -> Iterator[str]:
    return (f"https://www.example.com/section/{number % 97}/article-{number}?page=2" for number in range(count))


def _fill(name: str, urls: int, directory: str, redis_url: str) -> dict[str, float]:
    """Ask about *urls* URLs twice, and let the process end as after a clean stop."""
    _prepare_process()
    seen, close = WAYS[name].open(Place(Path(directory), redis_url))
    for url in _urls(100):  # imports what is imported late
        seen(f"{url}&for=warmth")
    before = measure.resident_bytes()
    times = []
    for expected in (False, True):
        began = time.perf_counter()
        answers = sum(seen(url) is expected for url in _urls(urls))
        times.append((time.perf_counter() - began) / urls * 1e6)
        if answers < urls * 0.99:
            raise AssertionError(f"only {answers} of {urls} URLs were taken for {'seen' if expected else 'new'}")
    resident = measure.resident_bytes() - before
    close()
    return {"resident": resident, "new": times[0], "known": times[1]}


def _open(name: str, urls: int, directory: str, redis_url: str) -> dict[str, Any]:
    """Open what was filled and ask about the first of its URLs."""
    _prepare_process()
    sample = list(islice(_urls(urls), 100))
    began = time.perf_counter()
    seen, close = WAYS[name].open(Place(Path(directory), redis_url))
    first = seen(sample[0])
    seconds = time.perf_counter() - began
    knows = first and all(map(seen, sample))
    close()
    return {"seconds": seconds, "knows": knows}


def _prepare_process() -> None:
    from scrapy.utils.reactor import install_reactor

    logging.disable(logging.WARNING)
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")  # Scrapy 2.13 asks which one it is


# -- crawling and being killed -----------------------------------------------------------------------------------------


def _compare_kills(ways: dict[str, Way], pages: int) -> None:
    rows = []
    for name in ways:
        with redis_server() as (redis_url, _), TemporaryDirectory() as directory, _site(pages) as (url, counted):
            ended = _crawl_and_kill(name, {"directory": directory, "redis_url": redis_url}, url, pages // 2)
        lost, again = pages - counted["different_pages"], counted["requests"] - counted["different_pages"]
        rows.append([name, *([str(lost), str(again)] if counted["different_pages"] > 1 else "--"), ended])
    print(f"A site of {pages:,} pages, killed with SIGKILL when half of them had come, and started again\n")
    measure.print_table(["", "pages never fetched", "fetched again", "starts until it ended"], rows)
    for name in (OURS, OUR_FLEET):
        lost = next((float(row[1]) for row in rows if row[0] == name), None)
        if lost is not None:
            measure.print_target(f"compare, pages that a kill costs with {name}", lost, at_most=0)


class _site:  # noqa: N801 - used like the functions beside it
    """Serve a site; the mapping that it yields has what was fetched, once the block has ended."""

    def __init__(self, pages: int):
        command = [sys.executable, str(Path(__file__).parent / "linksite.py"), "--pages", str(pages), "--links", "8"]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._counted: dict[str, int] = {}

    def __enter__(self) -> tuple[str, dict[str, int]]:
        stdout = self._server.stdout
        return (stdout.readline().strip() if stdout else ""), self._counted

    def __exit__(self, *_: object) -> None:
        said, _ = self._server.communicate()  # closes stdin and takes the server's last words
        self._counted.update(json.loads(said))


def _crawl_and_kill(name: str, place: dict[str, str], url: str, kill_after: int) -> str:
    """Crawl, and say how many starts it took after the kill until a crawl ended by itself."""
    command = measure.command_for(_crawl, name, url, **place)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=measure.ROOT) as crawl:
        lines = crawl.stdout or iter(())
        if sum(1 for _ in islice(lines, kill_after)) < kill_after:
            if name in (OURS, OUR_FLEET):
                raise AssertionError(f"{name} ended before it could be killed")
            return "does not run here"
        crawl.kill()
    for start in range(1, STARTS + 1):
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=measure.ROOT, check=False)
        if ended.returncode == 0:
            return str(start)
    return f"more than {STARTS}"


def _crawl(name: str, url: str, directory: str, redis_url: str) -> None:
    """Crawl the site; print a line per page, and leave with status 0 if the crawl ended by itself."""
    logging.disable(logging.WARNING)
    way, place = WAYS[name], Place(Path(directory), redis_url)
    if way.settings is None:
        _crawl_with_crawlee(place, url)
        return
    from scrapy import Request, Spider
    from scrapy.crawler import CrawlerProcess

    class SiteSpider(Spider):
        """Follows every link. Pages without links to new ones give the items."""

        name = "site"
        start_urls = (url,)

        def parse(self, response: Any) -> Iterator[Any]:
            print("page", flush=True)
            if response.url.endswith(("1.html", "3.html", "5.html")):
                yield {"url": response.url}
            for href in response.css("a::attr(href)").getall():
                yield Request(response.urljoin(href))

    process = CrawlerProcess({**SETTINGS, **way.settings(place)})
    process.crawl(SiteSpider)
    process.start()


def _crawl_with_crawlee(place: Place, url: str) -> None:
    import asyncio

    from crawlee import ConcurrencySettings, service_locator
    from crawlee.configuration import Configuration
    from crawlee.crawlers import ParselCrawler
    from crawlee.storage_clients import FileSystemStorageClient

    async def crawl() -> None:
        service_locator.set_configuration(Configuration(purge_on_start=False, storage_dir=str(place.directory)))
        service_locator.set_storage_client(FileSystemStorageClient())
        crawler = ParselCrawler(
            configure_logging=False, concurrency_settings=ConcurrencySettings(max_tasks_per_minute=6_000)
        )

        @crawler.router.default_handler
        async def handle(context: Any) -> None:
            print("page", flush=True)
            await context.enqueue_links()

        await crawler.run([url])

    asyncio.run(crawl())
