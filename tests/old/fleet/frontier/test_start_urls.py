"""Start URLs that are pushed to a list on the server: what becomes of each, whatever is pushed, whoever is killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.crawl.start_urls import MAX_BYTES, requests_of
from scrapy_bloom.old.fleet.frontier import aside
from scrapy_bloom.old.fleet.frontier.entry import GarbledError
from tests.old.support.fleets import Fleet, wait_until
from tests.old.support.localsite import LocalSite
from tests.old.support.redis_servers import RedisServer
from tests.old.support.schedulers import EngineCalls, PlainSpider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URLS = [f"https://h{i}.example/" for i in range(5)]


@pytest.fixture
def open_worker(open_worker: Callable[..., EngineCalls], prefix: str) -> Callable[..., EngineCalls]:
    """Return schedulers of workers that wait for start URLs."""
    ours = {"BLOOM_FLEET_START_URLS": f"{prefix}:%(name)s:urls", "CONCURRENT_REQUESTS": 16}
    return lambda **settings: open_worker(**{**ours, **settings})


def fetched(worker: EngineCalls, count: int) -> list[str]:
    """The URLs of the next *count* requests, each of which is done before the next one begins."""
    urls: list[str] = []

    def has_enough() -> bool:
        request = worker.scheduler.next_request()
        if request is not None:
            urls.append(request.url)
            worker.scheduler._left(request)
        return len(urls) == count

    wait_until(has_enough, f"{count} requests", timeout=20)
    return urls


@pytest.mark.parametrize("kind", ["list", "set", "sorted set"])
def test_what_is_pushed_is_fetched(
    open_worker: Callable[..., EngineCalls], plain_server: RedisServer, prefix: str, kind: str
) -> None:
    """Start URLs are fetched in the order of a list, in any order from a set, and highest score first from a sorted
    set; none is left."""
    key = f"{prefix}:site:urls"
    with plain_server.client() as client:
        if kind == "list":
            client.rpush(key, *URLS)
        elif kind == "set":
            client.sadd(key, *URLS)
        else:
            client.zadd(key, {url: -i for i, url in enumerate(URLS)})
        worker = open_worker()
        found = fetched(worker, len(URLS))
        assert (sorted(found) if kind == "set" else found) == URLS
        client.rpush(key, URLS[0])  # again: it is not filtered
        assert fetched(worker, 1) == [URLS[0]]
        wait_until(lambda: worker.scheduler._courier.is_over, "the end")
        assert not client.exists(key, f"{{{prefix}:0}}:requests")


def test_what_cannot_be_read_is_set_aside(
    open_worker: Callable[..., EngineCalls],
    plain_server: RedisServer,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A start URL that cannot be read is logged and set aside, and the next one is fetched."""
    with plain_server.client() as client:
        client.rpush(f"{prefix}:site:urls", b"\xff\x00", '{"link": 1}', URLS[0])
    worker = open_worker()
    assert fetched(worker, 1) == [URLS[0]]
    courier = worker.scheduler._courier
    wait_until(lambda: courier.aside == 2 and courier.is_over, "both to be set aside")
    listed = aside.listed(worker.scheduler._queue.server, prefix, 1)
    assert sorted((one.reason, one.url) for one in listed) == [("garbled", '{"link": 1}'), ("garbled", "\ufffd\0")]
    assert caplog.text.count("cannot be read") == 2
    assert "Start URL 0:2 of the queue on " in caplog.text


def test_something_else_under_the_key_is_said_once(
    open_worker: Callable[..., EngineCalls],
    plain_server: RedisServer,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A key that holds something else is left alone and logged once, and the crawl goes on with what it has."""
    with plain_server.client() as client:
        client.set(f"{prefix}:site:urls", "x")
        worker = open_worker()
        worker.push(Request(URLS[0]))
        assert fetched(worker, 1) == URLS[:1]
        wait_until(lambda: "is neither a list nor a set of start URLs" in caplog.text, "the message")
        assert client.get(f"{prefix}:site:urls") == b"x"


def test_one_that_was_taken_by_a_lost_worker_comes_back(
    open_worker: Callable[..., EngineCalls], plain_server: RedisServer, prefix: str
) -> None:
    """A start URL is leased until its requests are in the queue, so a worker that dies in between loses nothing."""
    with plain_server.client() as client:
        client.rpush(f"{prefix}:site:urls", *URLS)
        lost = open_worker(BLOOM_FLEET_WORKER="same")
        lost.scheduler._courier.take(8)  # an engine would do so
        wait_until(lambda: lost.scheduler._courier.arrived, "the start URLs", timeout=20)
        assert not client.exists(f"{prefix}:site:urls")
        courier = lost.scheduler._courier
        courier.queue.leave = lambda: 0  # what a killed worker tells the server
        courier.close(5)
        lost.scheduler._courier = None
        assert sorted(fetched(open_worker(BLOOM_FLEET_WORKER="same"), len(URLS))) == URLS


@pytest.mark.slow
def test_a_full_server_keeps_the_list(tmp_path: Path) -> None:
    """A full server takes no start URL from the list; when it has room again, the URL is fetched."""
    with (
        RedisServer(tmp_path) as server,
        LocalSite(pages=5) as site,
        server.client() as client,
        Fleet(site, server, BLOOM_FLEET_START_URLS="urls", BLOOM_FLEET_MAX_IDLE=1) as fleet,
    ):
        fleet.start("a")
        site.wait_for_hits(6)
        # In one transaction, or it would be taken before the server is full.
        client.pipeline().rpush("urls", site.url("/held/x")).config_set("maxmemory", 1).execute()
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        wait_until(lambda: client.info("commandstats")["cmdstat_evalsha"]["calls"] > before + 3, "two more looks")
        assert client.llen("urls") == 1
        client.config_set("maxmemory", 0)
        site.release("x")
        site.wait_for_hits(1, "/held/x")
        fleet.finish()


@pytest.mark.slow
def test_a_crawl_waits_for_start_urls_and_ends_when_idle(plain_server: RedisServer, prefix: str) -> None:
    """Two idle workers fetch what is pushed, once, and end after BLOOM_FLEET_MAX_IDLE seconds."""
    settings = {"BLOOM_REDIS_KEY": prefix, "BLOOM_FLEET_START_URLS": f"{prefix}:urls", "BLOOM_FLEET_MAX_IDLE": 3}
    with (
        LocalSite(pages=5) as site,
        Fleet(site, plain_server, **settings) as fleet,
        plain_server.client() as client,
    ):
        fleet.start("a")
        fleet.start("b")
        site.wait_for_hits(6)
        site.release("x")
        client.rpush(f"{prefix}:urls", site.url("/held/x"), json.dumps({"url": site.url("/held/y"), "q": "1"}))
        site.release("y")
        site.wait_for_hits(1, "/held/y")
        fleet.finish()
        assert site.hits("/held/x") == site.hits("/held/y") == 1


def test_what_may_be_pushed() -> None:
    """A URL may be pushed, or scrapy-redis' JSON with method, meta and the fields of a form."""
    spider = PlainSpider()
    (plain,) = requests_of(b" https://example.com/ \n", spider)
    assert (plain.url, plain.method, plain.dont_filter, plain.callback) == ("https://example.com/", "GET", True, None)
    (form,) = requests_of(b'{"url": "https://example.com/", "method": "post", "meta": {"n": 1}, "q": "x"}', spider)
    assert (form.method, form.body, form.meta, form.dont_filter) == ("POST", b"q=x", {"n": 1}, True)


@pytest.mark.parametrize(
    "pushed", [b"", b"no url", b"{", b"{}", b'{"url": 1}', b'{"url": "no"}', b"\xff", b"x" * (MAX_BYTES + 1)]
)
def test_nothing_else_makes_a_request(pushed: bytes) -> None:
    """Anything else that is pushed raises GarbledError."""
    with pytest.raises(GarbledError):
        requests_of(pushed, PlainSpider())


def test_a_spider_may_make_the_requests() -> None:
    """The spider's make_request_from_data() makes the requests if it has one, and an exception in it does not end the
    crawl."""

    class Own(PlainSpider):
        def make_request_from_data(self, data: bytes) -> Any:
            return [Request(f"https://{data.decode()}/{i}") for i in range(2)]

    assert [request.url for request in requests_of(b"h", Own())] == ["https://h/0", "https://h/1"]
    with pytest.raises(GarbledError, match="UnicodeDecodeError"):
        requests_of(b"\xff", Own())
