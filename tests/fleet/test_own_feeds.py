"""Workers whose feeds are files of their own: with a job directory each, all files together have each item once."""

import csv
import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.servers import LosingProxy, RedisServer, wait_until
from tests.fleet.site import OUR_FEEDS, Site, Worker, start, workers

PAGES = 40


class Own:
    """The directory and the feed of one worker, which may be started again and again."""

    def __init__(self, directory: Path, feed_format: str = "jsonlines", **options: Any) -> None:
        self.feeds, self.format = directory / "feeds", feed_format
        self.settings: dict[str, Any] = {
            "JOBDIR": str(directory / "job"),
            "FEEDS": {str(self.feeds / ("%(batch_id)d" if options else "items")): {"format": feed_format, **options}},
            "EXTENSIONS": OUR_FEEDS,
        }

    def start(self, site: Site, server_url: str) -> Worker:
        return start(site, server_url, **self.settings)

    def pages(self) -> list[int]:
        """Return the pages whose items are in the feed."""
        items: list[Any] = []
        for text in [path.read_text() for path in self.feeds.glob("*")]:
            if self.format == "csv":
                items += csv.DictReader(text.splitlines())
            else:
                items += json.loads(text) if self.format == "json" else map(json.loads, text.splitlines())
        return [int(item["url"].rpartition("/")[2]) for item in items]


def off(*owns: Own) -> dict[int, int]:
    """Return how often the items of all pages are there, except for those that are there once, as they should."""
    count = Counter(page for own in owns for page in own.pages())
    return {page: count[page] for page in {*range(PAGES), *count} if count[page] != 1}


@pytest.mark.parametrize(
    ("feed_format", "options"),
    [
        ("jsonlines", {"batch_item_count": 7}),
        pytest.param("csv", {}, marks=pytest.mark.slow),
        pytest.param("json", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kills_neither_lose_an_item_nor_give_it_twice(
    server: RedisServer, tmp_path: Path, feed_format: str, options: dict[str, int]
) -> None:
    """Two workers are killed or stopped in turn, at random moments, and started again in their directories."""
    rng = random.Random(feed_format)
    owns = [Own(tmp_path / name, feed_format, **options) for name in "ab"]
    with Site(pages=PAGES) as site, workers(site, server.url, 0) as running, server.client() as redis:
        running += [own.start(site, server.url) for own in owns]
        for turn in range(4):
            site.wait_for(sum(site.hits.values()) + rng.randrange(1, 12))
            if turn == 2:
                running[turn % 2].signal(signal.SIGINT)
                running[turn % 2].finish()
            running[turn % 2].kill()
            running[turn % 2] = owns[turn % 2].start(site, server.url)
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        buried = redis.llen("{bloom:site:0}:dead")  # in hand at three of the kills
        assert not site.missing()
    assert [*off(*owns).values()] == [0] * buried


@pytest.mark.slow
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_call_whose_answer_a_killed_worker_did_not_hear(
    server: RedisServer, tmp_path: Path, is_carried_out: bool
) -> None:
    """If the server took it, the next start writes its items; otherwise they come with the pages, once more."""
    own = Own(tmp_path)
    with Site(pages=PAGES) as site, workers(site, server.url, 0) as running, LosingProxy(server.port) as proxy:
        running.append(own.start(site, proxy.url))
        site.wait_for(20)
        if is_carried_out:
            proxy.lose_next_answer()
            wait_until(lambda: proxy.lost, "an answer is lost")
        else:
            site.gate.clear()
            proxy.gate.clear()
            site.gate.set()
            wait_until(lambda: proxy.held, "the worker says something that is not heard")
        running.pop().kill()
        journal = b"".join(path.read_bytes() for path in tmp_path.rglob("feeds.sqlite*"))
        assert b"scrapy_bloom" not in journal, "plain types, which another version reads as well"
        running.append(own.start(site, server.url))
        assert running[0].finish()["finish_reason"] == "finished", running[0].log
        assert not site.missing()
    assert not off(own)
