"""Workers in processes of their own crawl a site: killed, interrupted, frozen, and with feeds of their own."""

import csv
import json
import random
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.commands.command_line import main
from tests.fleet.servers import LosingProxy, RedisServer, wait_until
from tests.fleet.site import Site, workers
from tests.support.crawls import Running
from tests.support.processes import PATIENCE


def assert_finished(worker: Running) -> None:
    outcome = worker.finish()
    assert outcome.stats.get("finish_reason") == "finished", outcome.log


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

        wait_until(lambda: len(site.held) == 4, "CONCURRENT_REQUESTS are in progress")
        wait_until(lambda: acknowledged() == site.hits.total() - 4, "what is done is acknowledged")
        running.pop().kill()
        site.gate.set()
        running.start(**settings).finish()
        assert not site.missing()
        assert site.hits.total() == site.size + 4


def test_an_interrupted_crawl_is_gone_on_with(server: RedisServer) -> None:
    """Ctrl-C finishes the pages in hand; the next workers fetch the rest, and no page twice, the start URL included. A
    worker that joins the end ends at once.
    """
    with Site(pages=40) as site, workers(site, server.url, 1) as running:
        site.wait_for(10)
        running[0].signal(signal.SIGINT)
        running.pop().finish()
        for count in (2, 1):
            for worker in [running.start() for _ in range(count)]:
                assert_finished(worker)
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

    with Site(pages=80) as site, server.client() as redis, ThreadPoolExecutor(1) as pool:
        site.broken = {2, 5}
        with workers(site, server.url, 2, **own) as running:
            site.wait_for(50)
            site.gate.clear()
            wait_until(lambda: redis.hlen("{bloom:site:0}:estimates"), "a worker has sent what it knows")
            wait_until(lambda: run("info")["left_at_most"] is not None, "they know enough pages")
            info = run("info")
            assert 0 < info["pending"] + info["leased"] <= info["left_at_least"]
            assert info["left_at_least"] <= info["left_at_most"] <= 2 * site.size
            watching = pool.submit(main, ["info", server.url, "bloom:site", "--watch", "0.1", "--json"])
            for worker in running:
                worker.kill()
            assert watching.result(PATIENCE) == 0
            last = json.loads(capsys.readouterr().out.splitlines()[-1])["workers"]
            assert {worker["is_alive"] for worker in last} == {False}
            assert sum(worker["leased"] for worker in last) > 0
            site.gate.set()
            assert_finished(running.start(**own))
            failed = run("info", "--failed")
            assert failed["failed_by_host"] == [{"host": "127.0.0.1", "reason": "status 500", "requests": 2}]
            assert {request["url"][-7:] for request in failed["requests"]} == {"/page/2", "/page/5"}
            assert run("requeue", "--failed", "--host", "other.example")["requeued"] == 0
            assert run("requeue", "--failed")["requeued"] == 2
            hits = dict(site.hits)
            assert_finished(running.start(**own))
            assert {path: site.hits[path] - hits[path] for path in hits if site.hits[path] > hits[path]} == {
                "/page/2": 2,
                "/page/5": 2,
            }
            assert main(["forget", server.url, "bloom:site", f"{site.url}/page/6"]) == 0
            run("requeue", "--failed")
            site.broken, hits = set(), dict(site.hits)
            assert_finished(running.start(**own))
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
        running.start()
        wait_until(lambda: redis.exists("{bloom:site:0}"), "the queue is begun anew")
        running[0].signal(signal.SIGCONT)
        site.gate.set()
        frozen = running[0].finish()
        assert (frozen.stats["finish_reason"], "anew" in frozen.log) == ("fleet_lost", True), frozen.log
        assert_finished(running[1])
        assert not site.missing()


def test_a_bug_in_the_thread_ends_the_crawl_with_a_reason(server: RedisServer) -> None:
    """When the lease client's thread dies of a bug, the crawl ends and says why, instead of hanging."""
    with Site(pages=20) as site, workers(site, server.url, 1) as running, server.client() as redis:
        site.gate.clear()
        site.wait_for(2)
        redis.delete("{bloom:site:0}:workers")
        redis.set("{bloom:site:0}:workers", "no sorted set")
        site.gate.set()
        outcome = running[0].finish()
        assert (outcome.stats["finish_reason"], "CRITICAL" in outcome.log) == ("fleet_failed", True), outcome.log


PAGES = 40


class Own:
    """The directory and the feed of one worker, which may be started again and again."""

    def __init__(self, directory: Path, feed_format: str = "jsonlines", **options: Any) -> None:
        self.feeds, self.format = directory / "feeds", feed_format
        self.settings: dict[str, Any] = {
            "JOBDIR": str(directory / "job"),
            "FEEDS": {str(self.feeds / ("%(batch_id)d" if options else "items")): {"format": feed_format, **options}},
            "EXTENSIONS": {"scrapy.extensions.feedexport.FeedExporter": None, "scrapy_bloom.FeedExporter": 0},
        }

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
    moments = sorted(random.Random(feed_format).sample(range(1, PAGES), 4))
    owns = [Own(tmp_path / name, feed_format, **options) for name in "ab"]
    with Site(pages=PAGES) as site, workers(site, server.url, 0) as running, server.client() as redis:
        site.gate.clear()
        site.gated = {PAGES - 1}  # so that the crawl goes on until the last kill
        for own in owns:
            running.start(**own.settings)
        for turn, pages in enumerate(moments):
            site.wait_for(pages)
            if turn == 2:
                running[turn % 2].signal(signal.SIGINT)
                running[turn % 2].is_alive(3)  # with the gated page in hand, it is killed while it stops
            running[turn % 2].kill()
            running.start(**owns[turn % 2].settings)
            running[turn % 2] = running.pop()
        site.gate.set()
        for worker in running:
            assert_finished(worker)
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
    with LosingProxy(server.port) as proxy, Site(pages=PAGES) as site, workers(site, proxy.url, 0) as running:
        running.start(**own.settings)
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
        assert_finished(running.start(**{**own.settings, "BLOOM_REDIS_URL": server.url}))
        assert not site.missing()
    assert not off(own)


SCHEDULERS = [
    "scrapy_redis.scheduler.Scheduler",
    pytest.param("scrapy.core.scheduler.Scheduler", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_any_scheduler_can_have_it(server: RedisServer, scheduler: str) -> None:
    """Under Scrapy's scheduler or that of scrapy-redis, two workers fetch each page once between them."""
    settings = {
        "SCHEDULER": scheduler,
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.RedisBloomDupeFilter",
        "REDIS_URL": server.url,
        "SCHEDULER_PERSIST": True,
    }
    with Site(pages=30) as site, workers(site, server.url, 2, **settings) as running:
        for worker in running:
            worker.finish()
        assert not site.missing()
        assert max(count for path, count in site.hits.items() if path != "/page/0") == 1
