from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmh3 import mmh3_x64_128_digest

from scrapy_bloom.old.filter import sizing
from scrapy_bloom.old.fleet.filter import bitmap
from scrapy_bloom.old.fleet.filter.bitmap import MAX_LAYER_BITS, MIN_LAYER_BITS, BitmapLayer, layer, positions
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import RedisServer

    from scrapy_bloom.old.fleet.filter.shared import SharedFilter

    Open = Callable[..., SharedFilter]


def test_scheme_2_stays_as_it_is() -> None:
    """The positions of scheme 2 are frozen, so that later versions find the bits that a server holds."""
    digest = bytes(range(16))
    assert positions(digest, 65_536, 8) == [268, 5263, 18690, 40550, 5308, 44037, 25666, 15732]
    assert positions(b"\xff" * 16, MAX_LAYER_BITS, 3) == [
        (2**42 - 1) % MAX_LAYER_BITS,
        (2**43 - 2) % MAX_LAYER_BITS,
        (3 * (2**42 - 1) + 2**42 - 1) % MAX_LAYER_BITS,
    ]


def test_the_script_sets_the_bits_of_the_scheme(plain_server: RedisServer, open_shared: Open, prefix: str) -> None:
    """The bits in the server's bitmaps are exactly those that the scheme gives for what was added."""
    shared = open_shared(plain_server.url, capacity=3000)
    sample = fingerprints(8000)
    assert all(shared.add(sample))
    meta_key, *data_keys = shared._chains[0].all_keys()
    with plain_server.client(decode_responses=False) as client:
        meta = {name.decode(): value.decode() for name, value in client.hgetall(meta_key).items()}
        bitmaps = [client.get(key) for key in data_keys]
    assert len(bitmaps) == 2
    start = 0
    for index, bits in enumerate(bitmaps):
        spec = BitmapLayer.parse(meta[f"layer:{index}"])
        expected = bytearray(-(-spec.size_bits // 8))
        for fingerprint in sample[start : start + spec.capacity]:
            for at in positions(mmh3_x64_128_digest(fingerprint, int(meta["seed"])), spec.size_bits, spec.probes):
                expected[at // 8] |= 128 >> at % 8
        assert bytes(expected) == bits
        start += spec.capacity


def test_positions_stay_exact_in_the_largest_layer(plain_server: RedisServer, prefix: str) -> None:
    """Lua's doubles compute the same positions as Python's integers where the numbers are largest."""
    text = bitmap._SCRIPT.text
    functions = text[text.index("local function start") : text.index("local function contains")]
    walk = """
    local x, y, z = start(ARGV[1])
    local size, found = tonumber(ARGV[2]), {}
    x, y, z = x % size, y % size, z % size
    for i = 1, tonumber(ARGV[3]) do
        found[i] = string.format('%.0f', x)
        x, y, z = (x + y) % size, (y + z) % size, (z + 1) % size
    end
    return found
    """
    rng = random.Random(1)
    digests = [b"\xff" * 16, b"\x00" * 16, *(rng.randbytes(16) for _ in range(300))]
    with plain_server.client() as client:
        for digest, size in itertools.product(digests, (MIN_LAYER_BITS, 999_999_937, MAX_LAYER_BITS)):
            found = client.eval(functions + walk, 0, digest, size, 60)
            assert [int(one) for one in found] == positions(digest, size, 60)


@pytest.mark.parametrize(("probes", "capacity"), [(1, 400), (4, 6000), (7, 9000), (10, 6500)])
def test_the_rate_is_that_of_independent_probes(probes: int, capacity: int) -> None:
    """In the smallest layer, where schemes fall short first, the measured rate is (1 - e^(-kn/m))^k."""
    rng = random.Random(probes)
    rounds, asked, hits = 5, 20_000, 0
    for _ in range(rounds):
        ones = bytearray(MIN_LAYER_BITS)
        for _ in range(capacity):
            for at in positions(rng.randbytes(16), MIN_LAYER_BITS, probes):
                ones[at] = 1
        hits += sum(all(ones[at] for at in positions(rng.randbytes(16), MIN_LAYER_BITS, probes)) for _ in range(asked))
    expected = rounds * asked * sizing.fill_ratio(capacity, MIN_LAYER_BITS, probes) ** probes
    # Five standard deviations of the count, and 3 % for the spread of the fill between rounds.
    assert hits == pytest.approx(expected, abs=5 * math.sqrt(expected) + 0.03 * expected)


@given(
    capacity=st.integers(1, 10**10), error_rate=st.floats(1e-10, 0.5), growth=st.floats(2, 16), shape=st.integers(1, 60)
)
def test_every_chain_keeps_its_promise(capacity: int, error_rate: float, growth: float, shape: int) -> None:
    """The rates of all layers at capacity, by the formula for their m and k, add up to less than the promise. Layers
    that would be longer than a Redis string have the length of one."""
    total, wanted = 0.0, float(capacity)
    for index in range(shape):
        spec = layer(index, capacity=round(wanted), target=error_rate)
        assert MIN_LAYER_BITS <= spec.size_bits <= MAX_LAYER_BITS < 8 * 512 * 1024**2
        assert 1 <= spec.capacity <= round(wanted)
        assert BitmapLayer.parse(str(spec)) == spec
        total += spec.fill_ratio(spec.capacity) ** spec.probes
        wanted = max(spec.capacity * growth, capacity)
    assert total <= error_rate * (1 + 1e-9)


def test_growth_stops_at_the_size_of_a_string(plain_server: RedisServer, prefix: str) -> None:
    """A capacity of a billion begins with a layer of 512 MB, and the next ones are as large."""
    first = layer(0, capacity=10**9, target=1e-6)
    assert first.size_bits == pytest.approx(MAX_LAYER_BITS, abs=64)
    assert first.capacity == pytest.approx(132e6, rel=0.02)
    with plain_server.client() as client:
        # The server itself says that the last bit of the largest layer can be set, and how much it takes.
        client.setbit(prefix, MAX_LAYER_BITS - 1, 1)
        assert client.strlen(prefix) == MAX_LAYER_BITS // 8
        client.delete(prefix)


def test_a_million_urls_at_the_default_rate_cost_under_five_bytes() -> None:
    """The first layer for a million URLs takes under five bytes each at the share of 1e-6 that the server has."""
    first = layer(0, capacity=10**6, target=0.75e-6)
    assert first.size_bits / 8 / first.capacity == pytest.approx(4.16, abs=0.02)
