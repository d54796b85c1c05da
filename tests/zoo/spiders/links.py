"""What follows links by itself, or decides which of them are followed: CrawlSpider, sitemaps, robots.txt, depths."""

from typing import Any

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.zoo.spiders import Lists, path_of


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
