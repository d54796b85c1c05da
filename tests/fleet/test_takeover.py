import pickle
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import FifoQueue, LifoQueue, PriorityQueue

from scrapy_bloom.components.fingerprints import fingerprints_of
from scrapy_bloom.components.fleet_requests import FleetRequests
from scrapy_bloom.components.fleet_settings import order_of
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.fleet.takeover import ScrapyRedis, ScrapyRedisFingerprinter, take_over
from scrapy_bloom.settings import BloomSettings
from tests.fleet.engine import Worker, crawl
from tests.fleet.servers import RedisServer
from tests.fleet.test_entry import Harmful
from tests.support.crawler import quick_crawler

OURS = f"{ScrapyRedisFingerprinter.__module__}.ScrapyRedisFingerprinter"


class BookSpider(Spider):
    name = "books"

    def parse(self, response: Any, **_: Any) -> None:
        pass


def request(path: str, priority: int = 0) -> Request:
    return Request(f"https://example.com/{path}", priority=priority)


class Crawl:
    """A crawl of scrapy-redis on *server*, to be taken over."""

    def __init__(self, server: RedisServer, queue: type = PriorityQueue, fingerprinter: Any = OURS) -> None:
        self.own = {
            "BLOOM_REDIS_URL": server.url,
            "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue.__name__}",
            "REQUEST_FINGERPRINTER_CLASS": fingerprinter,
        }
        self.crawler = quick_crawler(BookSpider, self.own)
        self.crawler.spider = self.spider = BookSpider.from_crawler(self.crawler)
        self.client = server.client()
        self.queue = queue(self.client, self.spider, "%(spider)s:requests", serializer=None)
        self.filter = RFPDupeFilter(self.client, "books:dupefilter")
        self.settings = BloomSettings.from_settings(self.crawler.settings)
        self.url = server.url

    def take_over(self) -> dict[str, Any]:
        connection = Server(self.url)
        queue = Queue.of(connection, self.settings, fingerprints_of(self.crawler), "books")
        try:
            order = order_of(self.crawler.settings, self.spider)
            requests = FleetRequests(self.spider, None, order, fingerprints_of(self.crawler))
            return take_over(queue, ScrapyRedis.of("books", self.crawler.settings), requests.rewritten)
        finally:
            connection.close()

    def fetched(self, *found: str) -> list[str]:
        """What a worker is handed, that finds links to *found* as well."""
        worker = Worker(self.url, spider=BookSpider, **self.own)
        worker.push(*map(request, found))
        try:
            return crawl(worker)
        finally:
            worker.leave()


@pytest.mark.parametrize(("queue", "order"), [(PriorityQueue, "cab"), (FifoQueue, "abc"), (LifoQueue, "cba")])
def test_pending_requests_and_what_was_seen_are_taken_over(server: RedisServer, queue: type, order: str) -> None:
    """After the take-over workers fetch what was pending, in its order, and what they find that was not seen before."""
    crawl = Crawl(server, queue)
    for path in ("done", *"abc"):
        crawl.filter.request_seen(request(path))
    for path in "abc":
        crawl.queue.push(request(path, priority=1 if path == "c" and queue is PriorityQueue else 0))
    found = crawl.take_over()
    assert (found["requests"], found["fingerprints"], found["refused"]) == (3, 4, [])
    fetched = crawl.fetched("done", "a", "new")
    assert sorted(fetched) == sorted([*order, "new"])
    assert "".join(path for path in fetched if path in order) == order
    crawl.client.close()


def test_no_pickle_is_run(server: RedisServer) -> None:
    """An entry that would run code is refused and said, and runs nothing."""
    crawl = Crawl(server)
    crawl.queue.push(request("a"))
    fields = {**request("b").to_dict(), "meta": {"x": Harmful()}}
    crawl.client.zadd("books:requests", {pickle.dumps(fields): 0})
    found = crawl.take_over()
    assert (found["requests"], len(found["refused"])) == (1, 1)
    assert not Harmful.done
    crawl.client.close()


def test_nothing_is_taken_over_twice(server: RedisServer) -> None:
    """A second take-over finds nothing; one that was interrupted adds nothing twice."""
    crawl = Crawl(server)
    crawl.queue.push(request("a"))
    before = crawl.client.dump("books:requests")
    assert crawl.take_over()["requests"] == 1
    with pytest.raises(UnusableError):
        crawl.take_over()
    crawl.client.restore("books:requests", 0, before)
    assert crawl.take_over()["requests"] == 0
    assert crawl.fetched() == ["a"]
    crawl.client.close()


def test_workers_say_what_scrapy_redis_left(server: RedisServer, caplog: Any) -> None:
    """A worker that starts beside what scrapy-redis left names it, and the command that takes it over."""
    crawl = Crawl(server)
    crawl.queue.push(request("a"))
    crawl.fetched()
    assert any("books:requests" in each.getMessage() and "import" in each.getMessage() for each in caplog.records)
    crawl.client.close()
