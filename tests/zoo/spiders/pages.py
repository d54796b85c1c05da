"""What a page leads to: requests in memory, unfiltered requests, long callbacks, objects that go on changing."""

from __future__ import annotations

import asyncio
import datetime
import decimal
from typing import Any

import scrapy

from tests.zoo.site import ITEMS
from tests.zoo.spiders import ZooSpider, path_of


class NestedClosures(ZooSpider):
    """A closure that leads to another closure, and that one to a page that could be written to disk."""

    name = "nested-closures"

    def parse(self, response: Any) -> Any:
        for i in range(ITEMS // 3):
            yield response.follow(f"/item/{i}", lambda page, i=i: self.second(page, i))

    def second(self, response: Any, i: int) -> Any:
        yield self.item(response)
        yield response.follow(f"/more/{i}", lambda page: self.third(page, i))

    def third(self, response: Any, i: int) -> Any:
        yield self.item(response)
        yield response.follow(f"/last/{i}", self.parse_item)


class PartsOfItem(ZooSpider):
    """An item is collected from three pages, in cb_kwargs, with dates and decimals."""

    name = "parts"

    def parse(self, response: Any) -> Any:
        day, price = datetime.date(2024, 2, 29), decimal.Decimal("1.10")
        for i in range(ITEMS // 3):
            part = {"day": day + datetime.timedelta(i), "price": price * i, "tags": {"a", i}, "at": (i, b"\xff")}
            yield response.follow(f"/item/{i}", self.parse_price, cb_kwargs={"part": part})

    def parse_price(self, response: Any, part: dict[str, Any]) -> Any:
        yield response.follow(
            f"/price/{path_of(response)[6:]}", self.parse_stock, cb_kwargs={"part": part}, dont_filter=True
        )

    def parse_stock(self, response: Any, part: dict[str, Any]) -> Any:
        yield {"page": path_of(response), "day": part["day"], "price": part["price"], "tags": len(part["tags"])}


class OddDepth(ZooSpider):
    """A spider that counts levels in ``meta["depth"]`` for itself, in halves."""

    name = "odd-depth"

    async def start(self) -> Any:
        yield scrapy.Request(self.base + "/", meta={"depth": 0.5})

    def parse(self, response: Any) -> Any:
        for i in range(ITEMS):
            yield response.follow(f"/item/{i}", self.parse_item, meta={"depth": 7.25, "level": [i / 2]})


class OddMeta(ZooSpider):
    """Meta keys that mean something to others, with values that they would not expect."""

    name = "odd-meta"

    def parse(self, response: Any) -> Any:
        odd: tuple[Any, ...] = ("x", None, -1, 1.5, [], decimal.Decimal(2))
        for i in range(ITEMS):
            meta = {
                "retry_note": odd[i % 6],
                "is_start_request": odd[i % 5],
                "bloom": odd[i % 4],
                7: "a number as a key",
            }
            yield response.follow(f"/item/{i}", self.parse_item, meta=meta)


class Gathering(ZooSpider):
    """A coroutine callback that returns a list after it has waited."""

    name = "gathering"

    async def parse_item(self, response: Any) -> Any:
        await asyncio.gather(*(asyncio.sleep(0.01 * i) for i in range(3)))
        number = path_of(response).rpartition("/")[2]
        return [self.item(response), response.follow(f"/more/{number}", self.parse_more)]

    async def parse_more(self, response: Any) -> Any:
        yield self.item(response)
