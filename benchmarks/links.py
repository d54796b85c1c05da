"""A whole crawl of a site rich in links with a ``CrawlSpider``: Scrapy's extractor and ours, and the floor below both.

The site is served on 127.0.0.1, and every crawl runs in a process of its own, one after the other. Links to anywhere
else are dropped when they are extracted. All must fetch the same pages, and all parse each page, as a spider that takes
items from it does. The floor is what Scrapy leaves: the same pages fetched and parsed, no link followed.
"""

from __future__ import annotations

import argparse
import json
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from benchmarks import measure
from benchmarks.crawls import run_spider
from benchmarks.servers import directory_pages, generated_pages, served

ASKING, EXTRACTOR, FLOOR = "UnseenLinks", "UnseenLinkExtractor", "the floor: no links followed"
ADDED, GUARDED = "UnseenLinkExtractor, add-on", "UnseenLinkExtractor, loop guard"
BLOOM: dict[str, Any] = {"DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter"}
ADDON: dict[str, Any] = {"ADDONS": {"scrapy_bloom.Addon": 300}}
SETTINGS = {measure.SCRAPY: {}, ADDED: ADDON, GUARDED: {**ADDON, "BLOOM_LOOP_GUARD": True}}
"""Settings of a crawl by its name. The others have those of BLOOM."""


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print a table."""
    parser.add_argument("--html", type=Path, metavar="DIR", help="crawl this folder with HTML files")
    parser.add_argument("--pages", type=int, default=400, help="without DIR: generated pages (default: %(default)s)")
    parser.add_argument("--links", type=int, default=150, help="with that many links each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (default: %(default)s)")
    parser.add_argument("--guard", action="store_true", help="the add-on without and with the loop guard")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "lxml")
    site = directory_pages(options.html) if options.html else generated_pages(options.pages, options.links)
    with served(*site) as url, TemporaryDirectory() as directory:
        given = {"url": url, "pages_file": str(Path(directory, "pages.json"))}
        names = (ADDED, GUARDED) if options.guard else (EXTRACTOR, measure.SCRAPY, ASKING, FLOOR)
        sides = measure.of_each(crawled, names, **given)
        # Its pages are those of the floor, and nobody is timed while the server's memory is cold.
        sides[names[0]]()
        found = measure.side_by_side(sides, options.rounds)
    if len({crawl["digest"] for crawls in found.values() for crawl in crawls}) != 1:
        raise AssertionError("not all crawls fetched the same pages")
    name = options.html or f"{options.pages:,} generated pages with {options.links} links each"
    measure.print_figures(f"{name}, every page parsed", found)


def crawled(url: str, name: str, pages_file: str) -> dict[str, Any]:
    """Crawl all that *url* leads to on its own host and port, and return times and counts.

    The first crawl notes its pages in *pages_file*; the floor is made of them.
    """
    from scrapy import Request, Spider
    from scrapy.http import HtmlResponse
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule

    from scrapy_bloom.links.extractor import UnseenLinkExtractor, UnseenLinks

    pages: set[str] = set()

    def parse_page(response: Any) -> None:
        pages.add(response.url)
        if isinstance(response, HtmlResponse):
            _ = response.selector

    is_ours = name in (EXTRACTOR, ADDED, GUARDED)
    extractor = (UnseenLinkExtractor if is_ours else LinkExtractor)(allow_domains=urlsplit(url).netloc)
    process_links = "unseen_links" if name == ASKING else None

    class LinkSpider(UnseenLinks, CrawlSpider):
        name = "links"
        start_urls = (url,)
        rules = (Rule(extractor, callback=parse_page, follow=True, process_links=process_links),)
        parse_start_url = staticmethod(parse_page)

    class FloorSpider(Spider):
        name = "links"

        async def start(self) -> Any:
            for page in json.loads(Path(pages_file).read_text(encoding="utf-8")):
                yield Request(page, parse_page)

    settings = {"LOG_LEVEL": "WARNING", "ROBOTSTXT_OBEY": False, "DOWNLOAD_DELAY": 0}
    settings |= {"HTTPERROR_ALLOW_ALL": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, **SETTINGS.get(name, BLOOM)}
    cpu, stats = run_spider(FloorSpider if name == FLOOR else LinkSpider, settings)
    if not Path(pages_file).exists():
        Path(pages_file).write_text(json.dumps(sorted(pages)), encoding="utf-8")
    return {
        "CPU s": cpu,
        "pages": len(pages),
        "digest": sha256("\n".join(sorted(pages)).encode()).hexdigest(),
        "links filtered": stats.get("dupefilter/filtered", 0),
    }
