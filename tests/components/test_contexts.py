"""Every call of Scrapy's into the code of a user knows its page, under each reactor.

This module must not be imported together with a reactor: its crawls choose one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from typing_extensions import Self

from scrapy_bloom.components.spider_crawl import crawl_of
from tests.support.crawls import ADDON, FollowSpider, Site, crawl


class Places:
    """Middleware of both kinds, item pipeline and extension: notes which page each call belongs to."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler, self.notes = crawler, getattr(crawler, "notes", {})
        crawler.notes = self.notes  # type: ignore[attr-defined] # one dictionary for all three
        if self.notes:
            return
        connect = crawler.signals.connect
        connect(self._item_scraped, signal=signals.item_scraped)
        connect(self._request_scheduled, signal=signals.request_scheduled)
        connect(self._spider_closed, signal=signals.spider_closed)
        self.note("opened")

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def note(self, place: str) -> None:
        crawl = crawl_of(self.crawler)
        page = None if crawl is None else crawl.current()
        self.notes.setdefault(place, []).append(page and page.request.url.rpartition("/")[2])

    async def process_request(self, request: Request, spider: Any = None) -> None:
        self.note(f"download of {request.url.rpartition('/')[2]}")

    def process_spider_output(self, response: Any, result: Any, spider: Any = None) -> Any:
        for output in result:
            self.note(f"middleware of {response.meta['page']}")
            yield output

    async def process_spider_output_async(self, response: Any, result: Any, spider: Any = None) -> Any:
        async for output in result:
            self.note(f"middleware of {response.meta['page']}")
            yield output

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        self.note(f"pipeline of {item['page']}")
        await asyncio_or_not(self.crawler)
        self.note(f"pipeline of {item['page']}")
        callback = self.crawler.spider.nothing  # type: ignore[union-attr]
        url = f"data:,{item['page']}/{item['page']}-by-pipeline"
        self.crawler.engine.crawl(Request(url, callback, dont_filter=True))  # type: ignore[union-attr]
        return item

    def _item_scraped(self, item: Any) -> None:
        self.note(f"handler of {item['page']}")

    def _request_scheduled(self, request: Request) -> None:
        self.note(f"scheduled {request.url.rpartition('/')[2]}")

    def _spider_closed(self) -> None:
        self.note("closed")
        Path(self.crawler.settings["CHILD"], "notes").write_text(json.dumps(self.notes))


async def asyncio_or_not(crawler: Crawler) -> None:
    """Let other pages go on, if there is an event loop that can."""
    if "asyncio" in crawler.settings["TWISTED_REACTOR"]:
        await asyncio.sleep(0.01)


class FourWays(FollowSpider):
    """Asks for pages in callbacks of four kinds."""

    def parse(self, response: Any) -> Any:
        for number in range(3):
            for callback in (self.sync, self.asynchronous):
                page = f"{callback.__name__}{number}"
                yield response.follow(f"/{page}", callback, dont_filter=True, meta={"page": page})

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.start_urls[0], meta={"page": ""})

    def sync(self, response: Any) -> Any:
        for _ in range(3):
            yield self._ask(response)
            yield {"page": response.meta["page"]}

    async def asynchronous(self, response: Any) -> AsyncIterator[Any]:
        for _ in range(3):
            yield self._ask(response)
            await asyncio_or_not(self.crawler)
            yield {"page": response.meta["page"]}

    def _ask(self, response: Any) -> Request:
        """Ask the engine for one page, and return the request of another."""
        page = response.meta["page"]
        self.crawler.engine.crawl(Request(f"data:,{page}/{page}-by-callback", self.nothing, dont_filter=True))  # type: ignore[union-attr]
        return Request(f"data:,{page}/{page}-yielded", self.nothing, dont_filter=True)

    def nothing(self, response: Any) -> None:
        pass


@pytest.mark.parametrize(
    "reactor",
    ["asyncioreactor.AsyncioSelectorReactor", pytest.param("selectreactor.SelectReactor", marks=pytest.mark.slow)],
)
def test_every_call_knows_its_page(tmp_path: Path, reactor: str) -> None:
    """Callbacks of both kinds, middlewares, pipelines and handlers of signals do, and what these ask the engine for."""
    places = f"{__name__}.Places"
    settings = {
        **ADDON,
        "JOBDIR": str(tmp_path / "job"),
        "SPIDER": f"{__name__}.FourWays",
        "SPIDER_MIDDLEWARES": {places: 500},
        "ITEM_PIPELINES": {places: 500},
        "DOWNLOADER_MIDDLEWARES": {places: 500},
        "EXTENSIONS": {places: 500},
        "TWISTED_REACTOR": f"twisted.internet.{reactor}",
    }
    pages = [f"{kind}{number}" for kind in ("sync", "asynchronous") for number in range(3)]
    with Site({"/": [], **{f"/{page}": [] for page in pages}}) as site:
        outcome = crawl(site, tmp_path, settings)
    assert not outcome.lines("ERROR"), outcome.log
    notes = json.loads((tmp_path / "notes").read_text())
    assert notes["closed"] == notes["opened"] == [None]
    for page in pages:
        assert notes[f"scheduled {page}"] == [""]
        assert notes[f"middleware of {page}"] == [page] * 6
        assert notes[f"handler of {page}"] == [page] * 3
        assert notes[f"pipeline of {page}"] == [page] * 6
        assert notes[f"download of {page}"] == [page]
        for way in ("yielded", "by-callback", "by-pipeline"):
            assert notes[f"scheduled {page}-{way}"] == [page] * 3
