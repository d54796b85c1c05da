"""A fleet on a real Redis Cluster of three nodes: hosts are spread over shards, and links lead from one to another."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
from redis import RedisCluster
from scrapy import Request

from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.crawl.scrapy_redis import fingerprint
from scrapy_bloom.old.fleet.frontier.queue import shard_of
from tests.old.fleet.frontier.test_fleet_scheduler import FLEET, delivered
from tests.old.support.fleets import IN_HAND, Fleet, wait_until
from tests.old.support.localsite import LocalSite
from tests.old.support.redis_cluster import redis_cluster
from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.old.support.redis_servers import RedisServer

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
        assert not cluster.execute_command("EXISTS", key)  # exists() warns in redis-py 6.0
        cluster.close()
        assert site.missing_pages() == []
        assert site.hits() == 2 * HOSTS  # once as a page of the crawl, once as a start URL


@pytest.mark.slow
def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While no node is there the worker tries again and again, and when they are back it delivers what has gathered."""
    with redis_cluster(tmp_path) as nodes:
        worker = a_worker(nodes[0])
        worker.push(Request("https://example.com/before"))
        delivered(worker)
        courier, server = worker.scheduler._courier, worker.scheduler._queue.server
        for node in nodes:
            node.kill()
        worker.push(Request("https://example.com/meanwhile"))
        tries = server.round_trips + 4
        wait_until(lambda: courier.is_away and server.round_trips >= tries, "a few tries")
        for node in nodes:
            node.start()
        wait_until(lambda: not courier.is_away, "the cluster to be found again")
        delivered(worker)
        assert "https://example.com/meanwhile" in worker.drain()
        worker.stop()
    assert "has failed" not in caplog.text


@pytest.mark.slow
def test_commands_and_take_over_know_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What scrapy-redis left under keys without a hash tag is taken over, and kept under names on the same nodes; info
    and requeue find the queue when they are told the spider, and say so if not."""
    pending, seen = ([Request(f"https://h{i}.example/{name}") for i in range(9)] for name in ("pending", "seen"))
    with redis_cluster(tmp_path) as nodes:
        cluster = RedisCluster(host="127.0.0.1", port=nodes[0].port, protocol=2)
        cluster.zadd("site:requests", {pickle.dumps(request.to_dict(), protocol=4): 0 for request in pending})
        cluster.sadd("site:dupefilter", *(fingerprint(request).hex() for request in [*pending, *seen]))
        worker = a_worker(nodes[0])
        worker.push(*seen)
        delivered(worker)
        assert main(["info", nodes[1].url]) == USAGE
        assert "is a cluster. Give the --spider or the --key." in capsys.readouterr().err
        assert main(["info", nodes[1].url, "--spider", "site", "--json"]) == OK
        found = json.loads(capsys.readouterr().out)
        assert (found["shards"], found["pending"] + found["leased"], found["enqueued"]) == (SHARDS, 9, 9)
        assert [one["is_alive"] for one in found["workers"]] == [True]
        assert main(["requeue", nodes[2].url, "--spider", "site"]) == OK
        assert sorted(worker.drain()) == sorted(request.url for request in pending)
        worker.stop()
        assert cluster.execute_command("EXISTS", "{site:requests}:moved") == 1
        assert cluster.execute_command("EXISTS", "{site:dupefilter}:moved") == 1
        assert cluster.keyslot("{site:requests}:moved") == cluster.keyslot("site:requests")
        cluster.close()


def a_worker(node: RedisServer) -> EngineCalls:
    plain = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter", "CONCURRENT_REQUESTS": 1, "BLOOM_CAPACITY": 1000}
    return EngineCalls(None, FLEET, BLOOM_REDIS_URL=node.url, BLOOM_REDIS_SHARDS=SHARDS, **plain)
