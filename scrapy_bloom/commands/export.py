"""Takes the pending requests of a job back to Scrapy's own disk queue.

Starts the crawl without requests, with its own spider, queues and settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Spider, signals
from scrapy.crawler import CrawlerProcess

from scrapy_bloom.commands.targets import named_values, settings_of, spider_class
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.components.takeover import export_queue
from scrapy_bloom.errors import BloomError
from scrapy_bloom.job.inspect import DIRECTORY, inspect_job
from scrapy_bloom.job.store import stopped_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

_QUIET: dict[str, Any] = {
    "ADDONS": {},
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    "EXTENSIONS": {},
    "EXTENSIONS_BASE": {},  # spider.state and feeds stay as they are
    "FEEDS": {},
    "ITEM_PIPELINES": {},
    "JOBDIR": None,
    "LOG_ENABLED": True,
    "LOG_LEVEL": "WARNING",
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
}

_ADVICE = [
    'Go on with SCHEDULER = "scrapy.core.scheduler.Scheduler", and keep our DUPEFILTER_CLASS, which knows all pages.',
    "Scrapy's own filter gets the pending ones, in requests.seen, and would fetch all others again.",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``export``."""
    parser.add_argument(
        "job", metavar="JOBDIR", help="of a crawl that has been stopped; or its spider, with -s JOBDIR="
    )
    parser.add_argument("-s", action="append", default=[], metavar="NAME=VALUE", help="a setting of the crawl")
    parser.add_argument("-a", action="append", default=[], metavar="NAME=VALUE", help="an argument of the spider")


def run(options: argparse.Namespace) -> int:
    """Export, and print how many requests were moved. A BloomError means that nothing was changed."""
    settings = settings_of(options).copy()
    typed, arguments = named_values(options.s), named_values(options.a)
    settings.setdict(typed, priority="cmdline")
    is_spider = bool(settings["JOBDIR"]) and not Path(options.job, DIRECTORY).is_dir()
    job = inspect_job(settings["JOBDIR"] if is_spider else options.job)
    jobdir, spider = job.directory, options.job if is_spider else job.state.spider
    settings.setdict(_QUIET, priority="cmdline")
    process = CrawlerProcess(settings)
    spidercls = spider_class(process, spider)
    crawler = process.create_crawler(type(spidercls.__name__, (_NoRequests, spidercls), {}))
    outcome: list[int | BloomError] = []

    def export(spider: Spider) -> None:
        crawler.signals.disconnect_all(signals.spider_idle)  # nothing keeps the crawl, which ends at once
        try:
            with stopped_job(jobdir, spider.name) as files:
                outcome.append(export_queue(jobdir, files.database, crawler))
        except BloomError as error:  # raised, Scrapy would bury it
            outcome.append(error)

    crawler.signals.connect(export, signal=signals.spider_opened)
    process.crawl(crawler, **arguments)
    process.start()
    for result in outcome:
        if isinstance(result, BloomError):
            raise result
        show({"directory": str(jobdir), "exported": result, "advice": _ADVICE}, options)
        return OK
    return WRONG  # Scrapy has logged why the spider could not be opened


class _NoRequests(Spider):
    async def start(self) -> AsyncIterator[Any]:
        """Yield nothing, so that the crawl ends at once."""
        requests: tuple[Any, ...] = ()
        for request in requests:
            yield request
