"""The file of ``scrapy bloom crawl`` has each item once, and a crawl whose file lacks items does not end well."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.commands import local_fleet
from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.local_fleet import FleetItems, open_items_file
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.messages import Done, Part
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server
from tests.fleet.servers import RedisServer
from tests.fleet.site import Site
from tests.fleet.test_crawl_command import SPIDER


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


@pytest.mark.slow
def test_a_crawl_whose_file_lacks_items_fails_and_the_same_command_adds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The directory of the file is gone at the end: exit status 1, and the message names what has the items."""
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "settings.py").write_text(
        "SPIDER_MODULES = ['shop.spiders']\nTELNETCONSOLE_ENABLED = False\nDOWNLOAD_DELAY = 0\n"
    )
    (tmp_path / "shop" / "spiders.py").write_text(SPIDER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "shop.settings")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local_fleet, "END_SECONDS", 0)

    class Unmounting(Site):
        def answer(self, path: str) -> Any:
            if self.hits.total() == 10:
                Path("out").rename("elsewhere")
                Path("out").touch()
            return super().answer(path)

    with Unmounting(pages=20) as site:
        command = ["crawl", "site", "-a", f"url={site.start_url}", "--workers", "2", "--json", "-o", "out/items.jl"]
        assert main(command) == 1
        outcome = json.loads(capsys.readouterr().out)["outcome"]
        assert outcome.startswith("failed: items are not in the file")
        setting = outcome.partition("-s ")[2].partition(",")[0]
        hits = site.hits.total()
        Path("out").unlink()
        Path("elsewhere").rename("out")
        assert main([*command, "-s", setting]) == 0
        assert site.hits.total() == hits
    assert len(set(lines(tmp_path))) == len(lines(tmp_path)) == 40
