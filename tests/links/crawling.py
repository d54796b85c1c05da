"""A crawl that knows what it has seen, without an engine around it, and pages as it would have downloaded them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, TextResponse
from scrapy.link import Link

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.links.extractor import UnseenLinks
from tests.support.crawler import quick_crawler

PAGE = "http://a.example/docs/page.html"
A, B = "http://a.example/docs/a.html", "http://a.example/docs/b.html"


class AskingSpider(UnseenLinks, Spider):
    name = "asking"


class OpenCrawl:
    """A crawl with a filter of ours, and what a test asks of it."""

    def __init__(self, dupefilter: type[BloomDupeFilter], settings: dict[str, Any]) -> None:
        crawler = quick_crawler(AskingSpider, {"BLOOM_CAPACITY": 10_000, **settings})
        spider = crawler._create_spider()
        assert isinstance(spider, AskingSpider)
        self.spider = crawler.spider = spider
        self.filter = dupefilter.from_crawler(crawler)
        self.filter.open()
        self.crawl: Any = self.filter.crawl

    def downloaded(self, response: TextResponse) -> TextResponse:
        self.crawl.push(Request(response.url), None, None)
        if popped := self.crawl.pop():
            response.request = popped[0]
        return response

    def see(self, *urls: str) -> None:
        for url in urls:
            self.filter.request_seen(Request(url))

    def stat(self, name: str) -> Any:
        return self.crawl.crawler.stats.get_value(name, 0)


@contextmanager
def opened(dupefilter: type[BloomDupeFilter] = BloomDupeFilter, **settings: Any) -> Iterator[OpenCrawl]:
    crawl = OpenCrawl(dupefilter, settings)
    try:
        yield crawl
    finally:
        crawl.filter.close("finished")


def page(html: str) -> HtmlResponse:
    return HtmlResponse(PAGE, body=html, encoding="utf-8", request=Request(PAGE))


def page_with(*hrefs: str) -> HtmlResponse:
    return page("".join(f'<a href="{href}">x</a>' for href in hrefs))


def urls_of(links: Sequence[Link]) -> list[str]:
    return [link.url for link in links]
