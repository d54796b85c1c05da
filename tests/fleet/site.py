"""A small site on loopback that counts its hits, and workers that crawl it in processes of their own.

with Site(pages=200) as site, workers(site, server.url, 2) as running: ...
"""

import random
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import crawls
from tests.support.crawls import PATIENCE, Running


class Site(crawls.Site):
    """Pages 0 to *pages* - 1 under ``/page/<i>``, all reachable from the first, with *links* more links each.

    Pages that are :attr:`gated`, all but the first, are not answered while :attr:`gate` is closed.
    """

    def __init__(self, pages: int, links: int = 10) -> None:
        super().__init__({})
        self.size, self.links = pages, links
        self.start_url = f"{self.url}/page/0"
        self.gate = self.release
        self.gate.set()
        self.gated: Container[int] = range(1, pages)
        self.broken: set[int] = set()
        """Pages that are answered with 500."""
        self.held: list[int] = []
        """Pages that had to wait for the gate."""

    def answer(self, path: str) -> Any:
        page = int(path.rpartition("/")[2])
        if page in self.gated and not self.gate.is_set():
            self.held.append(page)
            self.gate.wait(PATIENCE)
        return 500 if page in self.broken else [f"/page/{number}" for number in self.linked_from(page)]

    def linked_from(self, page: int) -> list[int]:
        rng = random.Random(page)
        children = [number for number in (2 * page + 1, 2 * page + 2) if number < self.size]
        return children + [rng.randrange(1, self.size) for _ in range(self.links)]

    def missing(self) -> list[int]:
        return [number for number in range(self.size) if not self.hits[f"/page/{number}"]]


class Workers(list[Running]):
    """Workers that crawl *site*; those that are left in the list at the end are killed."""

    def __init__(self, site: Site, server_url: str, directory: Path) -> None:
        super().__init__()
        self._site, self._url, self._directory = site, server_url, directory

    def start(self, **settings: Any) -> Running:
        """Start another worker."""
        own = {
            "SCHEDULER": "scrapy_bloom.FleetScheduler",
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            "BLOOM_REDIS_URL": self._url,
            "BLOOM_FLEET_LEASE": 2,
            "CONCURRENT_REQUESTS": 4,
            "LOG_LEVEL": "INFO",
            "START": ["/page/0"],
        }
        self.append(crawls.start(self._site, Path(tempfile.mkdtemp(dir=self._directory)), {**own, **settings}))
        return self[-1]


@contextmanager
def workers(site: Site, server_url: str, count: int = 1, **settings: Any) -> Iterator[Workers]:
    """Yield *count* workers."""
    with tempfile.TemporaryDirectory() as directory:
        started = Workers(site, server_url, Path(directory))
        for _ in range(count):
            started.start(**settings)
        try:
            yield started
        finally:
            for worker in started:
                worker.kill()
