"""Whole crawls of a fleet: what is fetched when workers are killed or frozen, and when the server is away or full."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.support.fleets import IN_HAND, Fleet
from tests.support.localsite import LocalSite
from tests.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = ("a", "b", "c")


def test_two_workers_fetch_each_page_once(plain_server: RedisServer, prefix: str) -> None:
    """Between them they fetch every page once, and end by themselves; one that comes later ends at once."""
    with (
        LocalSite(pages=100, links_per_page=10, delay=0.02) as site,
        Fleet(site, plain_server, BLOOM_REDIS_KEY=prefix) as fleet,
    ):
        for name in WORKERS[:2]:
            fleet.start(name)
        ended = fleet.finish()
        # The start page is not filtered, as with Scrapy: a link leads back to it, once.
        assert fleet.page_hits() == [2] + [1] * 99
        crawled = [outcome.stats.get("response_received_count", 0) for outcome in ended.values()]
        assert sum(crawled) == 101
        fleet.start("late")
        late = fleet.finish()["late"]
        assert "response_received_count" not in late.stats
        assert fleet.page_hits() == [2] + [1] * 99
        with plain_server.client() as client:
            left = {key.decode().rpartition(":")[2] for key in client.scan_iter(f"{{{prefix}:*")}
        assert left == {"meta", "queue", "0"}


@pytest.mark.slow
def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Three workers killed at random twenty times fetch every page, and twice at most what they had in hand."""
    rng = random.Random(1)
    with (
        LocalSite(pages=1500, links_per_page=5, delay=0.05) as site,
        RedisServer(tmp_path, keeps_data=True) as server,
        Fleet(site, server) as fleet,
    ):
        for name in WORKERS:
            fleet.start(name)
        site.wait_for_hits(30)
        kills = 0
        while kills < 20:
            site.wait_for_hits(site.hits() + rng.randrange(5, 60))
            name = rng.choice(WORKERS)
            assert fleet.is_running(name), "the site is too small for so many kills"
            fleet.kill(name)
            kills += 1
            fleet.start(name)
        fleet.finish()
        hits = fleet.page_hits()
        assert site.missing_pages() == []
        assert sum(hits) - 1 - site.pages <= kills * IN_HAND
