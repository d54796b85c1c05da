from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.old.fleet.filter import backlog, outage
from scrapy_bloom.old.fleet.filter import fleet_filter as fleet_module
from scrapy_bloom.old.fleet.filter.backlog import QueuePlace
from tests.old.support.fingerprints import fingerprints
from tests.old.support.proxy import LosingProxy
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapy_bloom.old.fleet.filter.fleet_filter import FleetFilter

    OpenFleet = Callable[..., FleetFilter]


@pytest.fixture
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet filter that gives a server up sooner and looks for it sooner again; both are otherwise seconds."""
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.3)
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.05)


def wait_for_next_look(fleet: FleetFilter) -> None:
    time.sleep(max(0.0, fleet.outage.next_look - time.monotonic()))


def test_a_duplicate_known_here_costs_no_round_trip(server: RedisServer, open_fleet: OpenFleet) -> None:
    """Of ten requests for each of 300 URLs only the first asks the server; one more call a second confirms that it is
    there."""
    fleet = open_fleet(server.url, capacity=1000)
    sample = fingerprints(300)
    before, began = fleet.shared.server.round_trips, time.monotonic()
    assert sum(fleet.add(fingerprint) for _ in range(10) for fingerprint in sample) == 300
    confirmations = (time.monotonic() - began) / fleet_module.TRUST_SECONDS + 1
    assert fleet.shared.server.round_trips - before <= 300 + confirmations


def test_a_duplicate_known_elsewhere_costs_one_round_trip(server: RedisServer, open_fleet: OpenFleet) -> None:
    """A URL that another process has accepted takes one round trip the first time, and none afterwards."""
    one, other = open_fleet(server.url, capacity=1000), open_fleet(server.url)
    sample = fingerprints(300)
    assert all(one.add(fingerprint) for fingerprint in sample)
    before = other.shared.server.round_trips
    assert not any(other.add(fingerprint) for fingerprint in sample)
    assert other.shared.server.round_trips - before == 300
    other._trust()
    assert not any(other.add(fingerprint) for fingerprint in sample)
    assert other.shared.server.round_trips - before == 300


def test_links_are_looked_up_together_and_remembered(server: RedisServer, open_fleet: OpenFleet) -> None:
    """seen_many() costs one round trip for all links that are unknown here, and none for those that are known."""
    one, other = open_fleet(server.url, capacity=1000), open_fleet(server.url)
    sample = fingerprints(200)
    for fingerprint in sample[:100]:
        one.add(fingerprint)
    before = other.shared.server.round_trips
    assert other.seen_many(sample) == [True] * 100 + [False] * 100
    assert other.shared.server.round_trips - before == 1
    other._trust()
    assert all(other.seen_many(sample[:100]))
    assert other.shared.server.round_trips - before == 1
    assert all(other.add(fingerprint) for fingerprint in sample[100:])


def test_a_filter_that_somebody_removes_is_forgotten_here_too(
    server: RedisServer, open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a second after another process has cleared the filter, a worker that knew every URL takes all for new."""
    one, other = open_fleet(server.url), open_fleet(server.url)
    sample = fingerprints(50)
    assert all(other.add(fingerprint) for fingerprint in sample)
    one.clear()
    deadline = time.monotonic() + 30
    while not other.add(sample[0]):  # known here, and trusted for a second
        assert time.monotonic() < deadline
    assert all(other.add(fingerprint) for fingerprint in sample[1:])
    assert "is gone" in caplog.text
    assert not any(one.add(fingerprint) for fingerprint in sample)


def test_clearing_forgets_here_at_once(server: RedisServer, open_fleet: OpenFleet) -> None:
    """After clear(), this process takes every URL for new, and the filter begins again with the first."""
    fleet = open_fleet(server.url)
    sample = fingerprints(50)
    assert all(fleet.add(fingerprint) for fingerprint in sample)
    fleet.clear()
    assert fleet.seen_many(sample) == [False] * 50
    assert all(fleet.add(fingerprint) for fingerprint in sample)
    fleet.clear()
    fleet.close()


def test_a_lost_answer_never_makes_a_page_seen(server: RedisServer, open_fleet: OpenFleet) -> None:
    """If the command was carried out and its answer lost, the URL is new, although the second try finds it on the
    server."""
    with LosingProxy(server.port) as proxy:
        fleet = open_fleet(proxy.url)
        first, second, third = fingerprints(3)
        assert fleet.add(first)
        proxy.lose_next_answer()
        assert fleet.add(second)
        assert not fleet.add(second)
        assert fleet.outage.times == 0
        proxy.lose_next_answer()
        assert not fleet.add(first)
        assert fleet.add(third)
        assert open_fleet(server.url).seen_many([first, second, third]) == [True] * 3


def test_a_lost_answer_is_no_excuse_for_what_is_known_here(plain_server: RedisServer, open_fleet: OpenFleet) -> None:
    """A URL that this process knows stays seen when the answer to its confirmation is lost."""
    with LosingProxy(plain_server.port) as proxy:
        fleet = open_fleet(proxy.url)
        (fingerprint,) = fingerprints(1)
        assert fleet.add(fingerprint)
        fleet._trusted_until = 0.0
        proxy.lose_next_answer()
        assert not fleet.add(fingerprint)


@pytest.mark.usefixtures("quick_retry")
@pytest.mark.parametrize("on_error", ["retry", "allow", "close"])
def test_a_server_that_dies_drops_nothing(
    tmp_path: Path, open_fleet: OpenFleet, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server is away, each URL unknown to this process is new once; when it is back, they are written to
    it."""
    caplog.set_level(logging.INFO)
    calls = []
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url, on_error=on_error, on_away=lambda: calls.append("away"))
        sample = fingerprints(90)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        server.kill()
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:60])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[:60])
        assert fleet.seen_many(sample) == [True] * 60 + [False] * 30
        assert (fleet.outage.times, fleet.backlog.accepted, calls) == (1, 30, ["away"])
        assert caplog.text.count("is away") == 1
        server.start()
        wait_for_next_look(fleet)
        assert all(fleet.add(fingerprint) for fingerprint in sample[60:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample)
        assert "is back; " in caplog.text
        other = open_fleet(server.url)
        assert not any(other.add(fingerprint) for fingerprint in sample)
        fleet.close()
        assert fleet.backlog.unwritten == 0


@pytest.mark.usefixtures("quick_retry")
def test_a_server_that_comes_back_empty_drops_nothing(
    tmp_path: Path, open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """When the server has lost its data, URLs accepted while it was away stay seen, and all others are new again."""
    with RedisServer(tmp_path) as server:
        fleet, sibling = open_fleet(server.url), open_fleet(server.url)
        sample = fingerprints(90)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        server.kill()
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:60])
        server.start()
        wait_for_next_look(fleet)
        assert all(fleet.add(fingerprint) for fingerprint in sample[60:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        assert "begins anew, and URLs seen before are fetched again" in caplog.text
        assert not any(sibling.add(fingerprint) for fingerprint in sample)


@pytest.mark.usefixtures("quick_retry")
def test_a_server_that_hangs_is_away(tmp_path: Path, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts commands and answers none holds the crawl up for a bounded time."""
    monkeypatch.setattr("scrapy_bloom.old.fleet.client.READ_TIMEOUT", 0.2)
    with RedisServer(tmp_path) as server:
        fleet = open_fleet(server.url)
        sample = fingerprints(20)
        assert fleet.add(sample[0])
        server.pause()
        assert all(fleet.add(fingerprint) for fingerprint in sample[1:])
        assert fleet.outage.times == 1
        server.resume()
        wait_for_next_look(fleet)
        assert not any(fleet.add(fingerprint) for fingerprint in sample)
        assert all(open_fleet(server.url).seen_many(sample))


def test_a_short_absence_goes_unnoticed_under_retry(tmp_path: Path, open_fleet: OpenFleet) -> None:
    """A server that is back before the retries end does not count as away."""
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url)
        sample = fingerprints(20)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:10])
        server.restart()
        assert all(fleet.add(fingerprint) for fingerprint in sample[10:])
        assert (fleet.outage.times, fleet.backlog.accepted) == (0, 0)


@pytest.mark.usefixtures("quick_retry")
def test_what_is_kept_for_the_server_is_bounded(
    tmp_path: Path, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """URLs beyond the bound are accepted and counted, and the log says that other workers may fetch them too."""
    monkeypatch.setattr(backlog, "MAX_WAITING", 10)
    with RedisServer(tmp_path) as server:
        fleet = open_fleet(server.url, on_error="allow")
        server.kill()
        assert all(fleet.add(fingerprint) for fingerprint in fingerprints(25))
        fleet.close()
    assert len(fleet.backlog) <= 10
    assert fleet.backlog.unwritten == 25
    assert "has been away for 10 new URLs" in caplog.text
    assert "25 URLs that were accepted while the server was away are not in the filter" in caplog.text


def test_a_full_server_lets_everything_through(
    tmp_path: Path, engine: str, open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """At maxmemory, URLs that the server knows stay seen. Others are new, and written when there is room."""
    with RedisServer(tmp_path, bloom=engine == "bf") as server, server.client() as client:
        fleet, sibling = open_fleet(server.url), open_fleet(server.url)
        sample = fingerprints(60)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        client.config_set("maxmemory", 1)
        assert not any(sibling.add(fingerprint) for fingerprint in sample[:30])
        assert all(sibling.add(fingerprint) for fingerprint in sample[30:])
        assert not any(sibling.add(fingerprint) for fingerprint in sample)
        assert caplog.text.count("is full") == 1
        assert sibling.outage.times == 0
        client.config_set("maxmemory", 0)
        assert sibling.add(*fingerprints(1, start=100))
        assert not any(fleet.add(fingerprint) for fingerprint in sample)


def test_expected_losses_add_up_the_rates(plain_server: RedisServer, open_fleet: OpenFleet) -> None:
    """expected_lost is between zero and the promised rate times the new URLs, and not zero once layers are full."""
    fleet = open_fleet(plain_server.url, capacity=500, error_rate=1e-3)
    for fingerprint in fingerprints(5000):
        fleet.add(fingerprint)
    fleet.close()
    assert 0 < fleet.expected_lost <= 5000 * (1e-3 + 1e-7)


def test_the_local_filter_is_bounded(
    plain_server: RedisServer, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet may know more URLs than one process can hold: the local filter begins again, and nothing is new twice."""
    monkeypatch.setattr(fleet_module, "MAX_LOCAL", 1500)
    fleet = open_fleet(plain_server.url)
    sample = fingerprints(2500)
    assert all(fleet.add(fingerprint) for fingerprint in sample)
    assert len(fleet.local) < 1500
    assert not any(fleet.add(fingerprint) for fingerprint in sample)


@pytest.mark.usefixtures("quick_retry")
@pytest.mark.parametrize("on_error", ["retry", "allow", "close"])
def test_what_is_accepted_alone_is_not_remembered_if_the_queue_died_too(
    tmp_path: Path, open_fleet: OpenFleet, on_error: str
) -> None:
    """A URL whose request could not be pushed is new each time it comes, in any process."""
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url, on_error=on_error, queue=QueuePlace.ON_THE_SERVER)
        sample = fingerprints(60)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        server.kill()
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[:29])
        server.start()
        wait_for_next_look(fleet)
        assert not any(open_fleet(server.url).seen_many(sample[30:]))
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[30:])
        fleet.close()
        assert fleet.backlog.unwritten == 60


@pytest.mark.usefixtures("quick_retry")
def test_what_is_accepted_alone_is_forgotten_afterwards_if_the_queue_is_elsewhere(
    tmp_path: Path, open_fleet: OpenFleet
) -> None:
    """While the server is away each URL is new once, so that the crawl does not run in circles; then it is new once
    more."""
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url, queue=QueuePlace.ELSEWHERE)
        sample = fingerprints(60)
        assert all(fleet.add(fingerprint) for fingerprint in sample[:30])
        server.kill()
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[30:])
        server.start()
        wait_for_next_look(fleet)
        assert fleet.add(*fingerprints(1, start=100))
        assert all(fleet.add(fingerprint) for fingerprint in sample[30:])
        assert not any(fleet.add(fingerprint) for fingerprint in sample[30:])


@pytest.mark.usefixtures("quick_retry")
@pytest.mark.parametrize("queue", QueuePlace)
def test_the_last_push_before_a_failure_is_doubted(tmp_path: Path, open_fleet: OpenFleet, queue: QueuePlace) -> None:
    """If the server took a URL, died, and may have been about to take the request, the URL is new again. If requests
    wait in this process, the URL stays seen."""
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url, on_error="allow", queue=queue)
        *earlier, last, later = fingerprints(10)
        assert all(fleet.add(fingerprint) for fingerprint in [*earlier, last])
        server.kill()
        assert fleet.add(later)
        server.start()
        wait_for_next_look(fleet)
        assert not any(fleet.add(fingerprint) for fingerprint in earlier)
        assert fleet.seen_many([last]) == [queue is QueuePlace.HERE]
        assert [fleet.add(last) for _ in range(3)] == [queue is not QueuePlace.HERE, False, False]


def test_a_lost_answer_and_then_a_full_server(
    server: RedisServer, engine: str, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server took a URL, the answer was lost, and the second try found the server full, the URL is new."""
    with LosingProxy(server.port) as proxy, server.client() as client:
        fleet = open_fleet(proxy.url)
        known, fingerprint = fingerprints(2)
        assert fleet.add(known)
        try:
            with monkeypatch.context() as patched:
                # It fills up while the first attempt is being waited out.
                patched.setattr(fleet_module.time, "sleep", lambda seconds: client.config_set("maxmemory", 1))
                proxy.lose_next_answer()
                assert fleet.add(fingerprint)
            assert fleet._has_warned_of_full_server
            assert not fleet.add(fingerprint)
        finally:
            client.config_set("maxmemory", 0)
        assert open_fleet(server.url).seen_many([known, fingerprint]) == [True, True]
        assert engine in fleet.shared.parameters.engine


@pytest.mark.usefixtures("quick_retry")
def test_a_process_that_asks_nothing_notices_too(
    tmp_path: Path, open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """look() alone finds out that the server is away, says so each time, and writes what waits when it is back."""
    monkeypatch.setattr(fleet_module, "LOOK_SECONDS", 0.0)
    calls: list[str] = []
    with RedisServer(tmp_path, keeps_data=True) as server:
        fleet = open_fleet(server.url, on_error="close", on_away=lambda: calls.append("away"))
        fleet.look()
        assert calls == []
        server.kill()
        fleet.look()
        fleet.look()
        assert fleet.outage.is_on
        assert calls == ["away", "away"]
        sample = fingerprints(700)
        assert all(fleet.add(fingerprint) for fingerprint in sample)
        server.start()
        wait_for_next_look(fleet)
        fleet.look()
        assert not fleet.outage.is_on
        assert len(fleet.backlog) == 0
        assert all(open_fleet(server.url).seen_many(sample))


def test_looking_costs_nothing_while_the_server_answers(plain_server: RedisServer, open_fleet: OpenFleet) -> None:
    """look() sends nothing if the server has answered within the last moments."""
    fleet = open_fleet(plain_server.url)
    assert fleet.add(*fingerprints(1))
    before = fleet.shared.server.round_trips
    fleet.look()
    assert fleet.shared.server.round_trips == before
