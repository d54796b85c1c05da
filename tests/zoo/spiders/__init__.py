"""Spiders as people write them, each after the kind of a public report. The docstring says what its user expects."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import scrapy

from tests.zoo.site import ITEMS

NO_FLEET = ("fleet", "fleet-kill")


def path_of(response: Any) -> str:
    return re.sub(r"^https?://[^/]*", "", response.url)


async def let_items_through(spider: Any) -> None:
    """Wait until the pipelines are done with the items that *spider* has yielded, however slow the machine is."""
    for _ in range(10):  # rounds of the event loop, in which Scrapy takes the items in
        await asyncio.sleep(0.01)
    while spider.crawler.engine.scraper.slot.itemproc_size:
        await asyncio.sleep(0.01)


class ZooSpider(scrapy.Spider):
    """Begins at ``/``. No page counts as failed unless the spider says so."""

    failed = 0
    base: str

    def __init__(self, base: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = base
        self.start_urls = [f"{base}/"]

    def item(self, response: Any) -> Any:
        return {"page": path_of(response)}

    def follow_items(self, response: Any, path: str = "/item", **kwargs: Any) -> Iterator[scrapy.Request]:
        for i in range(ITEMS):
            yield response.follow(f"{path}/{i}", **{"callback": self.parse_item, **kwargs})

    def parse(self, response: Any) -> Any:
        yield from self.follow_items(response)

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
