from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from scrapy import Request, Spider, signals
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, RedisBloomDupeFilter, UnseenLinkExtractor, UnseenLinks
from scrapy_bloom.old.errors import BloomError, DamagedError
from scrapy_bloom.old.fleet.filter import fleet_filter
from scrapy_bloom.old.loops.parked import guard_file
from tests.old.support.redis_servers import RedisServer
from tests.old.support.scheduling import finish, open_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class SiteSpider(UnseenLinks, Spider):
    name = "site"


@pytest.fixture
def build(prefix: str) -> Iterator[Callable[..., RedisBloomDupeFilter]]:
    """Return opened filters as several processes would have them, and close them at the end."""
    built = []

    def build_one(url: str, **settings: object) -> RedisBloomDupeFilter:
        crawler = get_crawler(SiteSpider, {"BLOOM_REDIS_URL": url, "BLOOM_REDIS_KEY": prefix, **settings})
        dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
        dupefilter.open()
        built.append(dupefilter)
        return dupefilter

    yield build_one
    for dupefilter in built:
        dupefilter.close("finished")


REQUESTS = [
    Request("http://a.example/?b=2&a=1"),
    Request("http://a.example/?a=1&b=2#top"),
    Request("http://a.example/", method="POST", body=b"x"),
    Request("http://a.example/", method="POST", body=b"y"),
    Request("http://a.example/"),
    Request("http://a.example"),
    Request("http://a.example/%7Euser"),
    Request("http://a.example/~user"),
]


def test_it_decides_as_the_filter_of_one_machine(
    server: RedisServer, engine: str, build: Callable[..., RedisBloomDupeFilter]
) -> None:
    """It gives the same answers as BloomDupeFilter for methods, bodies and canonical forms."""
    local = BloomDupeFilter.from_crawler(get_crawler(SiteSpider))
    local.open()
    fleet = build(server.url, BLOOM_REDIS_ENGINE=engine)
    for request in REQUESTS + REQUESTS:
        assert fleet.request_seen(request) == local.request_seen(request)
    local.close("finished")


def test_two_processes_share_it(server: RedisServer, build: Callable[..., RedisBloomDupeFilter]) -> None:
    """What one process has seen is a duplicate for the other, as a request, a fingerprint and a link."""
    one, other = build(server.url), build(server.url)
    request = Request("http://a.example/page")
    assert not one.request_seen(request)
    assert other.request_seen(request)
    third = build(server.url)
    assert third.seen_many([third.fingerprint(request), b"x" * 20]) == [True, False]
    asked = list(map(third.fingerprint_url, ["http://a.example/page#x", "http://a.example/new"]))
    assert third.seen_fingerprints(asked) == [True, False]
    assert not third.request_seen(Request("http://a.example/new"))


def test_links_are_dropped_before_they_become_requests(
    plain_server: RedisServer, build: Callable[..., RedisBloomDupeFilter], prefix: str
) -> None:
    """UnseenLinks drops links that this filter knows."""
    crawler = get_crawler(SiteSpider, {"BLOOM_REDIS_URL": plain_server.url, "BLOOM_REDIS_KEY": prefix})
    spider = SiteSpider.from_crawler(crawler)
    dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    build(plain_server.url).request_seen(Request("http://a.example/seen"))
    assert spider.unseen_links(["http://a.example/seen", "http://a.example/new"]) == ["http://a.example/new"]
    dupefilter.close("finished")


def test_an_extractor_asks_once_a_page_and_never_for_what_it_knows(
    plain_server: RedisServer, build: Callable[..., RedisBloomDupeFilter], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UnseenLinkExtractor takes one round trip for a page, none for a page of known links, and notices that the filter
    was removed."""
    monkeypatch.setattr(fleet_filter, "TRUST_SECONDS", 1000.0)
    crawler = get_crawler(SiteSpider, {"BLOOM_REDIS_URL": plain_server.url, "BLOOM_REDIS_KEY": prefix})
    spider = SiteSpider.from_crawler(crawler)
    dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    other = build(plain_server.url)
    for n in range(5):
        other.request_seen(Request(f"http://a.example/{n}"))
    extractor = UnseenLinkExtractor()

    def unseen(links: range) -> tuple[int, int]:
        body = "".join(f'<a href="/{n}">x</a>' for n in links).encode()
        response = HtmlResponse("http://a.example/", body=body, request=Request("http://a.example/"))
        crawler.signals.send_catch_log(
            signals.response_received, response=response, request=response.request, spider=spider
        )
        assert dupefilter._filter is not None
        before = dupefilter._filter.shared.server.round_trips
        found = extractor.extract_links(response)
        return len(found), dupefilter._filter.shared.server.round_trips - before

    assert unseen(range(7)) == (2, 1)
    assert unseen(range(5)) == (0, 0)
    other.clear()
    assert unseen(range(5)) == (0, 0)  # within the time for which a server's word is trusted
    assert dupefilter._filter is not None
    dupefilter._filter._trusted_until = 0.0
    assert unseen(range(5)) == (5, 1)
    dupefilter.close("finished")


def test_log_line_and_stats(server: RedisServer, engine: str, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Under the real scheduler the first duplicate is logged in Scrapy's words, and the stats add up."""
    scheduler = open_scheduler(
        "scrapy_bloom.RedisBloomDupeFilter",
        BLOOM_REDIS_URL=server.url,
        BLOOM_REDIS_KEY=prefix,
        BLOOM_REDIS_ENGINE=engine,
    )
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            scheduler.enqueue_request(Request("http://a.example/"))
    (message,) = caplog.messages
    assert message == (
        "Filtered duplicate request: <GET http://a.example/> - no more duplicates will be shown"
        " (see DUPEFILTER_DEBUG to show all duplicates)"
    )
    finish(scheduler)
    assert scheduler.stats is not None
    stats = scheduler.stats.get_stats()
    assert stats["dupefilter/filtered"] == 2
    assert stats["bloom/urls"] == stats["bloom/layers"] == 1
    assert stats["bloom/bytes"] >= 3_600_000
    assert 0 < stats["bloom/fill_ratio"] < 1e-4
    assert stats["bloom/estimated_error_rate"] < 1e-12
    assert stats["bloom/expected_lost"] < 1e-12
    assert 3 <= stats["bloom/redis/round_trips"] <= 10
    assert stats["bloom/redis/away"] == stats["bloom/redis/accepted_alone"] == stats["bloom/redis/unwritten"] == 0


def test_a_start_that_the_loop_guard_refuses_announces_nothing(
    plain_server: RedisServer,
    build: Callable[..., RedisBloomDupeFilter],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a damaged file of the guard the log says why the crawl does not start, and not that it shares a filter."""
    guard_file(tmp_path).parent.mkdir()
    guard_file(tmp_path).write_text("something else" * 100)
    caplog.set_level("INFO")
    with pytest.raises(DamagedError):
        build(plain_server.url, BLOOM_LOOP_GUARD=True, BLOOM_CAPACITY=1000, JOBDIR=str(tmp_path))
    assert "The crawl has not started" in caplog.text
    assert "Sharing the filter" not in caplog.text
    build(plain_server.url)
    assert "Sharing the filter" in caplog.text


def test_request_seen_never_raises(
    plain_server: RedisServer, build: Callable[..., RedisBloomDupeFilter], caplog: pytest.LogCaptureFixture
) -> None:
    """A request that has no fingerprint is let through and counted."""
    dupefilter = build(plain_server.url)

    def fail(request: Request) -> bytes:
        raise RuntimeError("no fingerprint")

    dupefilter._fingerprint = fail
    assert not dupefilter.request_seen(Request("http://a.example/"))
    assert dupefilter._stats.get_value("bloom/unchecked") == 1
    assert "could not be checked" in caplog.text


def test_clear_removes_the_filter_for_all(
    server: RedisServer, engine: str, build: Callable[..., RedisBloomDupeFilter], prefix: str
) -> None:
    """clear() leaves nothing on the server; close() leaves the filter there."""
    dupefilter = build(server.url, BLOOM_REDIS_ENGINE=engine)
    assert not dupefilter.request_seen(REQUESTS[0])
    dupefilter.close("finished")
    with server.client() as client:
        assert client.keys(f"*{prefix}*")
        build(server.url, BLOOM_REDIS_ENGINE=engine).clear()
        assert not client.keys(f"*{prefix}*")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "{bloom:site:0}:meta"),
        ({"SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter"}, "{site:dupefilter:0}:meta"),
        ({"SCHEDULER_DUPEFILTER_KEY": "%(spider)s:x", "BLOOM_REDIS_KEY": "mine:%(spider)s"}, "{mine:site:0}:meta"),
    ],
)
def test_the_key_is_named_by_the_settings(tmp_path: Path, settings: dict[str, object], key: str) -> None:
    """The Redis key is BLOOM_REDIS_KEY, else scrapy-redis' key, else our default; REDIS_URL names the server."""
    with RedisServer(tmp_path) as server, server.client(decode_responses=True) as client:
        crawler = get_crawler(SiteSpider, {"REDIS_URL": server.url, "REDIS_DECODE_RESPONSES": True, **settings})
        dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
        assert not dupefilter.request_seen(REQUESTS[0])  # opens by itself
        dupefilter.close("finished")
        assert client.exists(key)


def test_our_url_goes_before_that_of_scrapy_redis(plain_server: RedisServer, prefix: str) -> None:
    """BLOOM_REDIS_URL wins over REDIS_URL, so the filter may be on another server than the queue."""
    settings = {"BLOOM_REDIS_URL": plain_server.url, "BLOOM_REDIS_KEY": prefix, "REDIS_URL": "redis://127.0.0.1:1"}
    dupefilter = RedisBloomDupeFilter.from_crawler(get_crawler(SiteSpider, settings))
    dupefilter.open()
    dupefilter.close("finished")


def test_the_metadata_is_readable(
    plain_server: RedisServer, build: Callable[..., RedisBloomDupeFilter], prefix: str
) -> None:
    """The metadata on the server tells a person how the filter was made."""
    build(plain_server.url, BLOOM_REDIS_ENGINE="bitmap")
    with plain_server.client(decode_responses=True) as client:
        meta = client.hgetall(f"{{{prefix}:0}}:meta")
    assert meta["format"] == "1"
    assert meta["scheme"] == "2"
    assert meta["error_rate"] == "7.5e-07"
    assert meta["capacity"] == "1000000"
    assert meta["key:fingerprinter"] == "scrapy"
    assert json.dumps(meta)


def test_url_rules_hold_across_processes(server: RedisServer, build: Callable[..., RedisBloomDupeFilter]) -> None:
    """Under the same rules, one process takes for seen what another fetched in another spelling, as a request and as a
    link."""
    one, other = (build(server.url, BLOOM_URL_RULES=["common"]) for _ in range(2))
    assert not one.request_seen(Request("http://a.example/page?utm_source=mail"))
    assert other.request_seen(Request("http://a.example/page?gclid=1"))
    asked = list(map(other.fingerprint_url, ["http://a.example/page", "http://a.example/other?gclid=1"]))
    assert other.seen_fingerprints(asked) == [True, False]


def test_processes_with_other_rules_are_refused(
    server: RedisServer, build: Callable[..., RedisBloomDupeFilter]
) -> None:
    """A process under other rules is refused with a message that names the rules."""
    build(server.url, BLOOM_URL_RULES=["common"])
    with pytest.raises(BloomError, match=r"rules was '.*tracking.*', is now ''"):
        build(server.url)


def test_limits_keep_traps_out_of_the_shared_filter(
    server: RedisServer, build: Callable[..., RedisBloomDupeFilter]
) -> None:
    """A URL beyond a limit is dropped in every process and takes no room on the server."""
    one, other = (build(server.url, BLOOM_LOOP_GUARD=True) for _ in range(2))
    for dupefilter in (one, other):
        assert dupefilter.request_seen(Request("http://a.example/news/news/news/news/"))
    one.close("finished")
    assert one._crawler.stats.get_value("bloom/urls") == 0
