"""Middlewares that replace, refuse or repeat requests: proxies, render services, caches of browsers."""

from __future__ import annotations

from typing import Any

import scrapy
from scrapy.exceptions import CloseSpider

from tests.zoo.spiders import Lists, ZooSpider, path_of

HERE = "tests.zoo.spiders.replaced"


def _with(name: str) -> dict[str, Any]:
    return {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.{name}": 610}}


class OtherAddress:
    """Downloader middleware: replaces each request by a filtered one for another address."""

    def process_request(self, request: Any, spider: Any = None) -> Any:
        if "?via" in request.url or "/item/" not in request.url:
            return None
        return request.replace(url=request.url + "?via=service")


class Rotation:
    """Downloader middleware: tries another proxy if an answer looks like a ban, as the package of this name does."""

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        return self._retry(request, spider) if response.status == 503 else response

    def process_exception(self, request: Any, exception: Any, spider: Any = None) -> Any:
        return self._retry(request, spider)

    def _retry(self, request: Any, spider: Any) -> Any:
        times = request.meta.get("proxy_retry_times", 0) + 1
        if times > 3:
            return None
        retry = request.copy()
        retry.meta["proxy_retry_times"] = times
        retry.dont_filter = True
        return retry


class CopiedRequest:
    """Downloader middleware: the response carries a copy of its request."""

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        return response.replace(request=request.copy())


class RenderedElsewhere(Lists):
    """A render service under another address, whose requests are filtered; with BLOOM_FORGET_FAILED the crawl ends."""

    name = "rendered-elsewhere"
    custom_settings = _with("OtherAddress")
    more_settings = {"BLOOM_FORGET_FAILED": True}


class RotatingProxies(ZooSpider):
    """Bans are answered with another proxy."""

    name = "rotating-proxies"
    custom_settings = _with("Rotation")
    more_settings = {"BLOOM_FORGET_FAILED": True}

    def parse(self, response: Any) -> Any:
        yield from self.follow_items(response, "/flaky")


class Copies(Lists):
    """Responses that carry a copy of their request."""

    name = "copies"
    custom_settings = _with("CopiedRequest")


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
