"""A fleet on a real Redis Cluster of three nodes: hosts are spread over shards, and links lead from one to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import RedisCluster

from scrapy_bloom.fleet.frontier.queue import shard_of
from tests.support.fleets import IN_HAND, Fleet
from tests.support.localsite import LocalSite
from tests.support.redis_cluster import redis_cluster

if TYPE_CHECKING:
    from pathlib import Path

SHARDS, HOSTS = 6, 8


@pytest.mark.slow
def test_links_to_other_shards_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages link to hosts of other nodes; workers are killed; every page is fetched, and the workers end."""
    assert len({shard_of(f"h{i}.site.example", SHARDS) for i in range(HOSTS)}) > 2
    with (
        redis_cluster(tmp_path) as nodes,
        LocalSite(pages=150, links_per_page=4, delay=0.03, hosts=HOSTS) as site,
        Fleet(site, nodes[0], BLOOM_REDIS_SHARDS=SHARDS) as fleet,
    ):
        monkeypatch.setenv("http_proxy", site.url(""))
        for name in ("a", "b"):
            fleet.start(name)
        for hits in (30, 70):
            site.wait_for_hits(hits)
            fleet.kill("a")
            fleet.start("a")
        fleet.finish()
        hits_of = fleet.page_hits()
        assert site.missing_pages() == []
        assert sum(hits_of) - 1 - site.pages <= 2 * IN_HAND
        queues = [len(node.client().keys("*}:queue")) for node in nodes]
        assert sum(queues) == SHARDS
        assert min(queues) > 0


@pytest.mark.slow
def test_start_urls_lie_beside_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster the list needs the hash tag of the first shard; hosts of all shards are reached from it."""
    with (
        redis_cluster(tmp_path) as nodes,
        LocalSite(pages=HOSTS, links_per_page=0, hosts=HOSTS) as site,
        Fleet(site, nodes[0], BLOOM_REDIS_SHARDS=SHARDS, BLOOM_FLEET_MAX_IDLE=1) as fleet,
    ):
        monkeypatch.setenv("http_proxy", site.url(""))
        fleet.start("refused", BLOOM_FLEET_START_URLS="site:start_urls")
        refused = fleet.workers.pop("refused").finish()
        assert "put {bloom:site:0} into it, as in {bloom:site:0}:start_urls" in refused.log
        key = "{bloom:site:0}:start_urls"
        cluster = RedisCluster(host="127.0.0.1", port=nodes[0].port, protocol=2)
        cluster.rpush(key, *(f"http://h{i}.site.example/page/{i}?pushed" for i in range(HOSTS)))
        fleet.start("a", BLOOM_FLEET_START_URLS=key)
        fleet.finish()
        assert not cluster.exists(key)
        cluster.close()
        assert site.missing_pages() == []
        assert site.hits() == 2 * HOSTS  # once as a page of the crawl, once as a start URL
