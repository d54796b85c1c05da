"""One crawl of a LocalSite in a process of its own, to be killed. Run as a script.

Its options, all in one JSON object:

url, jobdir    where to start, and the job directory ("" for none).
settings       further Scrapy settings; null: as Scrapy has it.
log, stats     files for the log and, at the end of a crawl that was not killed, the stats as JSON.
die_in         number of the callback that kills its own process with SIGKILL after half of its links; 0 for none.
commits        a file for the moment at which the last complete commit began, on the clock of time.monotonic().
linger         seconds that this callback waits before the kill, so that its first half is committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import FormRequest, Request, Spider, signals
from scrapy.crawler import CrawlerProcess

from scrapy_bloom.old.frontier.handed_out import HandedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.http import Response

SETTINGS = {
    "SCHEDULER": "scrapy_bloom.DurableScheduler",
    "DUPEFILTER_CLASS": "tests.old.support.exactfilter.ExactFilter",
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "TELNETCONSOLE_ENABLED": False,
    "CONCURRENT_REQUESTS": 9,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 3,
    "DOWNLOAD_DELAY": 0,
    "RETRY_TIMES": 5,
    "ROBOTSTXT_OBEY": False,
    "LOG_LEVEL": "INFO",
}


def number(url: str) -> int:
    return int(urlsplit(url).path.rpartition("/")[2])


class SiteSpider(Spider):
    """Follows every link, in three download slots and four priorities; page 10 n + 3 also sends form n."""

    name = "site"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options
        self.callbacks = 0

    async def start(self) -> AsyncIterator[Any]:
        yield self.request(self.options["url"])

    def request(self, url: str) -> Request:
        i = number(url)
        return Request(url, priority=i % 4, meta={"download_slot": f"slot-{i % 3}"})

    def parse(self, response: Response) -> Iterator[Any]:
        self.callbacks += 1
        for link in self.links(response):
            if link is None:
                os.kill(os.getpid(), signal.SIGKILL)
            yield self.request(response.urljoin(link))
        yield from self.rest(response)

    def rest(self, response: Response) -> Iterator[Any]:
        """What a page gives besides its links."""
        i = number(response.url) if "/page/" in response.url else 0
        if i % 10 == 3:
            yield FormRequest(response.urljoin("/submit"), formdata={"i": str(i)}, callback=self.parse_form)
        yield {"url": response.url}

    def links(self, response: Response) -> list[str | None]:
        """The links of a page, with None where the process dies."""
        links = response.css("a::attr(href)").getall()
        if self.callbacks == self.options.get("die_in"):
            return [*links[: len(links) // 2], None]
        return links

    def parse_form(self, response: Response) -> Any:
        yield {"form": response.url}


class LingeringSpider(SiteSpider):
    """Waits before it dies. Its callback is asynchronous; in Scrapy 2.13 those lag far behind the downloads."""

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        self.callbacks += 1
        for link in self.links(response):
            if link is None:
                await asyncio.sleep(self.options["linger"])
                os.kill(os.getpid(), signal.SIGKILL)
            yield self.request(response.urljoin(link))
        for output in self.rest(response):
            yield output


def note_commits(file: str) -> None:
    """Write down when the last complete commit began: what was handed out later is not in it."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT)
    seal, reset = HandedOut.seal, HandedOut.reset
    began = 0.0

    def beginning(handed_out: HandedOut) -> None:
        nonlocal began
        began = time.monotonic()
        seal(handed_out)

    def ending(handed_out: HandedOut) -> None:
        reset(handed_out)
        os.pwrite(opened, f"{began:020.6f}".encode(), 0)

    HandedOut.seal = beginning  # type: ignore[method-assign] # from outside a kill within a commit looks like one after
    HandedOut.reset = ending  # type: ignore[method-assign]


def main(options: dict[str, Any]) -> None:
    if "commits" in options:
        note_commits(options["commits"])
    settings = {
        **SETTINGS,
        "JOBDIR": options["jobdir"] or None,
        "LOG_FILE": options.get("log"),
        **options.get("settings", {}),
    }
    process = CrawlerProcess({name: value for name, value in settings.items() if value is not None})
    crawler = process.create_crawler(LingeringSpider if options.get("linger") else SiteSpider)

    def write_stats() -> None:
        if "stats" in options:
            Path(options["stats"]).write_text(json.dumps(crawler.stats.get_stats(), default=str), encoding="utf-8")

    crawler.signals.connect(write_stats, signals.engine_stopped, weak=False)
    process.crawl(crawler, options=options)
    process.start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
