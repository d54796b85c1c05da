from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from redis import RedisCluster

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.fleet.queue import SHARDS_PER_NODE
from tests.fleet.servers import PATIENCE, LosingProxy, RedisServer, free_port, move_slot, redis_cluster, wait_until
from tests.fleet.site import Site, Worker, start, workers
from tests.support.engine import BY_HOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_kills_of_workers_and_server_lose_no_page(mortal: RedisServer, tmp_path: Path) -> None:
    """Two workers, three of them killed and the server once, fetch all pages and end by themselves."""
    with Site(pages=120) as site, workers(site, mortal.url, 2) as running:
        for round_ in range(3):
            site.wait_for(20 + 30 * round_)
            running.pop(0).kill()
            if round_ == 1:
                mortal.kill()
                mortal.start()
            running.append(start(site, mortal.url))
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()


def test_a_kill_repeats_the_pages_in_progress(server: RedisServer) -> None:
    """What the worker holds besides had not begun, and the pages that were done are acknowledged."""
    with Site(pages=120) as site, workers(site, server.url, 1) as running, server.client() as redis:
        site.wait_for(20)
        site.gate.clear()

        def acknowledged() -> int:
            taken, left = redis.hmget("{bloom:site:0}", "seq", "outstanding")
            return int(taken) - int(left)

        in_progress = 4  # CONCURRENT_REQUESTS
        wait_until(lambda: acknowledged() == sum(site.hits.values()) - in_progress, "what is done is acknowledged")
        running.pop().kill()
        site.gate.set()
        running.append(start(site, server.url))
        running[0].finish()
        assert not site.missing()
        assert sum(site.hits.values()) == site.count + in_progress


def test_a_server_that_comes_back_with_older_data_loses_no_page(tmp_path: Path) -> None:
    """Restarted from a copy of its data that is some pages old, the server and its workers agree again."""
    with RedisServer(tmp_path / "redis", "--appendonly", "no") as server, Site(pages=150) as site:
        with workers(site, server.url, 2) as running:
            site.wait_for(20)
            with server.client() as client:
                client.save()
            site.wait_for(60)
            server.kill()
            server.start()
            stats = [worker.finish() for worker in running]
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert sum(each.get("bloom/fleet/went_back", 0) for each in stats) > 0
        assert not site.missing()


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
    with Site(pages=40) as site, workers(site, server.url, 1) as running, server.client() as redis:
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


def test_a_host_gets_as_many_pages_as_it_may_of_the_fleet(server: RedisServer) -> None:
    """All workers together fetch so many; what is left is fetched when the limit is gone."""
    by_host = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}
    with Site(pages=60) as site:
        for limit, expected in ((20, 20), (None, 60)):
            with workers(site, server.url, 2, BLOOM_PAGES_PER_HOST=limit, **by_host) as running:
                left = [worker.finish()["bloom/fleet/left"] for worker in running]
            assert sum(site.hits.values()) == expected
            assert (max(left) > 0) == (limit is not None)
        assert not site.missing()


def test_items_are_written_before_their_page_is_acknowledged(mortal: RedisServer, tmp_path: Path) -> None:
    """No item is lost to kills; twice are at most those of pages that were fetched twice."""
    files = [tmp_path / f"items-{i}.jl" for i in range(3)]

    def feed(number: int) -> dict[str, Any]:
        return {
            "FEEDS": {str(files[number]): {"format": "jsonlines"}},
            "EXTENSIONS": {
                "scrapy.extensions.feedexport.FeedExporter": None,
                "scrapy_bloom.FeedExporter": 0,
            },
        }

    with Site(pages=100) as site, workers(site, mortal.url, 0) as running:
        running.append(start(site, mortal.url, **feed(0)))
        site.wait_for(30)
        running.pop().kill()
        running += [start(site, mortal.url, **feed(number)) for number in (1, 2)]
        for worker in running:
            worker.finish()
        lines = [line for path in files for line in path.read_text().splitlines() if line.endswith("}")]
        urls = [json.loads(line)["url"] for line in lines]
        assert {url.rpartition("/")[2] for url in urls} == {str(i) for i in range(100)}
        assert len(urls) <= sum(site.hits.values())


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


@pytest.mark.skipif(scrapy.version_info < (2, 19), reason="to earlier versions, 0 meant no request at all")
def test_no_limit_to_requests_at_once_is_none(server: RedisServer) -> None:
    """With ``CONCURRENT_REQUESTS = 0``, which is Scrapy's "no limit", every page is fetched, and the crawl ends."""
    with Site(pages=40) as site, workers(site, server.url, 2, CONCURRENT_REQUESTS=0) as running:
        assert {worker.finish()["finish_reason"] for worker in running} == {"finished"}
        assert not site.missing()


def test_an_interrupted_crawl_is_gone_on_with(server: RedisServer) -> None:
    """Ctrl-C finishes the pages in hand; the next start fetches the rest, and no page twice."""
    with Site(pages=60) as site, workers(site, server.url, 1) as running:
        site.wait_for(20)
        running[0].signal(signal.SIGINT)
        running.pop().finish()
        running.append(start(site, server.url))
        running[0].finish()
        assert not site.missing()
        assert max(site.hits.values()) == 1


def test_requests_in_memory_are_fetched_by_one_worker(server: RedisServer) -> None:
    """Start requests that every worker has, and links that several find, some to pages that lead back to them."""
    with Site(pages=100) as site, workers(site, server.url, 2, START_REQUESTS=30) as running:
        site.gate.clear()
        site.wait_for(8)  # each worker has four of them in hand, and leaves the others their share
        site.gate.set()
        stats = [worker.finish() for worker in running]
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert not site.missing()
        assert max(site.hits.values()) == 1
        assert min(each["response_received_count"] for each in stats) > 0


def test_requests_in_memory_survive_their_worker(server: RedisServer) -> None:
    """A worker that is killed held start requests of every worker, and pages that only it had found."""
    with Site(pages=100) as site, workers(site, server.url, 2, START_REQUESTS=30) as running:
        site.wait_for(40)
        running.pop(0).kill()
        assert running[0].finish()["finish_reason"] == "finished", running[0].log
        assert not site.missing()


def test_a_start_url_is_fetched_once_by_all(server: RedisServer) -> None:
    """Unfiltered start requests of several workers are fetched once, and a worker that joins the end ends at once."""
    with Site(pages=8) as site, workers(site, server.url, 2) as running:
        for worker in running:
            worker.finish()
        running.append(start(site, server.url))
        assert running[-1].finish()["finish_reason"] == "finished"
        assert site.hits["/page/0"] == 1


def test_a_cluster_shares_a_queue_among_its_nodes(tmp_path: Path) -> None:
    """On a cluster of three nodes, with a worker killed, all pages are fetched and all workers end."""
    with redis_cluster(tmp_path) as nodes, Site(pages=80) as site, workers(site, nodes[0].url, 2) as running:
        site.wait_for(20)
        running.pop(0).kill()
        running.append(start(site, nodes[1].url))
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()
        for node in nodes:
            with node.client() as client:
                assert client.dbsize()


def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """No node of it answers for a while; the workers go on when they are back."""
    with redis_cluster(tmp_path) as nodes, Site(pages=80) as site, workers(site, nodes[0].url, 2) as running:
        site.wait_for(20)
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


def test_a_cluster_may_move_slots(tmp_path: Path) -> None:
    """While the keys of a shard are on two nodes, its scripts change nothing; the workers wait for it, and go on."""
    with redis_cluster(tmp_path) as nodes, Site(pages=200) as site, workers(site, nodes[0].url, 2) as running:
        site.gate.clear()
        with RedisCluster.from_url(nodes[0].url) as client:
            last = 3 * SHARDS_PER_NODE - 1  # which a worker joins last
            wait_until(lambda: client.zcard(f"{{bloom:site:{last}}}:workers") == 2, "both workers have joined")
        site.gate.set()
        for shard in range(4):
            site.wait_for(20 + 30 * shard)
            move_slot(nodes, f"{{bloom:site:{shard}}}")
        for worker in running:
            assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()


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


def test_retry_after_pauses_all_workers(server: RedisServer) -> None:
    """A host that answers one worker with 429 is asked by none before its time; each page is fetched, that one again.

    What another worker had sent already is let pass.
    """
    pause = 3
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
        times = site.page_times()
        early = [moment for moment in times if known < moment < times[29] + pause]
        assert len(early) <= 3 * 4  # what the other has ready, and both have in hand


def test_a_killed_worker_ends_no_pause(server: RedisServer) -> None:
    """The server knows it: the worker that takes over waits, too."""
    pause = 6
    with Site(pages=40) as site, server.client() as redis:
        site.pauses = {10: pause}
        with workers(site, server.url, 1, **POLITE, DOWNLOAD_DELAY=0.02) as running:
            wait_until(lambda: redis.hlen("{bloom:site:0}:paused"), "the server knows of the pause")
            running.pop().kill()
            running.append(start(site, server.url, **POLITE))
            running[0].finish()
        assert not site.missing()
        times = site.page_times()
        asked = times[9]
        assert not [moment - asked for moment in times if asked + pause / 6 < moment < asked + pause]


def assert_pace(site: Site, running: list[Worker], delay: float) -> None:
    """Let two workers with a request at a time finish, and check that they are not faster together than one alone.

    The time is taken from when this test has seen the second page until the last one comes. Up to two requests were on
    their way when it began. The first ones are handed out before anything is known of the delay, or go to one worker.
    """
    site.wait_for(2)
    began, already = time.time(), site.hits.total()
    for worker in running:
        assert worker.finish()["finish_reason"] == "finished", worker.log
    assert not site.missing()
    assert site.page_times()[-1] - began >= delay * (site.count - already - 6)


def test_crawl_delay_holds_for_all_workers_together(server: RedisServer) -> None:
    """With ``ROBOTSTXT_OBEY``, two workers make as many requests a second as one."""
    delay = 0.25
    with Site(pages=24) as site:
        site.robots = f"User-agent: *\nCrawl-delay: {delay}".encode()
        with workers(site, server.url, 2, **POLITE, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=1) as running:
            assert_pace(site, running, delay)


def test_autothrottle_holds_for_all_workers_together(server: RedisServer) -> None:
    """The delay that AutoThrottle finds, the time of an answer here, lies between two requests of any two workers."""
    throttled = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.05, "CONCURRENT_REQUESTS": 1}
    with Site(pages=24) as site:
        site.seconds = 0.3
        with workers(site, server.url, 2, **POLITE, **throttled) as running:
            assert_pace(site, running, site.seconds)


def test_pages_left_are_those_of_all_workers(server: RedisServer, capsys: Any) -> None:
    """`info redis://` estimates them from what both have seen, and says 0 at the end."""

    def told() -> dict[str, Any]:
        assert main(["info", server.url, "bloom:site", "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    with Site(pages=150) as site, workers(site, server.url, 2) as running, server.client() as redis:
        site.wait_for(60)
        site.gate.clear()
        wait_until(lambda: redis.hlen("{bloom:site:0}:estimates") == 2, "both workers have told what they know")
        wait_until(lambda: told()["left_at_most"] is not None, "they have told of enough pages")
        now = told()
        assert 0 < now["pending"] + now["leased"] <= now["left_at_least"]
        assert now["left_at_least"] <= now["left_at_most"] <= 2 * site.count
        site.gate.set()
        for worker in running:
            worker.finish()
    assert (told()["left_at_least"], told()["left_at_most"]) == (0, 0)


def test_what_failed_is_listed_and_put_back(server: RedisServer, capsys: Any) -> None:
    """`info --failed` has it for all workers together; `requeue --failed` makes it pending, with all its retries."""
    with Site(pages=30) as site:
        site.broken = {2, 5}
        with workers(site, server.url, 2, RETRY_TIMES=1) as running:
            for worker in running:
                worker.finish()
        hits = site.hits["/page/2"]
        assert main(["info", server.url, "bloom:site", "--failed", "--json"]) == 0
        failed = json.loads(capsys.readouterr().out)
        assert failed["failed_by_host"] == [{"host": "127.0.0.1", "reason": "status 500", "requests": 2}]
        page = f"{site.url}/page/"
        assert {each["url"] for each in failed["requests"]} == {page + "2", page + "5"}
        assert main(["requeue", server.url, "bloom:site", "--failed", "--host", "other.example", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requeued"] == 0
        assert main(["requeue", server.url, "bloom:site", "--failed", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requeued"] == 2
        with workers(site, server.url, 1, RETRY_TIMES=1) as running:
            running[0].finish()
        assert site.hits["/page/2"] == 2 * hits
        assert main(["requeue", server.url, "bloom:site", "--failed"]) == 0
        site.broken = set()
        with workers(site, server.url, 1) as running:
            running[0].finish()
        assert not site.missing()
        capsys.readouterr()
        assert main(["info", server.url, "bloom:site", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["pending"], told["leased"], told["failed"]) == (0, 0, 0)


def test_watching_ends_when_no_worker_is_alive(server: RedisServer, capsys: Any) -> None:
    """`info --watch` follows a fleet until the lease of its last worker has run out: a killed one says nothing."""
    with Site(pages=40) as site, workers(site, server.url, 1) as running, ThreadPoolExecutor(1) as pool:
        site.gate.clear()
        site.wait_for(2)
        watching = pool.submit(main, ["info", server.url, "bloom:site", "--watch", "0.1", "--json"])
        wait_until(lambda: capsys.readouterr().out.count("\n"), "the first line is said")
        running.pop().kill()
        assert watching.result(60) == 0
        [worker] = json.loads(capsys.readouterr().out.splitlines()[-1])["workers"]
        assert not worker["is_alive"]
        assert worker["leased"] > 0


def test_a_url_that_is_forgotten_is_fetched_again(server: RedisServer, capsys: Any) -> None:
    """By a worker that has not met it: one that starts after the command."""
    with Site(pages=30) as site:
        site.broken = {1}
        with workers(site, server.url, 1, RETRY_ENABLED=False) as running:
            running[0].finish()
        page = f"{site.url}/page/"
        assert main(["forget", server.url, "bloom:site", page + "7"]) == 0
        assert main(["requeue", server.url, "bloom:site", "--failed"]) == 0
        site.broken = set()
        hits = dict(site.hits)
        with workers(site, server.url, 1) as running:
            running[0].finish()
        again = {page for page in hits if site.hits[page] > hits[page]}
        assert again <= {"/page/1", "/page/7"}
        assert main(["forget", server.url, "bloom:site", "no url"]) == 2
        assert main(["forget", server.url, "bloom:site"]) == 2
        capsys.readouterr()


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """The script of another client, which does not end."""
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as pool:
        client.config_set("lua-time-limit", 50)
        script = pool.submit(other.eval, "while true do end", 0)
        yield
        client.execute_command("SCRIPT", "KILL")
        assert script.exception() is not None


@contextmanager
def replica_of_nobody(server: RedisServer, **config: str) -> Iterator[None]:
    """The server follows another one, which is not there."""
    with server.client() as client:
        for name, value in config.items():
            client.config_set(name.replace("_", "-"), value)
        client.replicaof("127.0.0.1", free_port())
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def too_few_replicas(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        client.config_set("min-replicas-to-write", 0)


TROUBLES = {
    "BUSY": busy,
    "READONLY": replica_of_nobody,
    "MASTERDOWN": partial(replica_of_nobody, replica_serve_stale_data="no"),
    "NOREPLICAS": too_few_replicas,
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_server_that_is_not_ready_is_waited_for(tmp_path: Path, name: str) -> None:
    """The worker says so, stands still, and goes on to the end."""
    with RedisServer(tmp_path / "redis") as server, Site(pages=60) as site:
        with workers(site, server.url, 1) as running:
            site.wait_for(15)
            with TROUBLES[name](server):
                wait_until(lambda: "The crawl stands still" in running[0].log_so_far(), "the worker says so")
            stats = running[0].finish()
        assert stats["finish_reason"] == "finished", running[0].log
        assert stats["bloom/fleet/away"] >= 1
        assert not site.missing()


def test_a_user_with_the_usual_rights_suffices(server: RedisServer) -> None:
    """``+@all -@dangerous`` and its own keys, without INFO. One who may not use the keys is told which they are."""
    with server.client() as client, Site(pages=20) as site:
        rights = ("on", ">secret", "+@all", "-@dangerous")
        client.execute_command("ACL", "SETUSER", "worker", *rights, "~{bloom:*")
        client.execute_command("ACL", "SETUSER", "stranger", *rights, "~other:*")
        address = server.url.replace("//", "//{}:secret@")
        with workers(site, address.format("worker"), 2) as running:
            for worker in running:
                assert worker.finish()["finish_reason"] == "finished", worker.log
        assert not site.missing()
        with workers(site, address.format("stranger"), 1) as running:
            running[0].wait()
            assert "{bloom:" in running[0].log
