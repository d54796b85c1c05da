"""Real crawls in processes of their own, since a reactor starts only once per process.

    crawl = start_crawl(site.url(), settings={"JOBDIR": str(tmp_path)})
    stats = crawl.finish().stats

Run as a script, this file is the crawl: a spider that follows every link within the host, under the settings it is
given, with deprecation warnings as errors, that prints the final stats as JSON in its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60
"""Seconds after which a crawl that has not ended counts as hanging."""


@dataclass
class Outcome:
    """What a crawl left behind."""

    returncode: int
    log: str
    stats: dict[str, Any]
    """The final stats; empty if the crawl did not get as far as that."""


class Crawl:
    """A crawl that is under way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def finish(self) -> Outcome:
        """Wait for the end and return what there is."""
        try:
            out, log = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, log = self.process.communicate()
            raise AssertionError(f"the crawl hangs; its log:\n{log}") from None
        lines = out.strip().splitlines()
        return Outcome(self.process.returncode, log, json.loads(lines[-1]) if lines else {})

    def signal(self, number: int) -> None:
        """Send the signal to the crawl's process."""
        self.process.send_signal(number)


def start_crawl(url: str, settings: dict[str, Any] | None = None, *, spider: str = "SiteSpider") -> Crawl:
    """Start a crawl of the site of *url* under *settings*, by the *spider* of that name below."""
    command = [sys.executable, __file__, url, json.dumps(settings or {}), spider]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    return Crawl(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))


def crawl(url: str, settings: dict[str, Any] | None = None, *, spider: str = "SiteSpider") -> Outcome:
    """Crawl the site of *url* to the end."""
    outcome = start_crawl(url, settings, spider=spider).finish()
    assert outcome.returncode == 0, outcome.log
    return outcome


def _main(url: str, settings: dict[str, Any], spider: str) -> None:
    import warnings
    from urllib.parse import urlsplit

    import scrapy
    from scrapy.crawler import CrawlerProcess
    from scrapy.exceptions import ScrapyDeprecationWarning
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule

    from scrapy_bloom import UnseenLinkExtractor, UnseenLinks

    warnings.simplefilter("error", ScrapyDeprecationWarning)

    class SiteSpider(scrapy.Spider):
        name = "site"
        start_urls = (url,)
        allowed_domains = (urlsplit(url).hostname,)

        def parse(self, response: Any, **_: Any) -> Any:
            if (raising_on := self.settings["RAISE_ON"]) and raising_on in response.url:
                raise RuntimeError(raising_on)
            yield {"url": response.url}
            yield from response.follow_all(LinkExtractor().extract_links(response))

    class AskingSpider(UnseenLinks, SiteSpider):
        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            links = LinkExtractor().extract_links(response)
            yield from response.follow_all(self.unseen_links(links))

    class RuleSpider(CrawlSpider, SiteSpider):
        rules = (Rule(LinkExtractor(), follow=True),)
        parse = CrawlSpider._parse

    class AskingRuleSpider(UnseenLinks, RuleSpider):
        rules = (Rule(LinkExtractor(), follow=True, process_links="unseen_links"),)

    class ExtractorRuleSpider(UnseenLinks, RuleSpider):
        rules = (Rule(UnseenLinkExtractor(), follow=True),)

    class HrefSpider(UnseenLinks, SiteSpider):
        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            hrefs = dict.fromkeys(response.css("a::attr(href)").getall())  # each once, as with LinkExtractor
            yield from response.follow_all(self.unseen_links(hrefs, response))

    ours = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "TELNETCONSOLE_ENABLED": False}
    process = CrawlerProcess({**ours, **settings})
    crawler = process.create_crawler(locals()[spider])
    process.crawl(crawler)
    process.start()
    print(json.dumps(crawler.stats.get_stats() if crawler.stats else {}, default=str))  # noqa: T201 - the script's output


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
