"""A crawl whose engine the test plays: a real scheduler and filter, opened over an engine that downloads nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.http import Response
from twisted.python.failure import Failure

from benchmarks.engine import NOTHING_ELSE, begin
from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.components.scheduler import DurableScheduler
from scrapy_bloom.components.spider_crawl import CURRENT, crawl_of
from scrapy_bloom.errors import BloomError
from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import JobInfo, inspect_job
from scrapy_bloom.job.records import Feeds
from scrapy_bloom.job.store import JobStore
from tests.support.crawler import quick_crawler
from tests.support.processes import PATIENCE

OUR_FILTER = f"{BloomDupeFilter.__module__}.BloomDupeFilter"
OUR_SCHEDULER = f"{DurableScheduler.__module__}.DurableScheduler"
SCRAPYS_FILTER = "scrapy.dupefilters.RFPDupeFilter"
SCRAPYS_SCHEDULER = "scrapy.core.scheduler.Scheduler"
OURS = {"DUPEFILTER_CLASS": OUR_FILTER, "SCHEDULER": OUR_SCHEDULER}
SCRAPYS = {"DUPEFILTER_CLASS": SCRAPYS_FILTER, "SCHEDULER": SCRAPYS_SCHEDULER}
BY_HOST = "scrapy.pqueues.DownloaderAwarePriorityQueue"
BY_PRIORITY = "scrapy.pqueues.ScrapyPriorityQueue"

SCRAPY_LEAVES_FILES_OPEN = [
    pytest.mark.usefixtures("scrapy_leaves_files_open"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of tests of Scrapy's own scheduler."""


class PlainSpider(Spider):
    name = "site"
    state: dict[str, Any]

    def parse_other(self, response: Any) -> None:
        pass


class ItemList(Feeds):
    """Feeds that keep items in a list."""

    def __init__(self, items: list[Any] | None = None) -> None:
        self.items: list[Any] = [] if items is None else items

    def write(self, feed: str, item: Any, *, is_acknowledged: bool = False) -> bool:
        self.items.append(item)
        return True


class Engine:
    """A scheduler, and the engine's part in hands of the test: requests go to the downloader, and end."""

    def __init__(
        self,
        jobdir: Path | None,
        settings: dict[str, Any] | None = None,
        spider: type[Spider] = PlainSpider,
        *,
        has_start: bool = False,
    ) -> None:
        self.jobdir = jobdir
        usual = {
            "JOBDIR": str(jobdir) if jobdir else None,
            "BLOOM_CAPACITY": 10_000,
            "SCHEDULER_PRIORITY_QUEUE": BY_HOST,
            "EXTENSIONS": {ItemList: 0},
        }
        self.crawler = quick_crawler(spider, {**NOTHING_ELSE, **usual, **OURS, **(settings or {})})
        self.scheduler = begin(self.crawler)
        self.spider, self.engine = self.crawler.spider, self.crawler.engine
        self.spider.state = {}
        self.engine._start = has_start or None
        try:
            self.scheduler.open(self.spider)
        except BaseException:
            self.scheduler.df.close("refused")
            self.engine.downloader.close()
            raise
        self.crawl: Any = crawl_of(self.crawler)
        self.items: list[Any] = feeds.items if (feeds := self.crawler.get_extension(ItemList)) is not None else []
        """The items of pages that were committed, or are written by the next commit."""
        self._commits = 0

    @property
    def store(self) -> Any:
        return self.crawl.store

    def stat(self, name: str) -> Any:
        assert self.crawler.stats is not None
        return self.crawler.stats.get_value(name, 0)

    def pending(self) -> int:
        return len(self.store)

    def push(self, *requests: Request) -> list[bool]:
        return [self.scheduler.enqueue_request(request) for request in requests]

    def push_from(self, parent: Request, *requests: Request) -> list[bool]:
        """Push *requests* that the callback of *parent*, which is in progress, yields."""
        with self.within(parent):
            return self.push(*requests)

    @contextmanager
    def within(self, request: Request) -> Iterator[None]:
        """Do what follows in the context of the page of *request*, which is in progress, as its callback does."""
        page = self.crawl.of_request(request)
        assert page is not None
        token = CURRENT.set(page)
        try:
            yield
        finally:
            CURRENT.reset(token)

    def next(self) -> Request | None:
        """What the engine does to download the next request: it is in progress, and active in its slot."""
        if (request := self.scheduler.next_request()) is not None:
            self.engine._slot.add_request(request)
            self._slot(request).active.add(request)
        return request

    def start(self) -> Request | None:
        """Start the next request, unless none is pending.

        Scrapy's scheduler answers None once for each empty queue that a request which cannot be serialized has left in
        its priority queue; the engine comes back later.
        """
        request = self.next()
        while request is None and self.scheduler.has_pending_requests():
            request = self.next()
        return request

    def fetch(self, *requests: Request) -> Request:
        """Push *requests*, and start the next request; there is one."""
        self.push(*requests)
        request = self.start()
        assert request is not None
        return request

    def give(self, request: Request, item: Any) -> None:
        """Give an item of the page of *request*, which is in progress."""
        self.crawl.of_request(request).gave.append(("items.jl", item, None))

    def end(self, request: Request, result: int | Response | Request | Failure | None = 200) -> None:
        """What the engine does when it is done with *request*: *result* came of its download; None: nothing did.

        A number is the status of a response.
        """
        if result is not None and self.crawl is not None:
            response = Response(request.url, status=result) if isinstance(result, int) else result
            self.crawl.result_came(request, response)
        self._slot(request).active.discard(request)
        self.engine._slot.remove_request(request)

    def _slot(self, request: Request) -> Slot:
        downloader = self.engine.downloader
        return downloader.slots.setdefault(downloader.get_slot_key(request), Slot(8, 0.0, 0.0))

    def drain(self) -> list[str]:
        """Crawl all that is left, one request at a time, and return the URLs in order."""
        urls = []
        while (request := self.start()) is not None:
            urls.append(request.url)
            self.end(request)
        return urls

    def commit(self, *, whole: bool = True) -> None:
        """Commit all up to now; unless *whole*, stop when the transaction is written and no bit is set."""
        store = None if self.crawl is None else self.crawl.store
        if not isinstance(store, JobStore):
            return
        if whole:
            store.flush()
            return
        self._commits += 1
        until, noted = time.monotonic() + PATIENCE, b"(%d, %d)" % (store.state.runs, self._commits)
        self.spider.state["noted"] = noted  # so that there is something to commit
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "COMMIT_SECONDS", 0.0)
            while not self._is_noted(noted):
                assert time.monotonic() < until
                self.crawl.core.tick()  # begins the commit, or ends the one before
                for _ in range(100):  # without a tick: the next one would set the bits
                    if self._is_noted(noted):
                        break
                    time.sleep(0.0005)

    def _is_noted(self, noted: bytes) -> bool:
        return noted in self.store.database.notes("state").get("spider.state", b"")

    def stop(self, reason: str = "finished") -> None:
        """A clean stop, after all that was in progress has ended."""
        for request in list(self.engine._slot.inprogress):
            self.end(request)
        self.close(reason)
        self.closed()

    def close(self, reason: str) -> None:
        """Close the scheduler, as the engine does before the handlers of ``spider_closed``."""
        self.scheduler.close(reason)
        self.engine.downloader.close()

    def closed(self) -> None:
        """What the engine reports when these handlers have ended."""
        if self.crawl is not None:
            self.crawl.end()

    def killed(self, copy: Path) -> Path:
        """Copy the files of the job as a kill at this moment would leave them, and return the copy. Then stop."""
        assert self.jobdir is not None
        snapshot(self.jobdir, copy)
        self.stop()
        return copy


@contextmanager
def opened(jobdir: Path | None, settings: dict[str, Any] | None = None, **others: Any) -> Iterator[Engine]:
    engine = Engine(jobdir, settings, **others)
    try:
        yield engine
    finally:
        engine.stop()


def wait_for_job(job: Path, is_so: Callable[[JobInfo], object]) -> JobInfo:
    """Return what is in *job* once *is_so* of it."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(BloomError):  # the job is being begun
            if is_so(info := inspect_job(job)):
                return info
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {job}")


def snapshot(directory: Path, copy: Path) -> None:
    """Copy *directory*, in which a commit may be under way, as it is at one moment.

    If the database has not changed between two copies of it, the log copied in between belongs to it.
    """
    contents: list[dict[Path, bytes]] = [{}]
    while len(contents) < 2 or contents[-1] != contents[-2]:
        files = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".bloom"]
        contents.append({path.relative_to(directory): path.read_bytes() for path in sorted(files)})
    shutil.copytree(directory, copy, ignore=lambda _, names: [name for name in names if name.startswith("job.sqlite")])
    for path, content in contents[-1].items():
        (copy / path).write_bytes(content)
