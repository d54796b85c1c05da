"""A small site on loopback that counts its hits, and a spider for it that runs in processes of their own.

with Site(pages=200) as site, workers(site, server.url, 2) as running: ...
"""

import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import ScrapyDeprecationWarning

from scrapy_bloom.fleet import lease
from tests.fleet.servers import IMPATIENT, PATIENCE
from tests.support import crawls
from tests.support.crawler import OwnSettings
from tests.support.processes import PROCESSES

QUIET = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False, "LOG_LEVEL": "INFO"}
OUR_FEEDS = {"scrapy.extensions.feedexport.FeedExporter": None, "scrapy_bloom.FeedExporter": 0}


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
        self.broken: set[int] = set()
        """Pages that are answered with 500."""

    def answer(self, path: str) -> Any:
        page = int(path.rpartition("/")[2])
        if page:
            self.gate.wait(PATIENCE)
        return 500 if page in self.broken else [f"/page/{number}" for number in self.linked_from(page)]

    def linked_from(self, page: int) -> list[int]:
        rng = random.Random(page)
        children = [number for number in (2 * page + 1, 2 * page + 2) if number < self.count]
        return children + [rng.randrange(1, self.count) for _ in range(self.links)]

    def missing(self) -> list[int]:
        return [number for number in range(self.count) if not self.hits[f"/page/{number}"]]


class Worker:
    """A crawl in a process of its own."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._directory = Path(tempfile.mkdtemp())
        self._process = PROCESSES.Process(target=crawl, args=(url, settings, self._directory), daemon=True)
        self._process.start()
        self.log = ""
        """What it has logged, once it has ended."""
        self.stats: dict[str, Any] = {}
        """The final stats, if it has ended by itself."""

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.join(PATIENCE)
        is_alive = self._process.is_alive()
        self._process.kill()
        self._process.join()
        if self._directory.exists():
            self.log, stats = (self._directory / "log").read_text(), self._directory / "stats"
            self.stats = json.loads(stats.read_text()) if stats.exists() else {}
            shutil.rmtree(self._directory)
        assert not is_alive, f"the worker hangs:\n{self.log}"

    def finish(self) -> dict[str, Any]:
        """Wait for its end, and return its stats."""
        self.wait()
        assert self.stats, self.log
        return self.stats


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
        "SCHEDULER": "scrapy_bloom.components.scheduler.FleetScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
        "BLOOM_REDIS_URL": server_url,
        "BLOOM_CAPACITY": 1000,
        "BLOOM_FLEET_LEASE": 2,
        "CONCURRENT_REQUESTS": 4,
    }
    return Worker(site.start_url, {**own, **settings})


def crawl(url: str, settings: dict[str, Any], directory: Path) -> None:
    """Crawl as a worker; *directory* gets the log and the final stats."""
    os.dup2(os.open(directory / "log", os.O_CREAT | os.O_WRONLY, 0o600), sys.stderr.fileno())
    for name, seconds in IMPATIENT.items():
        setattr(lease, name, seconds)
    if not settings["SCHEDULER"].startswith("scrapy_redis."):  # whose calls into Scrapy are deprecated
        warnings.simplefilter("error", ScrapyDeprecationWarning)

    class SiteSpider(scrapy.Spider):
        name = "site"
        start_urls = (url,)

        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            yield from response.follow_all(css="a")

    process = CrawlerProcess(OwnSettings({**QUIET, **settings}))
    crawler = process.create_crawler(SiteSpider)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats else {}
    (directory / "stats").write_text(json.dumps(stats, default=str))
