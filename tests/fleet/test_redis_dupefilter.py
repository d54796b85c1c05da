"""The filter that workers share on a server."""

import random
import struct
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_bloom.components.dupefilter import RedisBloomDupeFilter
from scrapy_bloom.components.scheduler import FleetScheduler
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.fleet import blocks
from tests.fleet.servers import LosingProxy, RedisServer
from tests.support.crawler import quick_crawler

Make = Callable[..., RedisBloomDupeFilter]


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def make(url: str, **settings: Any) -> RedisBloomDupeFilter:
        crawler = quick_crawler(Spider, {"BLOOM_REDIS_URL": url, "BLOOM_CAPACITY": 1000, **settings})
        crawler.spider = Spider("pages")
        dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
        dupefilter.open()
        made.append(dupefilter)
        return dupefilter

    yield make
    for dupefilter in made:
        dupefilter.close("finished")


def requests(count: int, first: int = 0) -> list[Request]:
    return [Request(f"https://example.com/{i}") for i in range(first, first + count)]


def new(dupefilter: RedisBloomDupeFilter, asked: list[Request]) -> list[bool]:
    return [not dupefilter.request_seen(request) for request in asked]


def stat(dupefilter: RedisBloomDupeFilter, name: str) -> int:
    return int(dupefilter.crawl.crawler.stats.get_value(name, 0))


def test_what_this_process_has_seen_costs_no_call(make: Make, server: RedisServer) -> None:
    """A duplicate that this process knows is not asked of the server, and a new request is one call."""
    dupefilter = make(server.url)
    with server.client() as client:
        client.config_resetstat()
        new(dupefilter, requests(20) * 10)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 20


def test_requests_pass_while_the_server_is_away(make: Make, mortal: RedisServer, caplog: Any) -> None:
    """While the server is away new requests pass, once each, counted and said once; what was seen stays seen."""
    dupefilter = make(mortal.url)
    new(dupefilter, requests(10))
    mortal.kill()
    assert not any(new(dupefilter, requests(9)))
    assert all(new(dupefilter, requests(30, first=100)))
    assert not any(new(dupefilter, requests(30, first=100)))
    assert stat(dupefilter, "bloom/redis/passed") == 30
    said = [record for record in caplog.records if record.levelname == "WARNING" and mortal.url[8:] in record.message]
    assert len(said) == 1


def test_nothing_is_called_seen_that_was_not(make: Make, server: RedisServer) -> None:
    """A request whose answer was lost passes; asked again, it passes rather than that its page is lost."""
    with LosingProxy(server.port) as proxy:
        dupefilter = make(proxy.url)
        new(dupefilter, requests(1))
        proxy.lose_next_answer()
        assert all(new(dupefilter, requests(1, first=5)))
        assert proxy.lost == 1
        dupefilter.close("finished")
    assert new(make(server.url), requests(1, first=5)) == [False]  # the server had it; nobody else has to fetch it


def test_a_full_server_lets_requests_pass(make: Make, server: RedisServer) -> None:
    """A server without room for new bits lets requests pass, and still knows what it knew."""
    dupefilter, other = make(server.url), make(server.url)
    new(dupefilter, requests(20))
    with server.client() as client:
        client.config_set("maxmemory", 1)
        assert not any(new(other, requests(20)))
        assert all(new(other, requests(20, first=100)))
        client.config_set("maxmemory", 0)


def test_a_filter_that_was_lost_is_begun_anew(make: Make, server: RedisServer) -> None:
    """When the server has lost the filter, processes go on, and share the new one."""
    one, other = make(server.url), make(server.url)
    new(one, requests(10))
    with server.client() as client:
        client.flushall()
    assert all(new(one, requests(10, first=20)))
    assert not any(new(other, requests(10, first=20)))


def test_what_scrapy_redis_clears_at_its_start_is_forgotten(make: Make, server: RedisServer) -> None:
    """With SCHEDULER_FLUSH_ON_START a crawl fetches again what an earlier one has seen."""
    earlier = make(server.url)
    new(earlier, requests(5))
    crawler = earlier.crawl.crawler
    earlier.close("finished")
    assert crawler.spider is not None
    crawler.spider.crawler = crawler
    dupefilter = RedisBloomDupeFilter.from_spider(crawler.spider)
    dupefilter.clear()
    assert all(new(dupefilter, requests(5)))
    dupefilter.close("finished")


@pytest.mark.parametrize(
    ("kind", "scheduler", "named"),
    [
        (RedisBloomDupeFilter, "scrapy_bloom.DurableScheduler", "FleetScheduler"),
        (FleetScheduler, "scrapy_bloom.FleetScheduler", "RFPDupeFilter"),
    ],
)
def test_queue_and_filter_are_both_of_all_workers(kind: Any, scheduler: str, named: str) -> None:
    """With a filter of its own, each worker would fetch everything; with a queue of its own, it would miss pages."""
    crawler = quick_crawler(Spider, {"SCHEDULER": scheduler, "BLOOM_REDIS_URL": "redis://127.0.0.1:1"})
    with pytest.raises(SettingsError, match=named):
        kind.from_crawler(crawler)


@pytest.mark.slow
def test_a_cluster_shares_the_filter_among_its_nodes(make: Make, cluster: list[RedisServer]) -> None:
    """On a cluster the filter is spread over all nodes, and as exact."""
    one, other = make(cluster[0].url), make(cluster[1].url)
    assert all(new(one, requests(200)))
    assert not any(new(other, requests(200)))
    for node in cluster:
        with node.client() as client:
            assert client.dbsize()


# -- its blocks of bits ------------------------------------------------------------------------------------------------


SEED = b"0123456789abcdef"
GOLDEN = (
    362219721209065,
    "04050a0f1417191d24000000280200800018000000044000000002004090000000000100084010000000040400",
)


def keys(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(20) for _ in range(count)]


def bits_of(probe: blocks.Probe) -> int:
    """The bits of a key in its block, as one number."""
    masks = struct.unpack("<9I", probe.bits[9:])
    return sum(mask << 32 * (number - 1) for number, mask in zip(probe.bits, masks, strict=False))


@pytest.mark.parametrize("rate", [1e-1, pytest.param(1e-2, marks=pytest.mark.slow)])
def test_the_rate_is_that_of_the_formula(rate: float) -> None:
    """A full layer calls as many absent keys present as the formula says, within sampling error."""
    load = blocks.load_for(rate)
    count = 300
    layer = [0] * count
    for key in keys(round(load * count), seed=1):
        probe = blocks.probe_of(key, SEED)
        layer[probe.place % count] |= bits_of(probe)
    asked = 10_000
    hits = 0
    for key in keys(asked, seed=2):
        probe = blocks.probe_of(key, SEED)
        bits = bits_of(probe)
        hits += layer[probe.place % count] & bits == bits
    # Besides the draw of the keys asked, that of the blocks' loads: 300 are not all blocks.
    spread = sqrt(rate / asked) + rate * 5 / sqrt(count)
    assert abs(hits / asked - rate) < 4 * spread


def test_a_key_takes_forty_bits_at_most_in_the_first_layer_of_the_default_filter() -> None:
    """The first layer of a fleet at the default error rate takes 40 bits per URL."""
    (count, capacity), *_ = blocks.layer_sizes(1_000_000, 0.9e-6)
    assert count * blocks.BLOCK_BITS / capacity <= 40


def test_a_chain_stays_below_its_rate() -> None:
    """The rates of all layers that a chain may come to have add up to less than its own."""
    sizes = blocks.layer_sizes(1000, 1e-4)
    assert sum(blocks.error_rate(capacity / count) for count, capacity in sizes) < 1e-4


def test_the_scheme_is_what_it_was() -> None:
    """Scheme 1 puts a fingerprint where it did when it was released: filters on servers outlive a release."""
    assert blocks.SCHEME == 1
    place, bits = blocks.probe_of(b"https://example.com/", SEED)
    assert (place, bits.hex()) == GOLDEN


def test_a_server_agrees_with_the_formula(make: Make, server: RedisServer) -> None:
    """A filter on a server that has grown over several layers calls no more new keys seen than it may, and knows all
    that it was given."""
    first, second = (make(server.url, BLOOM_CAPACITY=150, BLOOM_ERROR_RATE=0.01) for _ in "ab")
    given = requests(900)
    assert new(first, given).count(False) / len(given) < 0.01
    assert not any(new(second, given))
