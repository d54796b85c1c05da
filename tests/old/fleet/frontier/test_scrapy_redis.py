"""What scrapy-redis left is taken over: its queue in its order, its filter, each request once, and nobody's code."""

from __future__ import annotations

import itertools
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
import scrapy_redis.scheduler
from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.fleet.frontier import scrapy_redis as taking_over
from tests.old.fleet.frontier.test_fleet_scheduler import Bomb, delivered
from tests.old.support.fleets import Fleet, wait_until
from tests.old.support.localsite import LocalSite
from tests.old.support.proxy import LosingProxy
from tests.old.support.redis_servers import RedisServer, free_port
from tests.old.support.schedulers import EngineCalls, PlainSpider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FURTHER_ORDERS = [("PriorityQueue", "Fifo"), *itertools.product(["FifoQueue", "LifoQueue"], ["Lifo", "Fifo"])]


class Left:
    """A queue and a filter of scrapy-redis, made by scrapy-redis itself; keys of its own for each test."""

    def __init__(self, server: RedisServer, prefix: str, queue: str = "PriorityQueue", **settings: Any) -> None:
        self.keys = {
            "SCHEDULER_QUEUE_KEY": f"{prefix}:requests",
            "SCHEDULER_DUPEFILTER_KEY": f"{prefix}:dupefilter",
            "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}",
        }
        ours = {"REDIS_URL": server.url, "SCHEDULER_PERSIST": True, **self.keys}
        theirs = {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}
        crawler = get_crawler(PlainSpider, {**ours, **theirs, **settings})
        crawler.spider = crawler._create_spider()
        self.scheduler = scrapy_redis.scheduler.Scheduler.from_crawler(crawler)
        self.scheduler.stats = None  # it counts in a way that this Scrapy warns of
        self.scheduler.open(crawler.spider)
        self.spider: Any = crawler.spider

    def push(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.enqueue_request(request)

    def pop(self) -> Request:
        found: Request = self.scheduler.next_request()
        return found

    def close(self) -> None:
        self.scheduler.close("finished")
        self.scheduler.server.close()


@pytest.fixture
def open_worker(open_worker: Callable[..., EngineCalls]) -> Callable[..., EngineCalls]:
    """Return schedulers of workers that find what is left under its keys."""
    return lambda left, **settings: open_worker(**{**left.keys, **settings})


def url(i: int) -> str:
    return f"https://example.com/{i}?b=2&a=1"


@pytest.mark.parametrize(
    ("queue", "order"),
    [("PriorityQueue", "Lifo"), *(pytest.param(*both, marks=pytest.mark.slow) for both in FURTHER_ORDERS)],
)
def test_pending_requests_come_in_the_order_of_scrapy_redis(
    plain_server: RedisServer,
    prefix: str,
    open_worker: Callable[..., EngineCalls],
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    order: str,
) -> None:
    """Pending requests are fetched once, in scrapy-redis' order; those fetched before count as seen, and new ones are
    taken in."""
    monkeypatch.setattr(taking_over, "_BATCH", 7)
    left = Left(plain_server, prefix, queue)
    priorities = queue == "PriorityQueue"
    left.push(*(Request(url(i), priority=i % 5 if priorities else 0, meta={"i": i}) for i in range(20)))
    fetched = [left.pop().url for _ in range(5)]
    shadow = Left(plain_server, f"{prefix}-shadow", queue)
    server = left.scheduler.server
    server.copy(left.keys["SCHEDULER_QUEUE_KEY"], shadow.keys["SCHEDULER_QUEUE_KEY"])
    expected = [shadow.pop().url for _ in range(15)]
    left.close()
    shadow.close()
    worker = open_worker(left, SCHEDULER_DISK_QUEUE=f"scrapy.squeues.Pickle{order}DiskQueue")
    for one in fetched + expected[:5]:
        worker.push(Request(one))
    delivered(worker)
    assert worker.drain() == expected
    assert worker.stats.get_value("dupefilter/filtered") == 10
    worker.push(Request(url(1000)))
    delivered(worker)
    assert worker.drain() == [url(1000)]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "shards"), [("bf", 1), ("bitmap", 3)])
def test_both_engines_and_several_shards_know_what_was_seen(
    tmp_path: Path, open_worker: Callable[..., EngineCalls], engine: str, shards: int
) -> None:
    """With requests of many hosts in several shards, what was fetched counts as seen in each shard."""
    urls = [f"https://{host}.example/{i}" for host in "abcdef" for i in range(6)]
    with RedisServer(tmp_path, bloom=engine == "bf") as server:
        left = Left(server, "site")
        left.push(*map(Request, urls))
        fetched = [left.pop().url for _ in range(12)]
        left.close()
        settings = {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_ENGINE": engine, "BLOOM_REDIS_SHARDS": shards}
        worker = open_worker(left, **settings)
        worker.push(*map(Request, fetched))
        delivered(worker)
        assert sorted(worker.drain()) == sorted(set(urls) - set(fetched))
        assert worker.stats.get_value("dupefilter/filtered") == len(fetched)
        worker.stop()


@pytest.mark.slow
def test_a_queue_beside_our_own_filter_is_taken_over_too(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that RedisBloomDupeFilter filtered is taken over: what is pending is fetched, although the filter knows
    it, and nothing else."""
    left = Left(plain_server, prefix, DUPEFILTER_CLASS="scrapy_bloom.RedisBloomDupeFilter", BLOOM_CAPACITY=1000)
    left.push(*(Request(url(i)) for i in range(10)))
    fetched = left.pop().url
    left.close()
    ours = {"BLOOM_REDIS_KEY": None, "REDIS_URL": plain_server.url}
    worker = open_worker(left, **ours)
    worker.push(Request(fetched))
    delivered(worker)
    assert sorted(worker.drain()) == sorted({url(i) for i in range(10)} - {fetched})
    assert "but a filter that knows" not in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Spider.log:scrapy.exceptions.ScrapyDeprecationWarning")  # scrapy-redis calls it
def test_the_old_keys_are_kept_and_lead_back(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """The old keys are kept under the names in the log; renamed back, they serve scrapy-redis, and another start takes
    them over anew."""
    caplog.set_level("INFO")
    left = Left(plain_server, prefix)
    left.push(*(Request(url(i)) for i in range(10)))
    left.close()
    worker = open_worker(left)
    assert f"kept under {prefix}:requests:moved and {prefix}:dupefilter:moved" in caplog.text
    assert "10 pending requests and 10 fingerprints" in caplog.text
    assert len(worker.drain()) == 10
    worker.stop()
    caplog.clear()
    again = open_worker(left)
    assert again.drain() == []
    assert "Taking over" not in caplog.text
    again.stop()
    with plain_server.client() as client:
        client.rename(f"{prefix}:requests:moved", f"{prefix}:requests")
        client.rename(f"{prefix}:dupefilter:moved", f"{prefix}:dupefilter")
        back = Left(plain_server, prefix)
        assert len(back.scheduler) == 10
        back.pop()
        back.push(Request(url(0)), Request(url(99)))
        back.close()
        third = open_worker(left)
        assert len(third.drain()) == 10
        assert not [key for key in client.scan_iter(f"{{{prefix}:*") if b"taken" in key or b"mov" in key]


@pytest.mark.slow
def test_an_interrupted_take_over_goes_on(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever answer is lost, the start fails, and after the next start each request is there once."""
    monkeypatch.setattr(taking_over, "_BATCH", 8)
    with LosingProxy(plain_server.port) as proxy:
        for lost in range(1, 6):
            keys = f"{prefix}-{lost}"
            left = Left(plain_server, keys)
            left.push(*(Request(url(i)) for i in range(20)))
            left.close()
            calls = iter(range(1, 100))

            def keep(self: Any, real: Any = taking_over._TakeOver._keep, calls: Any = calls, lost: int = lost) -> None:
                if next(calls) == lost:
                    proxy.lose_next_answer()
                real(self)

            settings = {"BLOOM_REDIS_KEY": keys, "BLOOM_REDIS_URL": proxy.url}
            with monkeypatch.context() as patch:
                patch.setattr(taking_over._TakeOver, "_keep", keep)
                with pytest.raises(UnusableError):
                    open_worker(left, **settings)
            worker = open_worker(left, **settings)
            assert sorted(worker.drain()) == sorted(url(i) for i in range(20))
            worker.stop()


def test_who_waits_for_another_worker_knows_afterwards_what_it_took_over(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that waited for the take-over of another looks links up under both fingerprints, too."""
    caplog.set_level("INFO")
    left = Left(plain_server, prefix)
    left.push(Request(url(1)))
    left.close()
    with plain_server.client() as client:
        client.set(f"{{{prefix}:0}}:mover", "another")

        def end_it() -> None:
            wait_until(lambda: "Another worker takes over" in caplog.text, "the worker to wait")
            client.hset(f"{{{prefix}:0}}:queue", "scrapy_redis", 1)
            client.delete(f"{{{prefix}:0}}:mover")

        thread = threading.Thread(target=end_it)
        thread.start()
        worker = open_worker(left)
        thread.join()
    assert worker.scheduler._queue.knows_scrapy_redis
    assert worker.drain() == []


def test_an_entry_that_would_run_code_is_refused_named_and_left(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """An entry that would run code is named in an ERROR at each start and stays where it was; the others are taken
    over."""
    left = Left(plain_server, prefix)
    left.push(
        Request(url(1)), Request(url(2), meta={"bomb": Bomb()}), Request(url(3), callback=left.spider.parse_other)
    )
    server = left.scheduler.server
    server.zadd(f"{prefix}:requests", {b"no pickle": 0, pickle.dumps({"url": url(4), "callback": "crawl_all"}): 0})
    left.close()
    worker = open_worker(left)
    assert sorted(worker.drain()) == [url(1), url(3)]
    worker.stop()
    assert not Bomb.went_off
    assert "3 pending requests of scrapy-redis cannot be read" in caplog.text
    assert "it holds builtins.setattr, which is no plain type" in caplog.text
    assert "the callback crawl_all(), which is no method of this spider" in caplog.text
    with plain_server.client() as client:
        assert client.zcard(f"{prefix}:requests") == 3
        caplog.clear()
        open_worker(left).stop()
        assert "3 pending requests of scrapy-redis cannot be read" in caplog.text
        assert client.zcard(f"{prefix}:requests") == 3
        assert not client.exists(f"{prefix}:requests:moved2")


def test_a_filter_without_a_queue_is_warned_of(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A filter without a queue is taken over, and the log says how to go on if the queue was lost."""
    left = Left(plain_server, prefix)
    left.push(Request(url(1)))
    left.pop()
    left.close()
    open_worker(left).stop()
    assert "but a filter that knows 1 URLs: pages that were pending" in caplog.text
    assert "use another BLOOM_REDIS_KEY" in caplog.text
    worker = open_worker(left, BLOOM_REDIS_KEY=f"{prefix}-other")
    worker.push(Request(url(1)))
    delivered(worker)
    assert worker.drain() == [url(1)]


class OwnFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()[:20].ljust(20)


@pytest.mark.parametrize("case", ["fingerprinter", "foreign", "bits"])
def test_a_filter_that_could_lose_pages_is_not_taken_over(
    plain_server: RedisServer,
    prefix: str,
    open_worker: Callable[..., EngineCalls],
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    """A filter is left with a warning beside a fingerprinter of the user's, if its fingerprints are foreign, or if it
    is the bloom filter of another package."""
    left = Left(plain_server, prefix)
    left.push(Request(url(1)), Request(url(2)))
    left.pop()
    if case == "foreign":
        left.scheduler.server.delete(f"{prefix}:dupefilter")
        left.scheduler.server.sadd(f"{prefix}:dupefilter", "0" * 40)
    if case == "bits":
        left.scheduler.server.delete(f"{prefix}:dupefilter")
        left.scheduler.server.setbit(f"{prefix}:dupefilter", 1000, 1)
    left.close()
    own = {"REQUEST_FINGERPRINTER_CLASS": OwnFingerprinter} if case == "fingerprinter" else {}
    worker = open_worker(left, **own)
    assert f"The filter of scrapy-redis, now {prefix}:dupefilter:moved on" in caplog.text
    assert "is not taken over" in caplog.text
    assert ("it is of type string, and scrapy-redis keeps a set there" in caplog.text) == (case == "bits")
    assert len(worker.drain()) == 1


def test_a_queue_that_cannot_be_read_is_said_and_its_filter_left(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A queue of an unknown type is named in an ERROR, and its filter is not taken over, which would make its pending
    pages count as seen."""
    left = Left(plain_server, prefix)
    left.push(Request(url(1)))
    left.scheduler.server.delete(f"{prefix}:requests")
    left.scheduler.server.hset(f"{prefix}:requests", "1", "some other package's")
    left.close()
    worker = open_worker(left)
    assert f"{prefix}:requests:moved on" in caplog.text
    assert "is of type hash, and scrapy-redis keeps pending requests in a sorted set or a list" in caplog.text
    assert "cannot be read, and would count as seen" in caplog.text
    worker.push(Request(url(1)))
    delivered(worker)
    assert worker.drain() == [url(1)]


def test_a_server_of_scrapy_redis_that_is_gone_is_warned_of(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """If scrapy-redis' server is not there, the crawl starts with a warning that does not show the password."""
    left = Left(plain_server, prefix)
    left.close()
    gone = f"redis://:hunter2@127.0.0.1:{free_port()}"
    worker = open_worker(left, REDIS_URL=gone)
    assert "was asked for requests of scrapy-redis to take over" in caplog.text
    assert "hunter2" not in caplog.text
    worker.push(Request(url(1)))
    delivered(worker)
    assert worker.drain() == [url(1)]


def test_it_can_be_switched_off(
    plain_server: RedisServer, prefix: str, open_worker: Callable[..., EngineCalls]
) -> None:
    """With BLOOM_FLEET_TAKE_OVER = False nothing of scrapy-redis is touched."""
    left = Left(plain_server, prefix)
    left.push(Request(url(1)))
    left.close()
    assert open_worker(left, BLOOM_FLEET_TAKE_OVER=False).drain() == []
    with plain_server.client() as client:
        assert client.exists(f"{prefix}:requests", f"{prefix}:dupefilter") == 2


@pytest.mark.slow
def test_a_crawl_moves_in_the_middle(tmp_path: Path) -> None:
    """A crawl that scrapy-redis began and three workers of ours end, started together, fetches each page once."""
    import json
    import subprocess
    import sys

    with LocalSite(pages=300, links_per_page=5, delay=0.03) as site, RedisServer(tmp_path) as server:
        settings = {
            "REDIS_URL": server.url,
            "SCHEDULER_PERSIST": True,
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "CONCURRENT_REQUESTS": 4,
            "LOG_LEVEL": "WARNING",
        }
        with server.client() as client:
            client.lpush("site:start_urls", site.url())
        command = [sys.executable, "-m", "tests.old.support.fleet_worker", json.dumps(settings)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as theirs:
            site.wait_for_hits(100)
            theirs.terminate()
        before = site.hits()
        assert 100 <= before < 300
        with Fleet(site, server, REDIS_URL=server.url) as fleet:
            for name in ("a", "b", "c"):
                fleet.start(name)
            ended = fleet.finish()
            hits = fleet.page_hits()
    assert site.missing_pages() == []
    assert sum(outcome.log.count("Taken over from scrapy-redis on") for outcome in ended.values()) == 1
    # The start page comes again, and once more since nobody filters it: see test_two_workers_fetch_each_page_once.
    assert hits[0] <= 3
    assert hits[1:] == [1] * 299
