import random
import struct
from math import sqrt

import pytest
from scrapy import Spider

from scrapy_bloom.components.fingerprints import fingerprints_of
from scrapy_bloom.components.fleet_settings import shared_filter
from scrapy_bloom.fleet import blocks
from scrapy_bloom.settings import BloomSettings
from tests.fleet.servers import RedisServer
from tests.support.crawler import quick_crawler

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


def test_a_server_agrees_with_the_formula(server: RedisServer) -> None:
    """A filter on a server that has grown over several layers calls no more new keys seen than it may, and knows all
    that it was given."""
    crawler = quick_crawler(Spider, {"BLOOM_REDIS_URL": server.url, "BLOOM_CAPACITY": 150, "BLOOM_ERROR_RATE": 0.01})
    first, second = (
        shared_filter(crawler, BloomSettings.from_settings(crawler.settings), fingerprints_of(crawler)) for _ in "ab"
    )
    given = keys(900, seed=3)
    wrong = sum(not first.add(key) for key in given)
    assert wrong / len(given) < 0.01
    assert not any(second.add(key) for key in given)
    first.close()
    second.close()
