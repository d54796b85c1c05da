from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from redis import RedisCluster

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.fleet.queue import SHARDS_PER_NODE
from tests.fleet.servers import PATIENCE, LosingProxy, RedisServer, move_slot, redis_cluster, wait_until
from tests.fleet.site import OUR_FEEDS, Site, start, workers
from tests.support.engine import BY_HOST

if TYPE_CHECKING:
    from pathlib import Path


def test_kills_of_workers_and_server_lose_no_page_and_no_item(mortal: RedisServer, tmp_path: Path) -> None:
    """Two workers, of which one is killed, and the server, too, fetch all pages, and end by themselves. Items are given
    twice of pages that were fetched twice, at most.
    """
    files = [tmp_path / f"items-{number}.jl" for number in range(3)]
    feeds = [{"FEEDS": {str(path): {"format": "jsonlines"}}, "EXTENSIONS": OUR_FEEDS} for path in files]
    with Site(pages=60) as site, workers(site, mortal.url, 0) as running:
        running += [start(site, mortal.url, **feeds[0]), start(site, mortal.url, **feeds[1])]
        site.wait_for(20)
        running.pop(0).kill()
        mortal.kill()
        mortal.start()
        running.append(start(site, mortal.url, **feeds[2]))
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()
        lines = [line for path in files if path.exists() for line in path.read_text().splitlines() if line[-1] == "}"]
        urls = [json.loads(line)["url"] for line in lines]
        assert {url.rpartition("/")[2] for url in urls} == {str(i) for i in range(site.count)}
        assert len(urls) <= site.hits.total()


def test_a_kill_repeats_the_pages_in_progress_at_once(server: RedisServer, tmp_path: Path) -> None:
    """The next worker of the same ``JOBDIR`` waits for no lease. What the worker held besides had not begun, and the
    pages that were done are acknowledged.
    """
    settings = {"JOBDIR": str(tmp_path / "job"), "BLOOM_FLEET_LEASE": 100 * PATIENCE}
    with Site(pages=60) as site, workers(site, server.url, 1, **settings) as running, server.client() as redis:
        site.wait_for(20)
        site.gate.clear()

        def acknowledged() -> int:
            taken, left = redis.hmget("{bloom:site:0}", "seq", "outstanding")
            return int(taken) - int(left)

        in_progress = 4  # CONCURRENT_REQUESTS
        wait_until(lambda: acknowledged() == site.hits.total() - in_progress, "what is done is acknowledged")
        running.pop().kill()
        site.gate.set()
        running.append(start(site, server.url, **settings))
        running[0].finish()
        assert not site.missing()
        assert site.hits.total() == site.count + in_progress


def test_an_interrupted_crawl_is_gone_on_with(server: RedisServer) -> None:
    """Ctrl-C finishes the pages in hand; the next workers fetch the rest, and no page twice, the start URL included. A
    worker that joins the end ends at once.
    """
    with Site(pages=40) as site, workers(site, server.url, 1) as running:
        site.wait_for(10)
        running[0].signal(signal.SIGINT)
        running.pop().finish()
        for count in (2, 1):
            running[:] = [start(site, server.url) for _ in range(count)]
            assert {worker.finish()["finish_reason"] for worker in running} == {"finished"}
        assert not site.missing()
        assert max(site.hits.values()) == 1


def test_commands_speak_of_all_workers(server: RedisServer, capsys: Any) -> None:
    """`info` estimates the pages left, lists what failed, and watches until no worker is alive; `requeue --failed` and
    `forget` let pages be fetched again, by workers that start after it.
    """

    def run(command: str, *words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([command, server.url, "bloom:site", *words, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def crawl() -> None:
        worker = start(site, server.url, RETRY_TIMES=1)
        running.append(worker)
        assert worker.finish()["finish_reason"] == "finished", worker.log

    with Site(pages=80) as site, server.client() as redis, ThreadPoolExecutor(1) as pool:
        site.broken = {2, 5}
        with workers(site, server.url, 2, RETRY_TIMES=1) as running:
            site.wait_for(50)
            site.gate.clear()
            wait_until(lambda: redis.hlen("{bloom:site:0}:estimates") == 2, "both workers have sent what they know")
            wait_until(lambda: run("info")["left_at_most"] is not None, "they know enough pages")
            info = run("info")
            assert 0 < info["pending"] + info["leased"] <= info["left_at_least"]
            assert info["left_at_least"] <= info["left_at_most"] <= 2 * site.count
            watching = pool.submit(main, ["info", server.url, "bloom:site", "--watch", "0.1", "--json"])
            for worker in running:
                worker.kill()
            assert watching.result(PATIENCE) == 0
            last = json.loads(capsys.readouterr().out.splitlines()[-1])["workers"]
            assert [worker["is_alive"] for worker in last] == [False, False]
            assert sum(worker["leased"] for worker in last) > 0
            site.gate.set()
            crawl()
            failed = run("info", "--failed")
            assert failed["failed_by_host"] == [{"host": "127.0.0.1", "reason": "status 500", "requests": 2}]
            assert {request["url"][-7:] for request in failed["requests"]} == {"/page/2", "/page/5"}
            assert run("requeue", "--failed", "--host", "other.example")["requeued"] == 0
            assert run("requeue", "--failed")["requeued"] == 2
            hits = dict(site.hits)
            crawl()
            assert {path: site.hits[path] - hits[path] for path in hits if site.hits[path] > hits[path]} == {
                "/page/2": 2,
                "/page/5": 2,
            }
            assert main(["forget", server.url, "bloom:site", f"{site.url}/page/6"]) == 0
            run("requeue", "--failed")
            site.broken, hits = set(), dict(site.hits)
            crawl()
            assert {path for path in hits if site.hits[path] > hits[path]} == {"/page/2", "/page/5", "/page/6"}
            assert not site.missing()
            info = run("info")
            names = ("pending", "leased", "failed", "left_at_least", "left_at_most")
            assert [info[name] for name in names] == [0] * 5
    for words in (["no url"], []):
        assert main(["forget", server.url, "bloom:site", *words]) == 2


@pytest.mark.slow
def test_a_replica_that_takes_over_and_lags_loses_no_page(tmp_path: Path) -> None:
    """The first server dies, and its replica, which had been cut off from it, takes its place."""
    first, replica = RedisServer(tmp_path / "first"), RedisServer(tmp_path / "replica")
    with (
        first,
        replica,
        replica.client() as client,
        LosingProxy(first.port) as proxy,
        Site(pages=150) as site,
    ):
        client.replicaof("127.0.0.1", first.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
        with workers(site, proxy.url, 2) as running:
            site.wait_for(20)
            client.replicaof("NO", "ONE")
            site.wait_for(60)
            first.kill()
            proxy.target = replica.port
            stats = [worker.finish() for worker in running]
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert sum(each.get("bloom/fleet/went_back", 0) for each in stats) > 0
        assert not site.missing()


def test_a_worker_of_a_queue_that_was_begun_anew_ends_with_a_reason(server: RedisServer) -> None:
    """A worker that was frozen while somebody removed the queue, and another worker began it anew, ends."""
    with Site(pages=12) as site, workers(site, server.url, 1) as running, server.client() as redis:
        site.gate.clear()
        site.wait_for(2)
        running[0].signal(signal.SIGSTOP)
        redis.flushall()
        running.append(start(site, server.url))
        wait_until(lambda: redis.exists("{bloom:site:0}"), "the queue is begun anew")
        running[0].signal(signal.SIGCONT)
        site.gate.set()
        assert running[0].finish()["finish_reason"] == "fleet_lost", running[0].log
        assert "anew" in running[0].log
        assert running[1].finish()["finish_reason"] == "finished", running[1].log
        assert not site.missing()


def test_a_bug_in_the_thread_ends_the_crawl_with_a_reason(server: RedisServer) -> None:
    """When the lease client's thread dies of a bug, the crawl ends and says why, instead of hanging."""
    with Site(pages=20) as site, workers(site, server.url, 1) as running, server.client() as redis:
        site.gate.clear()
        site.wait_for(2)
        redis.delete("{bloom:site:0}:workers")
        redis.set("{bloom:site:0}:workers", "no sorted set")
        site.gate.set()
        assert running[0].finish()["finish_reason"] == "fleet_failed", running[0].log
        assert "CRITICAL" in running[0].log


@pytest.mark.slow
def test_requests_in_memory_survive_their_worker(server: RedisServer) -> None:
    """The worker that is killed may be the one that runs start(), with pages that only it had found."""
    with Site(pages=100) as site, workers(site, server.url, 2, START_REQUESTS=30) as running:
        site.wait_for(40)
        running.pop(0).kill()
        assert running[0].finish()["finish_reason"] == "finished", running[0].log
        assert not site.missing()


@pytest.mark.slow
def test_a_cluster_shares_a_queue_among_its_nodes(tmp_path: Path) -> None:
    """A worker is killed, slots move to other nodes, and no node answers for a while; the workers fetch all pages.
    While the keys of a shard are on two nodes, its scripts change nothing.
    """
    with redis_cluster(tmp_path) as nodes, Site(pages=240) as site, workers(site, nodes[0].url, 3) as running:
        site.gate.clear()
        with RedisCluster.from_url(nodes[0].url) as client:
            last = 3 * SHARDS_PER_NODE - 1  # which a worker joins last
            wait_until(lambda: client.zcard(f"{{bloom:site:{last}}}:workers") == 3, "the workers have joined")
        site.gate.set()
        site.wait_for(20)
        running.pop(0).kill()
        running.append(start(site, nodes[1].url))
        for shard in range(4):
            site.wait_for(40 + 30 * shard)
            move_slot(nodes, f"{{bloom:site:{shard}}}")
        for node in nodes:
            node.kill()
        with socket.create_server(("127.0.0.1", nodes[0].port)) as dead:
            dead.settimeout(PATIENCE)
            for _ in range(4):
                dead.accept()[0].close()
        for node in nodes:
            node.start()
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()


@pytest.mark.slow
def test_the_next_fleet_leaves_out_what_gave_an_item(server: RedisServer, tmp_path: Path) -> None:
    """Two workers keep one delta on their machine; both of the next run read all of it. A start page is fetched."""
    with Site(pages=60) as site:
        for run, expected in (("first", 60), ("second", 1)):
            site.hits.clear()
            with workers(site, server.url, 2, BLOOM_REDIS_KEY=run, BLOOM_DELTA=str(tmp_path)) as both:
                for worker in both:
                    worker.finish()
            assert len(site.hits) == expected


POLITE = {"ADDONS": {"scrapy_bloom.Addon": 300}, "SCHEDULER_PRIORITY_QUEUE": BY_HOST}


@pytest.mark.slow
def test_retry_after_pauses_all_workers(server: RedisServer) -> None:
    """A host that answers one worker with 429 is asked by none before its time; each page is fetched, that one again.

    What another worker had sent already is let pass.
    """
    pause = 6
    with Site(pages=60) as site, server.client() as redis:
        site.pauses = {30: pause}
        with workers(site, server.url, 2, **POLITE, DOWNLOAD_DELAY=0.02) as running:
            wait_until(lambda: redis.hlen("{bloom:site:0}:paused"), "the server knows of the pause")
            known = time.time()
            stats = [worker.finish() for worker in running]
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert sum(each.get("bloom/pauses", 0) for each in stats) == 1
        assert not site.missing()
        assert sum(site.hits.values()) == site.count + 1
        times = [moment for moment, *_ in site.moments]
        early = [moment for moment in times if known < moment < times[29] + pause]
        assert len(early) <= 3 * 4  # what the other has ready, and both have in hand
