"""Crawls that are interrupted in the middle of their start URLs, when nothing is pending."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider

from tests.support.crawls import ADDON, Site, crawl, start
from tests.support.engine import wait_for_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.job.inspect import JobInfo


class LogsInAndWaits:
    """Spider middleware: asks for a login first, and behind the second start URL waits for a file."""

    def __init__(self, crawler: Crawler) -> None:
        self._login = crawler.settings["LOGIN"]
        self._file = Path(crawler.settings["CHILD"], "go")

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        yield Request(self._login, dont_filter=True)
        count = 0
        async for request in start:
            while count == 2 and not self._file.exists():
                await asyncio.sleep(0.01)
            count += 1
            yield request


def test_a_list_is_gone_on_with_while_nothing_is_pending(tmp_path: Path) -> None:
    """Each start URL is fetched once, and what a middleware puts before them in each run."""
    urls = [f"/{number}" for number in range(5)]
    with Site({url: [] for url in (*urls, "/login")}) as site:
        settings = {
            **ADDON,
            "JOBDIR": str(tmp_path / "job"),
            "START": urls,
            "LOGIN": site.url + "/login",
            "SPIDER_MIDDLEWARES": {f"{__name__}.LogsInAndWaits": 500},
        }
        running = start(site, tmp_path, settings)
        wait_for_job(tmp_path / "job", has_done_three)
        running.signal(signal.SIGKILL)
        running.finish()
        assert site.hits == dict.fromkeys(["/login", "/0", "/1"], 1)
        (tmp_path / "go").touch()
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == {**dict.fromkeys(urls, 1), "/login": 2}
        assert "had ended" not in outcome.log


def has_done_three(info: JobInfo) -> bool:
    """Return whether a commit knows that three requests came, and that all are done."""
    return info.state.last_id == 3 and not info.state.pending and not info.state.in_flight


def test_a_job_that_begins_anew_and_ends_at_once_loses_no_start_url(tmp_path: Path) -> None:
    """A finished job is begun again, and its crawl is closed before it has asked for anything."""
    urls = ["/0", "/1"]
    with Site({url: [] for url in urls}) as site:
        settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "START": urls}
        crawl(site, tmp_path, settings)
        crawl(site, tmp_path, {**settings, "EXTENSIONS": {f"{__name__}.ClosesAtOnce": 1}})
        site.forget_hits()
        crawl(site, tmp_path, settings)
        assert site.hits == dict.fromkeys(urls, 1)


class ClosesAtOnce:
    """Extension: closes the spider when it is opened."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        crawler.signals.connect(cls._close, signal=signals.spider_opened, weak=False)
        return cls()

    @staticmethod
    def _close() -> None:
        raise CloseSpider("shutdown")
