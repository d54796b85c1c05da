"""What a page leads to: odd values in requests, long callbacks, failures, what middlewares and rules make of them."""

import asyncio
import datetime
import decimal
from typing import Any

import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.zoo.site import ITEMS
from tests.zoo.spiders import ZooSpider, path_of

HERE = "tests.zoo.spiders.pages"


class Lists(ZooSpider):
    """Start page, lists, items."""

    name = "lists"

    def parse(self, response: Any) -> Any:
        yield from response.follow_all(css="a", callback=self.parse_list)

    def parse_list(self, response: Any) -> Any:
        yield from response.follow_all(css="a", callback=self.parse_item)


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


class OddMeta(ZooSpider):
    """Meta keys that mean something to others, with values that they would not expect; levels counted in halves."""

    name = "odd-meta"

    async def start(self) -> Any:
        yield scrapy.Request(self.base + "/", meta={"depth": 0.5})

    def parse(self, response: Any) -> Any:
        odd: tuple[Any, ...] = ("x", None, -1, 1.5, [], decimal.Decimal(2))
        for i in range(ITEMS):
            meta = {
                "retry_note": odd[i % 6],
                "is_start_request": odd[i % 5],
                "bloom": odd[i % 4],
                "depth": 7.25,
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


class Failing(ZooSpider):
    """Pages that fail for good, in each way. Errbacks make items of some; with BLOOM_FORGET_FAILED the crawl ends."""

    name = "failing"
    more_settings = {"BLOOM_FORGET_FAILED": True}
    custom_settings = {"RETRY_TIMES": 1}
    failed = 12  # of /shut/ and /dead/; a 404 is an answer

    def parse(self, response: Any) -> Any:
        for kind in ("shut", "dead", "gone", "item"):
            for i in range(6):
                yield response.follow(f"/{kind}/{i}", self.parse_item, errback=self.note if i % 2 else None)

    def note(self, failure: Any) -> Any:
        yield {"failed": path_of(failure.request), "why": failure.type.__name__}


class CloseAtPrice(ZooSpider):
    """Stops itself at a certain page: what came before that is in the file."""

    name = "close-at-price"
    custom_settings = {"CONCURRENT_REQUESTS": 1}
    hits_vary = "the next page may be on its way"

    def parse(self, response: Any) -> Any:
        yield from [self.item(response), response.follow("/next/0")]
        if response.url.endswith("/20"):
            raise CloseSpider("price")
        yield from response.follow_all(css="a[href*=next]")


class Output:
    """Spider middleware: drops an item, adds an item and a request, and makes an item of an exception."""

    def process_spider_output(self, response: Any, result: Any, spider: Any = None) -> Any:
        for output in result:
            if not (isinstance(output, dict) and output["page"].endswith("3")):
                yield output
        if "/item/" in response.url:
            yield {"page": f"beside {path_of(response)}"}
            yield scrapy.Request(response.url.replace("/item/", "/more/"), callback=spider.parse_more)

    async def process_spider_output_async(self, response: Any, result: Any, spider: Any = None) -> Any:
        async for output in result:
            yield output

    def process_spider_exception(self, response: Any, exception: Any, spider: Any = None) -> Any:
        return [{"page": f"error on {path_of(response)}"}]


class Outputs(Lists):
    """A spider middleware that has its say."""

    name = "outputs"
    custom_settings = {"SPIDER_MIDDLEWARES": {f"{HERE}.Output": 500}}

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
        if response.url.endswith("5"):
            raise ValueError("as spiders do")

    def parse_more(self, response: Any) -> Any:
        yield self.item(response)


class LinkedFailures(ZooSpider):
    """Pages that fail are taken back with BLOOM_FORGET_FAILED, and linked to from everywhere: the crawl still ends."""

    name = "linked-failures"
    failed = None  # as often as it was followed
    custom_settings = {"RETRY_TIMES": 0}
    more_settings = {"BLOOM_FORGET_FAILED": True}
    hits_vary = "a link to a page that has failed is followed once more"

    def parse(self, response: Any) -> Any:
        yield from self.follow_items(response)

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
        yield from (response.follow(f"/shut/{i}", self.parse_item) for i in range(3))


class FirstPageByRule(CrawlSpider):
    """A start page that the spider's own rule matches, too: the other pages link back to it."""

    name = "first-page-by-rule"
    failed = 0
    rules = [Rule(LinkExtractor(allow="/ring/"), callback="parse_item", follow=True)]

    def __init__(self, base: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [f"{base}/ring/0"]

    def parse_item(self, response: Any) -> Any:
        yield {"page": response.css("h1::text").get()}


class ObeysRobots(Lists):
    """robots.txt forbids a third of the pages, which have not failed; the spider learns of them by its errback."""

    name = "obeys-robots"
    # Scrapy 2.19 forgets robots.txt for the third and later requests that wait for it, as a resumed crawl has them.
    custom_settings = {"ROBOTSTXT_OBEY": True, "CONCURRENT_REQUESTS": 2}
    more_settings = {"BLOOM_FORGET_FAILED": True}

    def parse_list(self, response: Any) -> Any:
        yield from response.follow_all(css="a", callback=self.parse_item, errback=self.refused)

    def refused(self, failure: Any) -> Any:
        yield {"refused": path_of(failure.request), "why": failure.type.__name__}


class ThroughCache(Lists):
    """Scrapy's HTTP cache: a page that is asked for again comes from it."""

    name = "through-cache"
    custom_settings = {"HTTPCACHE_ENABLED": True}

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
        if "again" not in response.meta:
            yield response.request.replace(dont_filter=True, meta={"again": True})

    @classmethod
    def update_settings(cls, settings: Any) -> None:
        super().update_settings(settings)
        settings.set("HTTPCACHE_DIR", f"{settings['ZOO']}/cache", "spider")
