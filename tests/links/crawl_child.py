"""Crawl the site argv[1] with the spiders argv[2] in one process, settings argv[3], and print what each fetched."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

from scrapy import Spider
from scrapy.crawler import CrawlerProcess
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom.links.extractor import UnseenLinkExtractor
from scrapy_bloom.links.spider import UnseenLinks

URL = sys.argv[1]
HERE = urlsplit(URL).netloc


class Noting:
    start_urls = (URL,)

    def note(self, response: Any) -> None:
        self.fetched = [*getattr(self, "fetched", []), unquote(urlsplit(response.url).path)]


class Ours(Noting, CrawlSpider):
    name = "ours"
    rules = (Rule(UnseenLinkExtractor(allow_domains=HERE), callback="note", follow=True),)
    parse_start_url = Noting.note


class Asking(UnseenLinks, Noting, Spider):
    name = "asking"

    def parse(self, response: Any) -> Any:
        self.note(response)
        yield from response.follow_all(self.unseen_links(response.css("a"), response))


process = CrawlerProcess({"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False, **json.loads(sys.argv[3])})
spiders = {spider.name: spider for spider in (Ours, Asking)}
crawlers = [process.create_crawler(spiders[name]) for name in sys.argv[2].split(",")]
for crawler in crawlers:
    process.crawl(crawler)
process.start()
found = [(crawler.spider.fetched, crawler.stats.get_value("bloom/links_dropped", 0)) for crawler in crawlers]
print(json.dumps(found))  # noqa: T201 - what the test reads
