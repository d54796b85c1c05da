"""Workers of a fleet in this process, whose engines the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy import Request, Spider

from tests.fleet.servers import wait_until
from tests.support.engine import Engine, PlainSpider

Join = Callable[..., "Worker"]


class PageSpider(PlainSpider):
    name = "pages"


class Worker(Engine):
    """The engine of a worker. It waits for the server as Scrapy's does, and ticks as its timer does.

    Args:
        url: Of the server.
        has_start: Whether it can run start().

    """

    def __init__(
        self, url: str, *, has_start: bool = False, spider: type[Spider] = PageSpider, **settings: Any
    ) -> None:
        own = {"SCHEDULER": "scrapy_bloom.FleetScheduler", "BLOOM_REDIS_URL": url, "BLOOM_CAPACITY": 1000, **settings}
        super().__init__(None, own, spider, has_start=has_start)
        self._has_left = False

    def pending(self) -> int:
        """A worker counts what is ready here, and what is in hand anywhere as one."""
        return max(0, len(self.store) - len(self.engine._slot.inprogress))

    def link(self, name: str, **options: Any) -> bool:
        """Push the link *name*; return whether it is new here."""
        return self.push(page(name, **options))[0]

    def next(self) -> Request | None:
        """Start the next request, if one is ready now."""
        self.crawl.core.tick()
        return super().next()

    def start(self) -> Request | None:
        found: list[Request | None] = []

        def is_over() -> bool:
            if (request := self.next()) is not None or not self.scheduler.has_pending_requests():
                found.append(request)
            return bool(found)

        wait_until(is_over, "a request is handed out, or the crawl is over")
        return found[0]

    def begin_start(self) -> Request:
        """Begin to run start(); all that it gives is of the page of the request that is returned."""
        self.crawl.requests.begin_start()
        return self.crawl.hand_out(self.store.begin_start(), Request("data:,"), "", None)

    def leave(self) -> None:
        """Stop, and give back what is in hand."""
        if not self._has_left:
            self._has_left = True
            self.close("shutdown")
            self.closed()


def page(name: str, **options: Any) -> Request:
    return Request(f"https://example.com/{name}", **options)


def name_of(request: Request) -> str:
    return request.url.rpartition("/")[2]


def pop(*workers: Worker) -> tuple[Worker, Request]:
    """Return the next request that one of *workers* is handed, and which of them."""
    found: list[tuple[Worker, Request]] = []

    def has_one() -> bool:
        for worker in workers:
            if not found and (request := worker.next()) is not None:
                found.append((worker, request))
        return bool(found)

    wait_until(has_one, "a request is handed out")
    return found[0]


def crawl(*workers: Worker) -> list[str]:
    """Fetch all that is there, and return it."""
    fetched: list[str] = []

    def is_over() -> bool:
        for worker in workers:
            if (request := worker.next()) is not None:
                fetched.append(name_of(request))
                worker.end(request)
        return not any(len(worker.store) for worker in workers)

    wait_until(is_over, "all is fetched")
    return fetched
