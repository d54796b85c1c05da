from __future__ import annotations

import pytest

from scrapy_bloom.old.fleet.filter import backlog as backlog_module
from scrapy_bloom.old.fleet.filter.backlog import Backlog, QueuePlace
from tests.old.support.fingerprints import fingerprints


def test_keys_with_a_queue_here_wait_to_be_written() -> None:
    """Fingerprints whose requests are in this process are remembered, and written in their order when the server is
    back."""
    backlog = Backlog(QueuePlace.HERE)
    sample = fingerprints(700)
    assert all(backlog.accept(fingerprint) for fingerprint in sample)
    assert backlog.batch() == sample[:500]
    assert len(backlog) == backlog.unwritten == 700
    backlog.written(500)
    assert backlog.batch() == backlog.waiting() == sample[500:]
    backlog.written(200)
    assert (len(backlog), backlog.unwritten, backlog.accepted) == (0, 0, 700)


def test_keys_with_a_queue_on_the_same_server_are_not_remembered() -> None:
    """Fingerprints whose requests could not reach a queue on the same server are new each time, and never written."""
    backlog = Backlog(QueuePlace.ON_THE_SERVER)
    sample = fingerprints(10)
    assert not any(backlog.accept(fingerprint) for fingerprint in sample)
    assert not any(fingerprint in backlog for fingerprint in sample)
    assert (len(backlog), backlog.unwritten, backlog.accepted) == (0, 10, 10)


def test_keys_with_a_queue_elsewhere_are_remembered_until_the_server_is_back() -> None:
    """Fingerprints whose requests may be in a queue elsewhere are known until the server is back, and then new once
    more."""
    backlog = Backlog(QueuePlace.ELSEWHERE)
    sample = fingerprints(10)
    assert not any(backlog.accept(fingerprint) for fingerprint in sample)
    assert all(fingerprint in backlog for fingerprint in sample)
    assert len(backlog) == 0
    backlog.server_is_back()
    assert not any(fingerprint in backlog for fingerprint in sample)
    assert backlog.unwritten == 10


@pytest.mark.parametrize("queue", QueuePlace)
def test_memory_is_bounded(queue: QueuePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the server is away, the number of fingerprints kept is bounded. Where they wait to be written,
    reaching the bound is reported once."""
    monkeypatch.setattr(backlog_module, "MAX_WAITING", 10)
    backlog = Backlog(queue)
    overflows = 0
    for fingerprint in fingerprints(35):
        assert backlog.accept(fingerprint) == (queue is QueuePlace.HERE)
        overflows += backlog.begins_to_overflow()
    assert sum(fingerprint in backlog for fingerprint in fingerprints(35)) <= 10
    assert len(backlog) == (10 if queue is QueuePlace.HERE else 0)
    assert backlog.unwritten == 35
    assert overflows == (queue is QueuePlace.HERE)
