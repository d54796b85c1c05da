"""``scrapy bloom crawl``: its server, its workers, and the one file of their items."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.commands import Command
from tests.fleet.servers import RedisServer, wait_until
from tests.fleet.site import QUIET, Site

SPIDER = """
import asyncio

import scrapy

class SiteSpider(scrapy.Spider):
    name = "site"

    def __init__(self, url, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [url]

    async def parse(self, response):
        for part in ("a", "b"):
            yield {"url": response.url, "part": part}
        await asyncio.sleep(0.05)  # meanwhile other pages are done, and kills hit
        for request in response.follow_all(css="a"):
            yield request
"""


CRAWL_SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class SiteSpider(CrawlSpider):
    name = "site"
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]

    def __init__(self, url, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [url]

    def parse_start_url(self, response):
        return self.parse_page(response)

    def parse_page(self, response):
        for part in ("a", "b"):
            yield {"url": response.url, "part": part}
"""
LIVE_SPIDER = (
    SPIDER.replace("yield request", "yield request.replace(meta={'live': object.__new__(Live)})")
    + """

class Live:
    def __reduce__(self):
        raise TypeError
"""
)
"""All pages but the first are in memory only."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    settings = {"SPIDER_MODULES": ["shop.spiders"], "CONCURRENT_REQUESTS": 4, "DOWNLOAD_DELAY": 0, **QUIET}
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (tmp_path / "shop" / "settings.py").write_text("".join(lines))
    (tmp_path / "shop" / "spiders.py").write_text(SPIDER)
    return tmp_path


class Crawl(Command):
    def __init__(self, project: Path, site: Site, *words: str, workers: int = 1, output: str = "-o") -> None:
        own = ("-a", f"url={site.start_url}", "--json", "--workers", str(workers), output, "items.jl")
        super().__init__(project, "crawl", "site", *own, *words)
        self._site = site

    def summary(self) -> dict[str, Any]:
        """Return what it prints at its end, and its exit code."""
        out = self.finish()
        assert out, self.log()
        return {**json.loads(out), "code": self.code}

    def wait_for(self, hits: int) -> None:
        wait_until(lambda: self._site.hits.total() >= hits or self.code is not None, "pages are fetched")
        assert self.code is None, self.log()


def assert_each_item_once(project: Path, site: Site) -> None:
    lines = (project / "items.jl").read_text().splitlines()
    items = Counter((item["url"], item["part"]) for item in map(json.loads, lines))
    assert len(items) == 2 * site.count
    assert set(items.values()) == {1}


@pytest.mark.parametrize(
    "spider",
    [
        SPIDER,
        pytest.param(CRAWL_SPIDER, marks=pytest.mark.slow),
        pytest.param(LIVE_SPIDER, marks=pytest.mark.slow),
    ],
    ids=["plain", "CrawlSpider", "live objects"],
)
def test_each_item_is_in_the_file_once_though_workers_and_server_are_killed(project: Path, spider: str) -> None:
    """Workers and the server are killed and started again; each item of each page is in the one file once, whatever
    the requests carry. What is in memory only is lost with no worker, since its page is fetched again.
    """
    (project / "shop" / "spiders.py").write_text(spider)
    with Site(pages=50) as site:
        crawl = Crawl(project, site, "-s", "JOBDIR=job", workers=2)
        crawl.wait_for(10)
        os.kill(crawl.children(servers=False)[0], signal.SIGKILL)
        crawl.wait_for(20)
        os.kill(crawl.children(servers=True)[0], signal.SIGKILL)
        summary = crawl.summary()
        assert (summary["code"], summary["outcome"]) == (0, "finished"), crawl.log()
        assert summary["items_in_file"] == 2 * site.count
        assert sum(worker["deaths"] for worker in summary["workers"]) >= 1  # a start may meet no server
        assert not site.missing()
        assert_each_item_once(project, site)


@pytest.mark.slow
def test_a_crawl_whose_file_lacks_items_is_not_finished(project: Path) -> None:
    """An item that JSON cannot hold is logged, as by Scrapy; the command says how many there are, and fails."""
    odd = 'yield {"url": response.url, "part": object() if response.url.endswith("/7") else part}'
    (project / "shop" / "spiders.py").write_text(SPIDER.replace('yield {"url": response.url, "part": part}', odd))
    with Site(pages=10) as site:
        summary = Crawl(project, site, workers=2).summary()
        assert summary["code"] == 1
        assert summary["outcome"].startswith("failed: 2 items")
        assert summary["items_in_file"] == 2 * site.count - 2
        assert not site.missing()


@pytest.mark.slow
def test_ctrl_c_three_times_is_no_crash(project: Path, server: RedisServer) -> None:
    """It kills a worker that hangs in a callback. What the worker had in hand is pending again, and not suspected."""
    hanging = SPIDER.replace("        await", "        import time; time.sleep(1000)\n        await")
    (project / "shop" / "spiders.py").write_text(hanging)
    with Site(pages=5) as site, server.client() as client:
        crawl = Crawl(project, site, "-s", f"BLOOM_REDIS_URL={server.url}")
        crawl.wait_for(1)
        with suppress(FileNotFoundError):  # it has ended
            while crawl.children(servers=False):
                crawl.signal(signal.SIGINT)
                time.sleep(0.5)  # signals that come at once count as one
        assert crawl.summary()["code"] == 3
        assert not client.exists("{bloom:site:0}:suspects", "{bloom:site:0}:workers")
        assert len(client.keys("{bloom:site:0}:lane:*")) == 1


@pytest.mark.slow
def test_a_crawl_that_begins_overwrites_and_one_that_goes_on_does_not(project: Path) -> None:
    """As with Scrapy's ``-O`` and a job: the file of an earlier crawl goes. What a job has written stays, after a kill
    of the command, with which its workers and its server end, and after Ctrl-C.
    """
    (project / "items.jl").write_text("of an earlier crawl\n")
    with Site(pages=40) as site:

        def start() -> Crawl:
            return Crawl(project, site, "-s", "JOBDIR=job", output="-O")

        crawl = start()
        crawl.wait_for(10)
        children = crawl.children(servers=False) + crawl.children(servers=True)
        crawl.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing of it is left")
        crawl = start()
        crawl.wait_for(20)
        crawl.signal(signal.SIGINT)
        summary = crawl.summary()
        assert (summary["code"], summary["outcome"]) == (3, "stopped"), crawl.log()
        summary = start().summary()
        assert (summary["code"], summary["items_in_file"]) == (0, 2 * site.count)
        assert_each_item_once(project, site)
        (project / "items.jl").write_text("of another crawl\n")
        assert start().summary()["code"] == 0
        assert "another crawl" not in (project / "items.jl").read_text()


@pytest.mark.slow
def test_what_others_have_written_to_the_file_stays(project: Path) -> None:
    """Between two runs of a job that have ended by themselves."""
    with Site(pages=4) as site:
        for _ in range(2):
            assert Crawl(project, site, "-s", "JOBDIR=job").summary()["code"] == 0
            with (project / "items.jl").open("a") as items:
                items.write('{"others": "line"}\n')
        lines = (project / "items.jl").read_text().splitlines()
        assert lines.count('{"others": "line"}') == 2
        assert len(lines) >= 2 * site.count + 2


@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_the_crawl(project: Path) -> None:
    """A spider that fails at once is not started for ever."""
    with (project / "shop" / "settings.py").open("a") as settings:
        settings.write("DOWNLOADER = 'no.such.Downloader'\n")
    with Site(pages=1) as site:
        summary = Crawl(project, site).summary()
    assert summary["code"] == 1
    assert summary["outcome"].startswith("failed")
