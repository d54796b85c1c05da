from __future__ import annotations

import itertools
import logging
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.old.errors import KeySpaceError, UnknownFormatError, UnusableError
from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.filter.bf import min_capacity
from scrapy_bloom.old.fleet.filter.shared import GoneError, SharedFilter
from scrapy_bloom.old.fleet.filter.shared_chain import as_mapping
from tests.old.filter.sampling import poisson_interval
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import RedisServer

    Open = Callable[..., SharedFilter]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_key_is_new_once_and_then_seen(server: RedisServer, open_shared: Open, shards: int) -> None:
    """Each fingerprint is accepted once, by whoever comes first, and known to all from then on, while layers grow."""
    one, other = open_shared(server.url, shards=shards), open_shared(server.url)
    sample = fingerprints(2000)
    accepted = [filter_.add([fingerprint])[0] for fingerprint, filter_ in zip(sample, [one, other] * 1000, strict=True)]
    assert all(accepted)
    assert not any(one.add(sample))
    assert not any(other.add(sample))
    assert all(other.seen_many(sample))
    assert not any(one.seen_many(fingerprints(2000, start=2000)))
    figures = one.figures()
    assert figures.urls == 2000
    assert figures.layers >= 3 or server.has_bloom  # whose layers are larger


def test_many_keys_at_once_are_answered_one_by_one(server: RedisServer, open_shared: Open) -> None:
    """A call with many fingerprints, some of them twice, answers like single calls, however many layers it fills."""
    shared = open_shared(server.url, capacity=10)
    sample = fingerprints(3000)
    assert shared.add([*sample, *sample]) == [True] * 3000 + [False] * 3000
    assert shared.figures().layers >= 8 or server.has_bloom
    assert shared.add([]) == shared.seen_many([]) == []


def test_a_lookup_changes_nothing(server: RedisServer, open_shared: Open) -> None:
    """What seen_many() has called unseen is new when it is added."""
    shared = open_shared(server.url)
    sample = fingerprints(300)
    assert not any(shared.seen_many(sample))
    assert all(shared.add(sample))


def test_a_thousand_lookups_cost_one_round_trip(server: RedisServer, open_shared: Open) -> None:
    """Many fingerprints go together, also when they belong to different shards."""
    shared = open_shared(server.url, shards=4)
    before = shared.server.round_trips
    shared.seen_many(fingerprints(1000))
    assert shared.server.round_trips - before == 1


_prefixes = (f"any{i}" for i in itertools.count())


@settings(max_examples=15)
@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 300), max_size=60)), max_size=25),
    shards=st.integers(1, 3),
)
def test_any_interleaving_agrees_with_a_set(
    plain_server: RedisServer, steps: list[tuple[int, list[int]]], shards: int
) -> None:
    """Three clients that add in any order, with tiny layers, get the answers that one Python set would give."""
    prefix = next(_prefixes)
    clients = []
    for _ in range(3):
        shared = SharedFilter(
            connect(plain_server.url, {}),
            prefix,
            engine="bitmap",
            shards=shards,
            capacity=4,
            error_rate=1e-9,
            growth=2.0,
            key_space={},
        )
        shared.open()
        clients.append(shared)
    known: set[int] = set()
    for who, numbers in steps:
        expected = []
        for number in numbers:
            expected.append(number not in known)
            known.add(number)
        assert clients[who].add([b"%d" % number for number in numbers]) == expected
    for shared in clients:
        assert all(shared.seen_many([b"%d" % number for number in sorted(known)]))
        if known:
            assert shared.figures().urls == len(known)
        shared.server.close()


def test_stored_parameters_win(server: RedisServer, open_shared: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A second process with other settings uses the stored parameters, and warns of each difference."""
    first = open_shared(server.url, capacity=50, error_rate=1e-3, shards=2)
    with caplog.at_level(logging.WARNING):
        second = open_shared(server.url, capacity=5000, error_rate=1e-5, shards=1)
    assert second.parameters == first.parameters
    assert "begun with an error rate of 0.001 and keeps it; the settings ask for 1e-05" in caplog.text
    assert "begun with 2 shards and keeps them; the settings ask for 1" in caplog.text


def test_another_key_space_is_refused(server: RedisServer, open_shared: Open) -> None:
    """A process with another fingerprinter is refused with a message that says what differs."""
    open_shared(server.url, key_space={"fingerprinter": "scrapy", "w3lib": "2.1"})
    with pytest.raises(KeySpaceError, match=r"fingerprinter was 'scrapy', is now 'my\.Own'"):
        open_shared(server.url, key_space={"fingerprinter": "my.Own", "w3lib": "2.1"})


def test_another_w3lib_is_a_warning(server: RedisServer, open_shared: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Another version of w3lib is a warning, since it costs a few fetches at most."""
    open_shared(server.url, key_space={"w3lib": "2.1"})
    open_shared(server.url, key_space={"w3lib": "2.5"})
    assert "was filled under w3lib 2.1, and this is 2.5" in caplog.text


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_key_that_is_taken_is_refused(server: RedisServer, open_shared: Open, prefix: str, kind: str) -> None:
    """If something else is under our Redis key, nothing is touched, and the message names the key."""
    key = f"{{{prefix}:0}}:meta"
    with server.client() as client:
        if kind == "string":
            client.set(key, "mine")
        else:
            client.hset(key, "mine", "1")
        before = client.dump(key)
        with pytest.raises(UnusableError) as caught:
            open_shared(server.url)
        assert key in str(caught.value)
        assert client.dump(key) == before


def test_a_newer_format_is_refused(server: RedisServer, open_shared: Open, prefix: str) -> None:
    """Metadata of a later version are refused."""
    open_shared(server.url)
    with server.client() as client:
        client.hset(f"{{{prefix}:0}}:meta", "format", 99)
    with pytest.raises(UnknownFormatError, match=r"format 99\b.*formats up to 1\b"):
        open_shared(server.url)


def test_the_engine_of_the_server_is_found(
    plain_server: RedisServer, bloom_server: RedisServer, open_shared: Open
) -> None:
    """auto takes the server's own bloom filter where there is one; asking for it where there is none is an error."""
    assert open_shared(plain_server.url, capacity=10**6).parameters.engine == "bitmap"
    assert open_shared(bloom_server.url, capacity=10**6).parameters.engine == "bf"
    with pytest.raises(UnusableError, match="begun with engine bf, and BLOOM_REDIS_ENGINE is bitmap"):
        open_shared(bloom_server.url, engine="bitmap")
    with pytest.raises(UnusableError, match="no bloom filter commands"):
        open_shared(plain_server.url, engine="bf")


def test_the_server_filter_is_not_used_where_it_breaks_the_promise(
    bloom_server: RedisServer, open_shared: Open, prefix: str
) -> None:
    """Where small layers of the server's own filter would exceed the rate, auto takes bitmaps, and bf larger layers."""
    assert open_shared(bloom_server.url, capacity=10_000, error_rate=1e-6).parameters.engine == "bitmap"
    open_shared(bloom_server.url).clear()
    shared = open_shared(bloom_server.url, engine="bf", capacity=10, error_rate=1e-4)
    assert shared.parameters.capacity == min_capacity(1e-4)
    shared.add(fingerprints(shared.parameters.capacity))
    asked = 200_000
    hits = sum(sum(shared.seen_many(fingerprints(50_000, start=start))) for start in range(50_000, 250_000, 50_000))
    assert hits <= 1e-4 * asked + 5 * (1e-4 * asked) ** 0.5


def test_bitmaps_can_be_asked_for_on_any_server(bloom_server: RedisServer, open_shared: Open) -> None:
    """A server that has both engines uses the one that the settings name."""
    assert open_shared(bloom_server.url, engine="bitmap").parameters.engine == "bitmap"


def test_clearing_removes_every_key(server: RedisServer, open_shared: Open, prefix: str) -> None:
    """clear() leaves nothing behind, not even layers that another process has grown meanwhile."""
    one, other = open_shared(server.url, capacity=5, shards=2), open_shared(server.url)
    other.add(fingerprints(500))
    one.clear()
    with server.client() as client:
        assert client.keys(f"*{prefix}*") == []
    with pytest.raises(GoneError):
        other.add(fingerprints(1))
    other.open()
    assert all(other.add(fingerprints(500)))


@pytest.mark.parametrize("part", ["meta", "data"])
def test_a_filter_with_a_missing_part_begins_anew(
    server: RedisServer, open_shared: Open, prefix: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If Redis keys of the filter were evicted or deleted, URLs are new, never seen, and the log says so."""
    sample = fingerprints(50)
    open_shared(server.url).add(sample)
    with server.client() as client:
        for key in client.keys(f"*{prefix}*"):
            if key.endswith(b":meta") == (part == "meta"):
                client.delete(key)
    again = open_shared(server.url)
    assert not any(again.seen_many(sample))
    assert all(again.add(sample))
    assert ("is missing on the server" in caplog.text) == (part == "data")


def test_scripts_come_back_after_the_server_forgot_them(plain_server: RedisServer, open_shared: Open) -> None:
    """After a restart or SCRIPT FLUSH, the call that finds its script missing sends it again."""
    shared = open_shared(plain_server.url, shards=3)
    shared.add(fingerprints(10))
    with plain_server.client() as client:
        client.script_flush()
        assert not any(shared.add(fingerprints(10)))
        client.script_flush()
        assert all(shared.add(fingerprints(10, start=10)))


def test_a_filter_with_a_lifetime_goes_after_the_last_use(server: RedisServer, open_shared: Open, prefix: str) -> None:
    """Every Redis key expires, those of later layers too, and using the filter puts it off."""
    shared = open_shared(server.url, ttl=100, capacity=10)
    shared.add(fingerprints(100))
    with server.client() as client:
        keys = client.keys(f"*{prefix}*")
        assert keys
        assert all(90 < client.ttl(key) <= 100 for key in keys)
        for key in keys:
            client.expire(key, 50)
        shared._refresh_at = time.monotonic()  # as after a quarter of the lifetime
        shared.add(fingerprints(1))
        assert all(90 < client.ttl(key) <= 100 for key in keys)


def test_without_a_lifetime_nothing_expires(server: RedisServer, open_shared: Open, prefix: str) -> None:
    """By default the filter stays for the next crawl."""
    open_shared(server.url, capacity=10).add(fingerprints(100))
    with server.client() as client:
        assert {client.ttl(key) for key in client.keys(f"*{prefix}*")} == {-1}


@pytest.mark.parametrize("error_rate", [1e-2, 1e-3])
def test_the_promised_error_rate_holds_for_a_grown_chain(
    server: RedisServer, engine: str, open_shared: Open, error_rate: float
) -> None:
    """With five layers, absent URLs are called seen less often than promised, and about as often as estimated."""
    shared = open_shared(server.url, capacity=min_capacity(error_rate), error_rate=error_rate, engine=engine)
    shared.add(fingerprints(min_capacity(error_rate) * 30))
    figures = shared.figures()
    assert figures.layers == 5
    asked = 25_000
    hits = sum(shared.seen_many(fingerprints(asked, start=10**6)))
    assert figures.error_rate <= error_rate
    least, most = poisson_interval(asked * figures.error_rate)
    assert hits <= most
    assert hits >= 0.5 * least  # engine bf rounds k up, so that it may be better than estimated


def test_what_the_server_filter_makes_of_an_error_rate(bloom_server: RedisServer, prefix: str) -> None:
    """RedisBloom builds the first layer of a growing filter for half the rate, so that all layers together keep the
    rate."""
    with bloom_server.client() as client:
        client.execute_command("BF.RESERVE", f"{prefix}:growing", "1e-4", 100_000, "EXPANSION", 2)
        client.execute_command("BF.RESERVE", f"{prefix}:fixed", "5e-5", 100_000, "NONSCALING")
        growing, fixed = (
            as_mapping(client.execute_command("BF.INFO", f"{prefix}:{name}")) for name in ("growing", "fixed")
        )
    assert int(growing["Size"]) == pytest.approx(int(fixed["Size"]), rel=0.001)


def test_metadata_that_is_deleted_alone_ends_the_chain(
    server: RedisServer, open_shared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the metadata are deleted, a worker goes over to the chain that another has begun, and the bits of the old
    one are removed."""
    monkeypatch.setattr("scrapy_bloom.old.fleet.filter.shared.CONFIRM_SECONDS", 0.0)
    one = open_shared(server.url)
    sample = fingerprints(50)
    assert all(one.add(sample))
    meta, *old = one.chains[0].all_keys()
    with server.client() as client:
        client.delete(meta)
        other = open_shared(server.url)
        assert all(other.add(sample[:25]))
        for ask in (one.add, one.seen_many):
            with pytest.raises(GoneError):
                ask(sample)
        with pytest.raises(GoneError):
            one.confirm()
        one.open()
        assert one.parameters == other.parameters
        assert one.add(sample) == [False] * 25 + [True] * 25
        assert all(other.seen_many(sample))
        assert client.exists(*old) == 0


def test_bits_that_are_deleted_alone_end_the_chain(
    server: RedisServer, open_shared: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter whose metadata are there and the bits of one layer are not counts as gone, and is begun anew."""
    one = open_shared(server.url, capacity=20)
    sample = fingerprints(100)
    assert all(one.add(sample))
    with server.client() as client:
        client.delete(one.chains[0].all_keys()[1])
        with pytest.raises(GoneError):
            one.add(sample)
        one.open()
    assert "begins anew" in caplog.text
    assert all(one.add(sample))


def test_a_short_lifetime_does_not_end_a_filter_in_use(server: RedisServer, open_shared: Open) -> None:
    """A lifetime of a second counts as a minute from the last use, on every Redis key, and confirming is a use."""
    shared = open_shared(server.url, ttl=1, capacity=20)
    with server.client() as client:
        shared.add(fingerprints(100))  # in several layers
        shared._refresh_at = 0.0
        keys = shared.chains[0].all_keys()
        assert all(55 < client.ttl(key) <= 60 for key in keys)
        for key in keys:
            client.expire(key, 30)
        shared._refresh_at = 0.0
        shared.confirm()
        assert all(55 < client.ttl(key) <= 60 for key in keys)
