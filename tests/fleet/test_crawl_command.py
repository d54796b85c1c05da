"""``scrapy bloom crawl``: its server, its workers, and the one file of their items."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.commands.local_fleet import FleetItems, open_items_file
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.messages import Done, Part
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server
from tests.fleet.commands import Command, write_project
from tests.fleet.servers import RedisServer, wait_until
from tests.fleet.site import Site

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, SPIDER, CONCURRENT_REQUESTS=4, DOWNLOAD_DELAY=0)


class Crawl(Command):
    def __init__(
        self, project: Path, site: Site, *words: str, workers: int = 1, output: str = "-o", file: str = "items.jl"
    ) -> None:
        own = ("-a", f"url={site.start_url}", "--json", "--workers", str(workers), output, file)
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


def assert_each_item_once(directory: Path, site: Site) -> None:
    lines = (directory / "items.jl").read_text().splitlines()
    items = Counter((item["url"], item["part"]) for item in map(json.loads, lines))
    assert len(items) == 2 * site.size
    assert set(items.values()) == {1}


def test_each_item_is_in_the_file_once_though_workers_and_server_are_killed(project: Path) -> None:
    """Workers and the server are killed and started again; each item of each page is in the one file once."""
    with Site(pages=50) as site:
        crawl = Crawl(project, site, "-s", "JOBDIR=job", workers=2)
        crawl.wait_for(10)
        os.kill(crawl.children(servers=False)[0], signal.SIGKILL)
        crawl.wait_for(20)
        os.kill(crawl.children(servers=True)[0], signal.SIGKILL)
        summary = crawl.summary()
        assert (summary["code"], summary["outcome"]) == (0, "finished"), crawl.log()
        assert summary["items_in_file"] == 2 * site.size
        assert sum(worker["deaths"] for worker in summary["workers"]) >= 1  # a start may meet no server
        assert not site.missing()
        assert_each_item_once(project, site)


@pytest.mark.slow
def test_a_crawl_whose_file_lacks_items_is_not_finished(project: Path) -> None:
    """An item that JSON cannot hold is logged, as by Scrapy; the command says how many there are, and fails."""
    odd = 'yield {"url": response.url, "part": object() if response.url.endswith("/7") else part}'
    (project / "project_spiders.py").write_text(SPIDER.replace('yield {"url": response.url, "part": part}', odd))
    with Site(pages=10) as site:
        summary = Crawl(project, site, workers=2).summary()
        assert summary["code"] == 1
        assert summary["outcome"].startswith("failed: 2 items")
        assert summary["items_in_file"] == 2 * site.size - 2
        assert not site.missing()


@pytest.mark.slow
def test_ctrl_c_three_times_is_no_crash(project: Path, server: RedisServer) -> None:
    """It kills a worker that hangs in a callback. What the worker had in hand is pending again, and not suspected."""
    hanging = SPIDER.replace("        await", "        import time; time.sleep(1000)\n        await")
    (project / "project_spiders.py").write_text(hanging)
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
        assert (summary["code"], summary["items_in_file"]) == (0, 2 * site.size)
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
        assert len(lines) >= 2 * site.size + 2


@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_the_crawl(project: Path) -> None:
    """A spider that fails at once is not started for ever."""
    with (project / "project_settings.py").open("a") as settings:
        settings.write("DOWNLOADER = 'no.such.Downloader'\n")
    with Site(pages=1) as site:
        summary = Crawl(project, site).summary()
    assert summary["code"] == 1
    assert summary["outcome"].startswith("failed")


@pytest.mark.slow
def test_a_crawl_whose_file_cannot_be_written_fails_and_the_same_command_adds_the_items(project: Path) -> None:
    """The directory of the file is gone at the end: exit status 1, and the message names what has the items."""
    with (project / "project_settings.py").open("a") as settings:
        settings.write("from scrapy_bloom.commands import local_fleet\nlocal_fleet.END_SECONDS = 0\n")

    class Unmounting(Site):
        def answer(self, path: str) -> Any:
            if self.hits.total() == 10:
                (project / "mounted").rename(project / "elsewhere")
                (project / "mounted").touch()
            return super().answer(path)

    with Unmounting(pages=20) as site:
        summary = Crawl(project, site, workers=2, file="mounted/items.jl").summary()
        assert (summary["code"], summary["outcome"][:33]) == (1, "failed: items are not in the file")
        setting = summary["outcome"].partition("-s ")[2].partition(",")[0]
        hits = site.hits.total()
        (project / "mounted").unlink()
        (project / "elsewhere").rename(project / "mounted")
        assert Crawl(project, site, "-s", setting, workers=2, file="mounted/items.jl").summary()["code"] == 0
        assert site.hits.total() == hits
        assert_each_item_once(project / "mounted", site)


# -- the file, without a crawl -----------------------------------------------------------------------------------------


@pytest.fixture
def queue(server: RedisServer) -> Iterator[Queue]:
    connection = Server(server.url)
    queue = Queue(connection, "bloom:test", items="file")
    queue.begin()
    yield queue
    connection.close()


@pytest.fixture
def give(queue: Queue) -> Callable[..., None]:
    """Have a worker give the server an entry of items; the same token and number means the same entry."""
    numbers: dict[str, int] = {}

    def give(item: str, token: str = "life") -> None:
        if token not in numbers:
            queue.join(token, token)
        numbers[token] = numbers.get(token, 0) + 1
        queue.finish(0, token, numbers[token], [Done(None, [Part(items=f"{item}\n".encode())])])

    return give


def items_of(tmp_path: Path, queue: Queue, **options: Any) -> FleetItems:
    return FleetItems(tmp_path, queue, open_items_file(str(tmp_path / "out" / "items.jl")), overwrite=False, **options)


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "out" / "items.jl").read_text().splitlines()


def test_entries_that_nobody_has_read_are_not_cut(
    tmp_path: Path, queue: Queue, give: Callable[..., None], server: RedisServer
) -> None:
    """The server goes back in time; what it gets then stands where entries stood that are in the file."""
    items = items_of(tmp_path, queue)
    give("a")
    give("b")
    with server.client() as client:
        copy = {key: client.dump(key) for key in client.scan_iter()}
        for item in "cd":
            give(item)
        assert items.collect()
        client.flushall()
        for key, value in copy.items():
            client.restore(key, 0, value)
    for item in "xyz":
        give(item, token="another life")
    assert not items.collect_all()
    assert lines(tmp_path) == list("abcdxyz")


def test_the_file_is_the_same_after_a_kill_at_every_write(
    tmp_path: Path, queue: Queue, give: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the process ends before the file is written, before that is noted, or after it."""
    replace, is_killed = Path.replace, False

    def killed(*arguments: Any) -> Any:
        if is_killed:
            raise KeyboardInterrupt
        return replace(*arguments)

    monkeypatch.setattr(Path, "replace", killed)
    for number in range(6):
        give(str(number))
        items = items_of(tmp_path, queue)
        is_killed = number % 2 == 0
        if is_killed:
            with pytest.raises(KeyboardInterrupt):
                items.collect()
        else:
            items.collect()
        is_killed = False
    items = items_of(tmp_path, queue)
    assert not items.collect_all(is_last=True, is_finished=True)
    assert lines(tmp_path) == list("012345")
    assert items.count == 6


def test_a_server_that_is_away_is_a_reason(tmp_path: Path, mortal: RedisServer) -> None:
    connection = Server(mortal.url)
    queue = Queue(connection, "bloom:test", items="file")
    queue.begin()
    items = items_of(tmp_path, queue)
    mortal.kill()
    assert "127.0.0.1" in items.collect_all()
    connection.close()


def test_a_file_that_cannot_be_opened_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableError, match="Nothing was started"):
        open_items_file(str(tmp_path / "file" / "items.jl"))
