"""Crawls in a process of their own: one spider, or several at a time."""

import importlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy.crawler import Crawler, CrawlerProcess

import scrapy_bloom  # noqa: F401 - imported once, before the processes fork
from scrapy_bloom.components import addon, dupefilter, feeds, scheduler  # noqa: F401 - likewise
from scrapy_bloom.crawl import crawl as owner
from scrapy_bloom.job import commits
from tests.support.crawler import OwnSettings

SETTINGS = {
    "LOG_LEVEL": "INFO",
    "CONCURRENT_REQUESTS": 4,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "DOWNLOAD_DELAY": 0,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "RETRY_TIMES": 3,
}
STATS = "stats"
"""Final stats of each run that came to its end, one a line."""
REFERENCE = "reference"
"""A feed of plain Scrapy beside the spider's own: a fleet writes JSON lines, whatever the spider's feed is."""


@dataclass(frozen=True)
class Species:
    """A spider's class, by module and name."""

    module: str
    name: str

    def load(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True)
class Order:
    """A crawl: of which spider and site, in which mode. Its directory has the name of the spider's class."""

    species: Species
    url: str
    mode: str


def feeds_of(spider: Any) -> dict[str, dict[str, Any]]:
    """Return the spider's feeds, as in FEEDS, by the names of their files."""
    if hasattr(spider, "feeds"):
        return dict(spider.feeds)
    options = dict(getattr(spider, "feed", {"format": "jsonlines"}))
    return {options.pop("file", f"items.{options['format']}"): options}


def settings_of(order: Order, spider: Any) -> dict[str, Any]:
    place = order.species.name
    own_feeds = {f"{place}/{name}": options for name, options in feeds_of(spider).items()}
    settings: dict[str, Any] = {**SETTINGS, "FEEDS": own_feeds, "ZOO": str(Path(place).absolute())}
    if order.mode == "plain":
        own_feeds[f"{place}/{REFERENCE}"] = {"format": "jsonlines"}
        return settings
    if order.mode != "addon":
        settings["JOBDIR"] = f"{place}/job"
    more = dict(getattr(spider, "more_settings", {}))
    if order.mode not in {"job", "kill", "stop"}:
        more.pop("BLOOM_CHANGES", None)
    return {**settings, "ADDONS": {"scrapy_bloom.Addon": 300}, **more}


def stats_in(directory: Path) -> list[dict[str, Any]]:
    path = directory / STATS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def has_ended(directory: Path) -> bool:
    """Return whether the spider has come to its end, and would begin anew if it were started again."""
    return any(stats.get("finish_reason") != "shutdown" for stats in stats_in(directory))


def crawl(orders: list[Order], directory: Path) -> None:
    """Crawl, all at a time."""
    log = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(directory)
    commits.LONGEST_SECONDS = 3_600.0  # on a slow machine, pages of many spiders take longer than 30 s together
    commits.COMMIT_SECONDS, owner.TICK_SECONDS = 0.1, 0.05  # so that kills need not wait for commits
    process = CrawlerProcess(OwnSettings({"LOG_LEVEL": "INFO"}))
    for number, order in enumerate(orders):
        spider = order.species.load()
        crawler = Crawler(spider, OwnSettings(settings_of(order, spider)), init_reactor=not number)
        done = process.crawl(crawler, base=order.url)
        done.addBoth(lambda _, order=order, crawler=crawler: _note_end(order, crawler))
    process.start()


def _note_end(order: Order, crawler: Crawler) -> None:
    with (Path(order.species.name) / STATS).open("a") as file:
        stats = crawler.stats.get_stats() if crawler.stats is not None else {}
        file.write(json.dumps(stats, default=str) + "\n")
