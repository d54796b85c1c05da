"""A small site on loopback that counts its hits, and a spider for it that runs in processes of their own.

with Site(pages=200) as site, workers(site, server.url, 2) as running: ...
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.fleet.servers import PATIENCE
from tests.support import crawls
from tests.support.crawls import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Site(crawls.Site):
    """Pages 0 to *pages* - 1 under ``/page/<i>``, all reachable from the first, with *links* more links each.

    Nothing is answered but for the first page while :attr:`gate` is closed.
    """

    def __init__(self, pages: int, links: int = 10) -> None:
        super().__init__({})
        self.count, self.links = pages, links
        self.start_url = f"{self.url}/page/0"
        self.gate = self.release
        self.gate.set()
        self.pauses: dict[int, int] = {}
        """By number of the request: for how many seconds its answer, a 429, asks for a pause."""
        self.robots = b""
        self.seconds = 0.0
        """How long each answer takes."""
        self.broken: set[int] = set()
        """Pages that are answered with 500."""

    def answer(self, path: str) -> Any:
        if path == "/robots.txt":
            return self.robots or 404
        page = int(path.rpartition("/")[2])
        if page:
            self.gate.wait(PATIENCE)
        time.sleep(self.seconds)
        if pause := self.pauses.pop(self.hits.total(), 0):
            return Busy(str(pause), times=self.count)
        return 500 if page in self.broken else [f"/page/{number}" for number in self.linked_from(page)]

    def linked_from(self, page: int) -> list[int]:
        rng = random.Random(page)
        children = [number for number in (2 * page + 1, 2 * page + 2) if number < self.count]
        return children + [rng.randrange(1, self.count) for _ in range(self.links)]

    def page_times(self) -> list[float]:
        """Return when it was asked for each of its pages."""
        return [moment for moment, _, path in self.moments if path != "/robots.txt"]

    def missing(self) -> list[int]:
        return [number for number in range(self.count) if not self.hits[f"/page/{number}"]]


class Worker:
    """A crawl in a process of its own."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.fleet.site", url, json.dumps(settings)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = ""

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self) -> dict[str, Any]:
        """Wait for its end, and return its stats."""
        try:
            out, self.log = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, log = self.process.communicate()
            raise AssertionError(f"the worker hangs:\n{log}") from None
        assert out, self.log
        stats: dict[str, Any] = json.loads(out.splitlines()[-1])
        return stats


@contextmanager
def workers(site: Site, server_url: str, count: int = 1, **settings: Any) -> Iterator[list[Worker]]:
    """Yield *count* workers; those that are left in the list at the end are killed."""
    started = [start(site, server_url, **settings) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()


def start(site: Site, server_url: str, **settings: Any) -> Worker:
    own = {
        "SCHEDULER": "scrapy_bloom.components.fleet_scheduler.FleetScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
        "BLOOM_REDIS_URL": server_url,
        "BLOOM_CAPACITY": 1000,
        "BLOOM_FLEET_LEASE": 2,
        "CONCURRENT_REQUESTS": 4,
    }
    return Worker(site.start_url, {**own, **settings})


def _main(url: str, settings: dict[str, Any]) -> None:
    import warnings

    import scrapy
    from scrapy.crawler import CrawlerProcess
    from scrapy.exceptions import ScrapyDeprecationWarning

    if not settings["SCHEDULER"].startswith("scrapy_redis."):  # whose calls into Scrapy are deprecated
        warnings.simplefilter("error", ScrapyDeprecationWarning)

    class SiteSpider(scrapy.Spider):
        name = "site"
        start_urls = (url,)

        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            yield from response.follow_all(css="a")

    class LambdaSpider(SiteSpider):
        """All of its requests are in the memory of its process only."""

        async def start(self) -> Any:
            for i in range(settings["START_REQUESTS"]):
                yield scrapy.Request(f"{url[:-1]}{i}", lambda response: self.parse(response), dont_filter=not i)

        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            yield from response.follow_all(css="a", callback=lambda response: self.parse(response))

    process = CrawlerProcess({"TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "INFO", **settings})
    crawler = process.create_crawler(LambdaSpider if "START_REQUESTS" in settings else SiteSpider)
    process.crawl(crawler)
    process.start()
    print(json.dumps(crawler.stats.get_stats() if crawler.stats else {}, default=str))  # noqa: T201 - the output


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
