"""A project, a site, and jobs that real crawls have left; made once in each process, and copied for each test."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from scrapy_bloom.commands.command_line import main
from tests.fleet.commands import Command, write_project
from tests.support.crawls import Pages, Site
from tests.support.engine import Engine, PlainSpider, opened

Answer = Callable[..., tuple[int, Any]]
Scrapy = Callable[..., CompletedProcess[str]]

PAGES = 80

SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.components.scheduler.DurableScheduler",
    "EXTENSIONS": {
        "scrapy.extensions.feedexport.FeedExporter": None,
        "scrapy_bloom.components.feeds.FeedExporter": 0,
    },
    "BLOOM_FORGET_FAILED": True,
    "BLOOM_CAPACITY": 40,
    "RETRY_ENABLED": False,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
}
SPIDERS = '''
import scrapy

class Books(scrapy.Spider):
    name = "books"
    start_urls = ["SITE/0"]

    def parse(self, response):
        """
        @url SITE/0
        @returns items 1 1
        """
        yield {"url": response.url}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, callback=self.parse)

class Films(Books):
    name = "films"

class Polling(Books):
    name = "polling"  # never ends by itself, and fetches a page whenever there is none to fetch

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.poll, signal=scrapy.signals.spider_idle)
        return spider

    def poll(self):
        self.crawler.engine.crawl(scrapy.Request(self.start_urls[0], dont_filter=True))
        raise scrapy.exceptions.DontCloseSpider
'''


class Books(PlainSpider):
    """Opens the jobs of the project's spider without a crawl."""

    name = "books"


def reopened(job: Path) -> AbstractContextManager[Engine]:
    """Open a job of the project's spider, whose requests the test hands out."""
    return opened(job, {"BLOOM_CAPACITY": 40, "BLOOM_FORGET_FAILED": True}, spider=Books)


class Shop(Pages):
    """Pages ``/0`` to ``/79``, each linking to its children and to the first one; others link to that one alone."""

    def get(self, path: str, default: Any = None) -> Any:
        links = ["/broken", "/0?b=2&a=1", "/0?a=1&b=2"] if path == "/0" else ["/0"]
        if path[1:].isdecimal():
            links += [f"/{child}" for child in (2 * int(path[1:]) + 1, 2 * int(path[1:]) + 2) if child < PAGES]
        return super().get(path, links)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with Site(Shop({"/broken": 500})) as site:
        yield site


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Path:
    """A project with the spider ``books``."""
    return write_project(tmp_path_factory.mktemp("project"), SPIDERS.replace("SITE", site.url), **SETTINGS)


@pytest.fixture(scope="session")
def scrapy(project: Path) -> Scrapy:
    """Runs ``scrapy`` in the project; returns what it printed."""

    def run(*arguments: object) -> CompletedProcess[str]:
        (project / "log").unlink(missing_ok=True)
        command = Command(project, "scrapy", *map(str, arguments))
        out = command.finish()
        assert command.code is not None
        return CompletedProcess(arguments, command.code, out, command.log())

    return run


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory, scrapy: Scrapy) -> Path:
    """A job that was stopped in the middle: pages pending, one failed, a feed begun. Not to be changed."""
    jobdir = tmp_path_factory.mktemp("left") / "books"
    feed = f"{jobdir}.jl"
    stopped = scrapy("crawl", "books", "-s", f"JOBDIR={jobdir}", "-s", "CLOSESPIDER_PAGECOUNT=25", "-o", feed)
    assert stopped.returncode == 0, stopped.stderr
    return jobdir


def fetched(left: Path) -> set[int]:
    """The numbers of the pages whose items are in the feed of *left*."""
    urls = [json.loads(line)["url"] for line in Path(f"{left}.jl").read_text().splitlines()]
    return {int(number) for url in urls if (number := url.rpartition("/")[2]).isdecimal()}


@pytest.fixture
def job(left: Path, tmp_path: Path) -> Path:
    """A copy of that job."""
    return shutil.copytree(left, tmp_path / "books")


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Runs a command with ``--json``; returns its exit code, and what it printed: an object, or an error as a line."""

    def run(*arguments: object) -> tuple[int, Any]:
        code = main([*map(str, arguments), "--json"])
        told = capsys.readouterr()
        if told.out:
            return code, json.loads(told.out)
        assert told.err.count("\n") == 1, told.err
        return code, told.err.strip()

    return run
