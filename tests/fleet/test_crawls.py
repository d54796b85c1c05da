import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scrapy_bloom.commands.command_line import main
from tests.fleet.servers import PATIENCE, RedisServer, wait_until
from tests.fleet.site import Site, start, workers


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

    own = {"RETRY_TIMES": 1, "BLOOM_FLEET_LEASE": 1}

    def crawl() -> None:
        worker = start(site, server.url, **own)
        running.append(worker)
        assert worker.finish()["finish_reason"] == "finished", worker.log

    with Site(pages=80) as site, server.client() as redis, ThreadPoolExecutor(1) as pool:
        site.broken = {2, 5}
        with workers(site, server.url, 2, **own) as running:
            site.wait_for(50)
            site.gate.clear()
            wait_until(lambda: redis.hlen("{bloom:site:0}:estimates"), "a worker has sent what it knows")
            wait_until(lambda: run("info")["left_at_most"] is not None, "they know enough pages")
            info = run("info")
            assert 0 < info["pending"] + info["leased"] <= info["left_at_least"]
            assert info["left_at_least"] <= info["left_at_most"] <= 2 * site.count
            watching = pool.submit(main, ["info", server.url, "bloom:site", "--watch", "0.1", "--json"])
            for worker in running:
                worker.kill()
            assert watching.result(PATIENCE) == 0
            last = json.loads(capsys.readouterr().out.splitlines()[-1])["workers"]
            assert {worker["is_alive"] for worker in last} == {False}
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
