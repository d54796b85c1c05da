from __future__ import annotations

import pytest

from scrapy_bloom.fleet.filter import backlog as backlog_module
from scrapy_bloom.fleet.filter.backlog import Backlog, QueuePlace
from tests.support.fingerprints import fingerprints


def test_keys_with_a_queue_here_wait_to_be_written() -> None:
    """They may be remembered, and leave in the order in which they came, when the server has them."""
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
    """Their requests were lost with the server, so each is new as often as it comes, and none is written."""
    backlog = Backlog(QueuePlace.ON_THE_SERVER)
    sample = fingerprints(10)
    assert not any(backlog.accept(fingerprint) for fingerprint in sample)
    assert not any(fingerprint in backlog for fingerprint in sample)
    assert (len(backlog), backlog.unwritten, backlog.accepted) == (0, 10, 10)


def test_keys_with_a_queue_elsewhere_are_remembered_until_the_server_is_back() -> None:
    """A loop of links ends while the server is away; afterwards each of them may be new once more."""
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
    """However long the server is away, only so many fingerprints are kept; those that have to wait say so once."""
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
