"""Workers of a fleet on a local site, as processes that can be killed, frozen and started again."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from tests.old.support.crawling import Crawl, Outcome, start_crawl

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tests.old.support.localsite import LocalSite
    from tests.old.support.redis_servers import RedisServer

PATIENCE = 90
"""Seconds after which a fleet that has not come to its end counts as hanging."""

CONCURRENCY = 4
IN_HAND = CONCURRENCY + CONCURRENCY // 2 + CONCURRENCY
"""Requests that a worker holds at most: in the downloader, waiting for it, and done but not acknowledged yet."""


class Fleet:
    """Some workers that share the queue on *server*; killed at the end of ``with``, if they have not ended."""

    def __init__(self, site: LocalSite, server: RedisServer, *, lease: float = 2.0, **settings: Any) -> None:
        self.site = site
        self._settings = {
            "SCHEDULER": "scrapy_bloom.FleetScheduler",
            "BLOOM_REDIS_URL": server.url,
            "BLOOM_FLEET_LEASE": lease,
            "BLOOM_CAPACITY": 1000,
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "LOG_LEVEL": "INFO",
            **settings,
        }
        self.workers: dict[str, Crawl] = {}

    def start(self, name: str, **settings: Any) -> None:
        own = {"BLOOM_FLEET_WORKER": name, **self._settings, **settings}
        url = "http://site.example/page/0" if self.site.hosts else self.site.url()
        self.workers[name] = start_crawl(url, own)

    def kill(self, name: str) -> None:
        crawl = self.workers.pop(name)
        crawl.signal(signal.SIGKILL)
        crawl.process.communicate()

    def freeze(self, name: str) -> None:
        self.workers[name].signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.workers[name].signal(signal.SIGCONT)

    def is_running(self, name: str) -> bool:
        return name in self.workers and self.workers[name].process.poll() is None

    def finish(self) -> dict[str, Outcome]:
        """Wait until all have ended by themselves."""
        ended = {name: crawl.finish() for name, crawl in self.workers.items()}
        self.workers.clear()
        for name, outcome in ended.items():
            assert outcome.returncode == 0, f"{name}:\n{outcome.log}"
            assert outcome.stats.get("finish_reason") == "finished", f"{name}:\n{outcome.log}"
        return ended

    def page_hits(self) -> list[int]:
        return [self.site.hits(f"/page/{i}") for i in range(self.site.pages)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for name in list(self.workers):
            self.thaw(name)
            self.kill(name)


def wait_until(is_true: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, f"waited {timeout} s for: {what}"
        time.sleep(0.01)
