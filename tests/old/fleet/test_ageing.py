from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from redis import Redis
from scrapy import Request

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.fleet.filter import fleet_filter
from scrapy_bloom.old.fleet.filter.bitmap import LOCAL_AGE_SHARE
from tests.old.support.fingerprints import fingerprints
from tests.old.support.scheduling import finish, open_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.old.fleet.filter.shared import SharedFilter
    from tests.old.support.redis_servers import RedisServer

    Open = Callable[..., SharedFilter]

AGE = 64_000.0
DROPPED_AFTER = AGE * (1 - LOCAL_AGE_SHARE)


def let_pass(server: RedisServer, prefix: str, seconds: float) -> None:
    """Make all layers older, which is what time does: the server's clock cannot be moved."""
    with Redis.from_url(server.url, decode_responses=True) as client:
        for key in client.scan_iter(f"{{{prefix}:*}}:meta"):
            for field, value in client.hgetall(key).items():
                if field.startswith("born:") or field == "created":
                    client.hset(key, field, repr(float(value) - seconds))


def layer_keys(server: RedisServer, prefix: str) -> list[str]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        return sorted(key for key in client.scan_iter(f"{{{prefix}:*}}:*") if not key.endswith("meta"))


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_too_old_is_new_again_for_all_processes(
    plain_server: RedisServer, open_shared: Open, prefix: str, shards: int
) -> None:
    """The server forgets between 7/8 of the age and the age, whichever process asks, and gives its memory back."""
    one = open_shared(plain_server.url, capacity=2000, shards=shards, max_age=AGE)
    other = open_shared(plain_server.url, capacity=2000, shards=shards, max_age=AGE)
    batches = [fingerprints(50, start=50 * number) for number in range(40)]
    step = AGE / 20
    most = 0
    for number, batch in enumerate(batches):
        asked = (one, other)[number % 2]
        for back in range(number):
            age = (number - back) * step
            seen = asked.seen_many(batches[back])
            if age < AGE * 7 / 8:
                assert all(seen), (number, back)
            if age >= DROPPED_AFTER:
                assert not any(seen), (number, back)
        assert all(asked.add(batch))
        assert not any(other.add(batch))
        most = max(most, len(layer_keys(plain_server, prefix)))
        let_pass(plain_server, prefix, step)
    assert most <= shards * 11
    assert one.figures().error_rate < 1e-6


def test_a_chain_begun_without_an_age_gets_one(plain_server: RedisServer, open_shared: Open, prefix: str) -> None:
    """If the setting is switched on later, URLs older than the age are forgotten at once, and the others when they are
    that old."""
    shared = open_shared(plain_server.url, capacity=100)
    old, new = fingerprints(300), fingerprints(50, start=300)
    assert all(shared.add(old))
    let_pass(plain_server, prefix, AGE / 2)
    ageing = open_shared(plain_server.url, capacity=100, max_age=AGE)
    assert all(ageing.seen_many(old))
    assert all(ageing.add(new))
    let_pass(plain_server, prefix, AGE / 2)
    assert not any(ageing.seen_many(old))
    assert all(ageing.seen_many(new))


def test_an_idle_chain_does_not_grow(plain_server: RedisServer, open_shared: Open, prefix: str) -> None:
    """However much time passes, a layer to which nothing is added gets no successor."""
    shared = open_shared(plain_server.url, capacity=100, max_age=AGE)
    for _ in range(5):
        let_pass(plain_server, prefix, AGE)
        assert not any(shared.seen_many(fingerprints(1)))
    assert len(layer_keys(plain_server, prefix)) == 1


def test_the_local_filter_is_younger_than_what_the_server_drops(
    plain_server: RedisServer,
    open_fleet: Callable[..., fleet_filter.FleetFilter],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process answers "seen" by itself for a 64th of the age, and then asks the server."""
    fleet = open_fleet(plain_server.url, max_age=AGE, local_age=AGE * LOCAL_AGE_SHARE)
    (known,) = fingerprints(1)
    assert fleet.add(known)
    epoch = fleet.epoch
    let_pass(plain_server, prefix, AGE)
    assert not fleet.add(known)  # it has just been told
    now = fleet_filter.time.monotonic()
    monkeypatch.setattr(fleet_filter.time, "monotonic", lambda: now + AGE * LOCAL_AGE_SHARE)
    assert fleet.epoch is None
    assert fleet.add(known)
    assert fleet.epoch != epoch


@pytest.mark.parametrize("shards", [1, 2])
def test_the_log_says_what_a_layer_holds_and_what_was_forgotten(
    plain_server: RedisServer, prefix: str, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line names the room of a layer, a ninth of the capacity. URLs dropped for their age have a line, and
    the last lines count them as checked."""
    caplog.set_level("INFO")
    settings = {
        "BLOOM_REDIS_URL": plain_server.url,
        "BLOOM_REDIS_KEY": prefix,
        "BLOOM_REDIS_SHARDS": shards,
        "BLOOM_CAPACITY": 18_000,
        "BLOOM_MAX_AGE": f"{AGE:.0f}s",
    }
    scheduler = open_scheduler("scrapy_bloom.RedisBloomDupeFilter", **settings)
    for number in range(30):
        scheduler.enqueue_request(Request(f"https://example.com/{number}"))
    let_pass(plain_server, prefix, AGE)
    for number in range(100, 120):
        scheduler.enqueue_request(Request(f"https://example.com/{number}"))
    finish(scheduler)
    assert "for the first 2,000 URLs" in caplog.text
    told = [int(line) for line in re.findall(r"(\d+) URLs? (?:was|were) forgotten for their age", caplog.text)]
    assert sum(told) == 30
    assert "This run checked 50 URLs: 50 new, 0 duplicates (0%)" in caplog.text


def test_engine_bf_is_refused_with_an_age(bloom_server: RedisServer, open_shared: Open, prefix: str) -> None:
    """Engine bf, which cannot forget, is refused with what to set instead; auto takes bitmaps."""
    with pytest.raises(UnusableError, match="BLOOM_MAX_AGE"):
        open_shared(bloom_server.url, capacity=10**6, max_age=AGE, engine="bf")
    assert open_shared(bloom_server.url, capacity=10**6, max_age=AGE, engine="auto").parameters.engine == "bitmap"


def test_a_chain_of_engine_bf_cannot_be_given_an_age(bloom_server: RedisServer, open_shared: Open) -> None:
    """A filter begun with engine bf is refused if BLOOM_MAX_AGE is set later."""
    open_shared(bloom_server.url, capacity=10**6, engine="bf").add(fingerprints(1))
    with pytest.raises(UnusableError, match="BLOOM_REDIS_KEY"):
        open_shared(bloom_server.url, capacity=10**6, max_age=AGE, engine="auto")


def test_a_layer_begun_by_a_clock_that_was_ahead_is_dropped(
    plain_server: RedisServer, open_shared: Open, prefix: str
) -> None:
    """When the server's clock is put back, URLs added while it was ahead are new again, also those in the newest layer:
    nobody knows how old they are."""
    shared = open_shared(plain_server.url, capacity=100, max_age=AGE)
    keys = fingerprints(50)
    assert all(shared.add(keys))
    let_pass(plain_server, prefix, -100 * AGE)
    assert not any(shared.seen_many(keys))
    assert all(shared.add(keys))
    assert not any(shared.add(keys))
    assert len(layer_keys(plain_server, prefix)) == 1
