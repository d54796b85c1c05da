"""DurableScheduler asks the guard about each request before it hands it out, and loses none that has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.frontier.scheduler import MOST_HELD
from scrapy_bloom.old.loops.guard import QUEUED
from tests.old.support.guarding import fetch
from tests.old.support.schedulers import EngineCalls, opened

if TYPE_CHECKING:
    from pathlib import Path

# As in the tests of the scheduler: Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

GUARDED = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_LOOP_GUARD": True}
OTHER = "http://example.com/other"
LIST = "http://example.com/list"
GROWN = 2_000


def push_too_early(calls: EngineCalls, count: int) -> list[str]:
    """Queue requests whose kind has grown since, and return their URLs."""
    guard = calls.scheduler._guard
    for number in range(GROWN):
        guard.queued(Request(f"{LIST}/{number}"))
    early = [Request(f"{LIST}/{n}", meta={QUEUED: (0, GROWN, True)}, dont_filter=True) for n in range(count)]
    assert all(calls.push(*early))
    return [request.url for request in early]


@pytest.mark.parametrize("has_jobdir", [True, False])
def test_what_is_too_early_comes_later_and_as_it_was(has_jobdir: bool, tmp_path: Path) -> None:
    """A request whose kind has grown waits for the others, and is then handed out without a trace of that."""
    with opened(tmp_path if has_jobdir else None, **GUARDED) as calls:
        calls.push(Request(OTHER))
        (early,) = push_too_early(calls, 1)
        first = calls.start()
        second = calls.start()
        assert first is not None
        assert second is not None
        assert [first.url, second.url] == [OTHER, early]
        assert (second.priority, second.dont_filter, second.meta) == (0, False, {})
        assert calls.start() is None
        assert calls.stats.get_value("bloom/loop/postponed") >= 1


def test_what_waits_longer_is_in_the_file_once(tmp_path: Path) -> None:
    """After a kill, each request comes once: those that were sent back, and the one that was in progress."""
    calls = EngineCalls(tmp_path, **GUARDED)
    calls.push(Request(OTHER))
    early = push_too_early(calls, 3)
    calls.commit()
    handed_out = calls.start()
    assert handed_out is not None
    assert handed_out.url == OTHER
    calls.commit()
    calls.die()
    calls.scheduler._guard.close()  # its locks go with the process, too
    with opened(tmp_path, **GUARDED) as calls:
        assert sorted(calls.drain()) == sorted([OTHER, *early])


def test_the_reactor_does_not_wait_for_all_that_are_too_early(tmp_path: Path) -> None:
    """Of many requests that are all too early, one is handed out soon, for the middleware to judge."""
    with opened(tmp_path, **GUARDED) as calls:
        push_too_early(calls, 4 * MOST_HELD)
        request = calls.start()
        assert request is not None
        assert QUEUED in request.meta
        assert calls.stats.get_value("scheduler/dequeued") == MOST_HELD + 1


def test_what_has_run_dry_is_parked_instead_of_handed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests of a kind whose pages bring nothing are with the guard after a kill, and not in the frontier, too. The
    log says so at the end, also without the middleware."""
    calls = EngineCalls(tmp_path, **GUARDED)
    guard = calls.scheduler._guard
    for number in range(30):
        fetch(guard, f"{LIST}/{number}", "Nothing here.", [])
    calls.push(*(Request(f"{LIST}/{number}") for number in range(100, 110)))
    tried = calls.drain()
    calls.commit()
    calls.die()
    guard.close()  # its locks go with the process, too
    with opened(tmp_path, **GUARDED) as calls:
        assert calls.drain() == []
        waiting = calls.scheduler._guard._lot.waiting.total()
    assert 0 < len(tried) < 10
    assert waiting == 10 - len(tried)
    assert f"The loop guard has parked {counted(waiting, 'request')}, whose pages are not fetched" in caplog.text


def test_what_is_made_of_a_waiting_request_is_not_taken_for_it(tmp_path: Path) -> None:
    """A spider that keeps a request while the queue has it on disk, and sends another one made of it past the filter,
    gets that one as it is: neither filtered later, nor parked with the kind of the first."""
    with opened(tmp_path, **GUARDED) as calls:
        guard = calls.scheduler._guard
        for number in range(30):
            fetch(guard, f"{LIST}/{number}", "Nothing here.", [])
        kept = [Request(f"{LIST}/{number}") for number in range(100, 110)]
        calls.push(*kept)
        calls.drain()
        made = [each.replace(url=f"{LIST}/{number}", dont_filter=True) for number, each in enumerate(kept, start=200)]
        calls.push(*made)
        handed_out = [calls.start() for _ in made]
    assert {(request.url, request.priority, request.dont_filter) for request in handed_out if request} == {
        (request.url, 0, True) for request in made
    }


def test_what_is_made_of_a_demoted_request_is_not_demoted_twice(tmp_path: Path) -> None:
    """A request made of one that is demoted begins at the priority that the spider gave the first."""
    with opened(tmp_path, **GUARDED) as calls:
        guard = calls.scheduler._guard
        for number in range(GROWN):
            guard.queued(Request(f"{LIST}/{number}"))
        first = Request(f"{LIST}/first")
        guard.queued(first)
        second = first.replace(url=f"{LIST}/second")
        guard.queued(second)
        assert first.priority < 0
        assert second.priority == first.priority
