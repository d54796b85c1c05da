from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fleet.servers import PATIENCE, wait_until
from tests.fleet.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    (tmp_path / "shop" / "settings.py").write_text(
        "SPIDER_MODULES = ['shop.spiders']\nTELNETCONSOLE_ENABLED = False\nCONCURRENT_REQUESTS = 4\n"
    )
    (tmp_path / "shop" / "spiders.py").write_text(SPIDER)
    return tmp_path


class Crawl:
    """``scrapy bloom crawl`` in a process of its own."""

    def __init__(self, project: Path, site: Site, *arguments: str, output: str = "-o") -> None:
        command = [sys.executable, "-m", "scrapy_bloom", "crawl", "site", "-a", f"url={site.start_url}", "--json"]
        command += [output, "items.jl", *arguments]
        with (project / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=project)
        self.project = project

    def finish(self) -> dict[str, Any]:
        try:
            out, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(self.log()) from None
        assert out, self.log()
        found: dict[str, Any] = json.loads(out)
        return {**found, "code": self.process.returncode}

    def wait_for(self, site: Site, hits: int) -> None:
        wait_until(lambda: sum(site.hits.values()) >= hits or self.process.poll() is not None, "pages are fetched")
        assert self.process.poll() is None, self.log()

    def log(self) -> str:
        return (self.project / "log").read_text(errors="replace")

    def children(self, command: str) -> list[int]:
        """The processes of this crawl whose command line holds *command*."""
        found = []
        for pid in self._descendants():
            try:
                if command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                pass
        return found

    def _descendants(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=60) as site:
        yield site


def items_of(project: Path) -> Counter[str]:
    lines = (project / "items.jl").read_text().splitlines()
    items = Counter(json.dumps(json.loads(line)) for line in lines)
    return Counter({item.replace("127.0.0.1", ""): count for item, count in items.items()})


def assert_each_item_once(project: Path, site: Site) -> None:
    items = items_of(project)
    assert len(items) == 2 * site.count
    assert set(items.values()) == {1}


def test_each_item_is_in_the_file_once_though_workers_and_server_are_killed(project: Path, site: Site) -> None:
    """Workers and the server are killed and started again; each item of each page is in the one file once."""
    crawl = Crawl(project, site, "--workers", "2", "-s", "JOBDIR=job", "-s", "DOWNLOAD_DELAY=0")
    crawl.wait_for(site, 15)
    os.kill(crawl.children("crawl_worker")[0], signal.SIGKILL)
    crawl.wait_for(site, 30)
    os.kill(crawl.children("-server")[0], signal.SIGKILL)
    found = crawl.finish()
    assert (found["code"], found["outcome"]) == (0, "finished"), crawl.log()
    assert found["items_in_file"] == 2 * site.count
    assert sum(worker["deaths"] for worker in found["workers"]) == 1
    assert not site.missing()
    assert_each_item_once(project, site)


@pytest.mark.parametrize("spider", [CRAWL_SPIDER, LIVE_SPIDER], ids=["CrawlSpider", "live objects"])
def test_items_of_every_spider_are_in_the_file(project: Path, site: Site, spider: str) -> None:
    """Whatever its requests carry; what is in memory only is lost with no worker, since its page is fetched again."""
    (project / "shop" / "spiders.py").write_text(spider)
    crawl = Crawl(project, site, "--workers", "2", "-s", "DOWNLOAD_DELAY=0")
    crawl.wait_for(site, 10)
    os.kill(crawl.children("crawl_worker")[0], signal.SIGKILL)
    found = crawl.finish()
    assert (found["code"], found["outcome"]) == (0, "finished"), crawl.log()
    assert not site.missing()
    assert_each_item_once(project, site)


def test_a_crawl_whose_file_lacks_items_is_not_finished(project: Path, site: Site) -> None:
    """An item that JSON cannot hold is logged, as by Scrapy; the command says how many there are, and fails."""
    odd = 'yield {"url": response.url, "part": object() if response.url.endswith("/7") else part}'
    (project / "shop" / "spiders.py").write_text(SPIDER.replace('yield {"url": response.url, "part": part}', odd))
    found = Crawl(project, site, "--workers", "2", "-s", "DOWNLOAD_DELAY=0").finish()
    assert found["code"] == 1
    assert found["outcome"].startswith("failed: 2 items")
    assert found["items_in_file"] == 2 * site.count - 2
    assert not site.missing()


def test_a_crawl_that_begins_overwrites_and_one_that_goes_on_does_not(project: Path, site: Site) -> None:
    """As with Scrapy's ``-O`` and a job: the file of an earlier crawl goes, that of a job that Ctrl-C stopped stays."""
    (project / "items.jl").write_text("of an earlier crawl\n")
    arguments = ("--workers", "2", "-s", "JOBDIR=job")
    crawl = Crawl(project, site, *arguments, output="-O")
    crawl.wait_for(site, 15)
    crawl.process.send_signal(signal.SIGINT)
    found = crawl.finish()
    assert (found["code"], found["outcome"]) == (3, "stopped"), crawl.log()
    found = Crawl(project, site, *arguments, output="-O").finish()
    assert (found["code"], found["items_in_file"]) == (0, 2 * site.count)
    assert_each_item_once(project, site)
    (project / "items.jl").write_text("of another crawl\n")
    assert Crawl(project, site, *arguments, output="-O").finish()["code"] == 0
    assert "another crawl" not in (project / "items.jl").read_text()


def test_what_others_have_written_to_the_file_stays(project: Path, site: Site) -> None:
    """Between two runs of a job that have ended by themselves."""
    for _ in range(2):
        assert Crawl(project, site, "--workers", "1", "-s", "JOBDIR=job").finish()["code"] == 0
        with (project / "items.jl").open("a") as items:
            items.write('{"others": "line"}\n')
    lines = (project / "items.jl").read_text().splitlines()
    assert lines.count('{"others": "line"}') == 2
    assert len(lines) >= 2 * site.count + 2


def test_the_same_command_goes_on_after_a_kill_of_the_command_itself(project: Path, site: Site) -> None:
    """If the process that runs the crawl is killed, its workers and its server end, and the next start goes on."""
    crawl = Crawl(project, site, "--workers", "2", "-s", "JOBDIR=job")
    crawl.wait_for(site, 15)
    left = crawl.children("crawl_worker") + crawl.children("-server")
    crawl.process.kill()
    crawl.process.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "nothing of it is left")
    assert Crawl(project, site, "--workers", "2", "-s", "JOBDIR=job").finish()["code"] == 0
    assert_each_item_once(project, site)


def test_a_worker_that_cannot_start_ends_the_crawl(project: Path, site: Site) -> None:
    """A spider that fails at once is not started for ever."""
    (project / "shop" / "settings.py").write_text(
        "SPIDER_MODULES = ['shop.spiders']\nDOWNLOADER = 'no.such.Downloader'\n"
    )
    found = Crawl(project, site, "--workers", "1").finish()
    assert found["code"] == 1
    assert found["outcome"].startswith("failed")
