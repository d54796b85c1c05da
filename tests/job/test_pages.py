"""Pages in progress: what is written with them, what waits for them, which request is whose, and what has failed."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.frontier.page import TRANSITIONS, State
from scrapy_bloom.job import commits
from tests.support.engine import Engine, opened
from tests.support.store_contract import CHECKS, REOPENING

JOB_PAGE = Path(__file__).parents[2] / "docs" / "job.md"


def request(name: object, **others: Any) -> Request:
    return Request(f"http://a.example/{name}", **others)


def live(name: object, **others: Any) -> Request:
    """Return a request that cannot be serialized."""
    return request(name, meta={"live": lambda: None}, **others)


@pytest.mark.parametrize(
    ("check", "in_job"),
    [*((check, False) for check in CHECKS), *((check, True) for check in CHECKS + REOPENING)],
    ids=lambda value: getattr(value, "__name__", "job" if value else "memory"),
)
def test_stores_keep_their_contract(check: Callable[[Any], None], in_job: bool, tmp_path: Path) -> None:
    """In memory, and in a job directory, which keeps what is pending beyond its process."""
    check(lambda: Engine(tmp_path if in_job else None))


def test_the_documentation_has_the_table_of_states() -> None:
    """Row by row, in the same order."""
    rows = re.findall(r"^(\w+) +(done before others|\w+) +(\w+)\b", JOB_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    table = [(state.value, event.value, then.value) for (state, event), then in TRANSITIONS.items()]
    assert [row for row in rows if row[0] in {state.value for state in State}] == table


# -- pages in parts, and in memory -------------------------------------------------------------------------------------


def test_a_page_in_parts_is_said_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One WARNING says what a kill costs then: items that come twice. None is lost."""
    page, *parts = (request(number, dont_filter=number > 0) for number in range(9))
    engine = Engine(tmp_path / "job")
    fetched = engine.fetch(page)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "LONGEST_SECONDS", 0.0)
        for begin in (0, 4):
            engine.push_from(fetched, *parts[begin : begin + 4])
            for _ in range(2):
                part = engine.fetch()
                engine.give(part, part.url)
                engine.end(part)
            engine.commit()
    assert ["come twice" in message for message in caplog.messages if "in progress for" in message] == [True]
    given = list(engine.items)
    with opened(engine.killed(tmp_path / "killed")) as again:
        while (found := again.start()) is not None:
            if found.url == page.url:
                again.push_from(found, *parts)
            else:
                again.give(found, found.url)
            again.end(found)
        assert Counter(given + again.items) == {part.url: 2 for part in parts}


def test_a_page_in_parts_waits_for_what_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was committed in part, and then leads to a request in memory only, is fetched again after a kill."""
    page, stored = request("page"), request("stored")
    engine = Engine(tmp_path / "job")
    fetched = engine.fetch(page)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "LONGEST_SECONDS", 0.0)
        engine.push_from(fetched, stored.replace(dont_filter=True))
        engine.commit()
    engine.push_from(fetched, live("live"))
    engine.end(fetched)
    engine.commit()
    with opened(engine.killed(tmp_path / "killed")) as again:
        assert set(again.drain()) == {page.url, stored.url}


def test_items_of_a_page_in_memory_whose_parent_is_unknown_wait_for_no_page(tmp_path: Path) -> None:
    """Either page in progress may have led to it. If one of these is committed, nothing would lead to it again."""
    with opened(tmp_path / "job") as engine:
        engine.push(request(1), request(2))
        in_progress = [engine.start(), engine.start()]
        fetched = engine.fetch(live("live"))
        engine.give(fetched, "item")
        engine.end(fetched)
        engine.end(in_progress[1])
        engine.commit()
        assert engine.items == ["item"]
        engine.end(in_progress[0])


def test_pages_in_memory_keep_the_order_of_their_items(tmp_path: Path) -> None:
    """Their items are written when the page is done that led to them, in the order in which they came."""
    with opened(tmp_path / "job") as engine:
        fetched = engine.fetch(request(""))
        for number in range(3):
            engine.push_from(fetched, live(number))
            page = engine.start()
            engine.give(page, number)
            engine.end(page)
        assert not engine.items
        engine.end(fetched)
        assert engine.items == [0, 1, 2]


def test_requests_that_wait_for_their_page_keep_their_order_over_a_commit(tmp_path: Path) -> None:
    """The commit does not have them, so they are not to be read from the file."""
    other, page, young, *held = (request(name, dont_filter=True) for name in "opyqr")
    with opened(tmp_path / "job") as engine:
        fetched = engine.fetch(other, page)  # the last in is the first out
        engine.push_from(fetched, *held)
        engine.push(young)
        engine.commit()
        assert engine.drain() == [young.url, held[1].url, held[0].url, other.url]
        engine.end(fetched)


@pytest.mark.parametrize("in_memory", [2, 0])
def test_a_run_that_ends_before_its_requests_in_memory_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_memory: int
) -> None:
    """The page that led to them is pending for the next run, and a WARNING counts both; without such requests, none."""
    page = request("")
    with opened(tmp_path) as engine:
        fetched = engine.fetch(page)
        engine.push_from(fetched, *map(live, range(in_memory)))
        engine.end(fetched)
    last = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][-1:]
    assert len(last) == bool(in_memory)
    assert all("2 pending requests" in message and "1 page" in message for message in last)
    with opened(tmp_path) as engine:
        assert engine.drain() == [page.url] * bool(in_memory)


# -- which request is whose --------------------------------------------------------------------------------------------


class WithoutSession(BloomDupeFilter):
    """Asks about a request without its session id."""

    def request_seen(self, request: Request) -> bool:
        return super().request_seen(request.replace(url=request.url.partition("?")[0]))


def test_a_fingerprint_is_durable_only_with_its_request(tmp_path: Path) -> None:
    """Also if the filter of the user was asked about another request object."""
    settings, page = {"DUPEFILTER_CLASS": WithoutSession}, request("", dont_filter=True)
    links = [request(f"{number}?session=1") for number in range(3)]
    engine = Engine(tmp_path / "job", settings)
    fetched = engine.fetch(page)
    assert engine.push_from(fetched, *links) == [True] * 3
    assert engine.push_from(fetched, *(link.copy() for link in links)) == [False] * 3
    engine.commit()
    with opened(engine.killed(tmp_path / "copy"), settings) as engine:
        assert sorted(engine.drain()) == [page.url, *(link.url for link in links)]


@pytest.mark.parametrize("in_job", [True, False])
def test_each_page_has_a_request_object_of_its_own(tmp_path: Path, in_job: bool) -> None:
    """One object is queued twice, and once more by its own callback."""
    with opened(tmp_path / "job" if in_job else None) as engine:
        twice = live("live", dont_filter=True)
        page = engine.fetch(request("", dont_filter=True))
        engine.push_from(page, twice, twice)
        first = engine.fetch()
        engine.push_from(first, first)
        second, third = engine.fetch(), engine.fetch()
        assert len({id(found) for found in (first, second, third)}) == 3
        assert second.meta is third.meta is twice.meta
        for found in (first, third, second, page):
            assert engine.crawl.of_request(found) is not None
            engine.end(found)
            assert engine.crawl.of_request(found) is None
        engine.commit()
        assert engine.pending() == 0
        if in_job:
            assert engine.store.database.state.pending == 0


# -- BLOOM_FORGET_FAILED: a page that has failed is new again, from one moment on for the queue and for the filter -----

FORGET = {"BLOOM_FORGET_FAILED": True}
BAD, OTHER = request("bad"), request("other")


def test_a_page_that_failed_is_followed_once_more(tmp_path: Path) -> None:
    """However often unfiltered requests of it have failed before. In the next run it is new."""
    with opened(tmp_path / "job", FORGET) as engine:
        for _ in range(3):
            engine.end(engine.fetch(BAD.replace(dont_filter=True)), 503)
        assert engine.push(BAD, BAD) == [True, False]
        engine.end(engine.fetch(), 503)
        assert engine.push(BAD) == [False]
    with opened(tmp_path / "job", FORGET) as engine:
        assert engine.push(BAD) == [True]


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "not linked"])
@pytest.mark.parametrize("kill", ["before", "after the transaction", "after the commit"])
def test_a_kill_leaves_a_failed_page_pending_or_new(tmp_path: Path, kill: str, is_linked: bool) -> None:
    """Never both, and never neither. A link that came after the failure is part of the same commit."""
    engine = Engine(tmp_path / "job", FORGET)
    engine.push(BAD)
    engine.commit()
    engine.end(engine.fetch(), 503)
    if is_linked:
        assert engine.push(BAD, BAD) == [True, False]
    if kill != "before":
        engine.commit(whole=kill == "after the commit")
    copy = engine.killed(tmp_path / "copy")
    for run in (1, 2):
        with opened(copy, FORGET) as engine:
            is_pending = run == 1 and (kill == "before" or is_linked)
            assert engine.pending() == is_pending
            assert engine.push(BAD, OTHER) == [run == 1 and not is_pending, run == 1]
            assert len(engine.drain()) == 2 * (run == 1)


def test_a_failed_page_that_waits_is_new_at_once(tmp_path: Path) -> None:
    """A request in memory that it led to is not done: a kill has it pending."""
    engine = Engine(tmp_path / "job", FORGET)
    page = engine.fetch(BAD)
    engine.push_from(page, live("live"))
    engine.commit()
    engine.end(page, 503)
    assert engine.push(BAD) == [True]
    engine.commit()
    with opened(engine.killed(tmp_path / "copy"), FORGET) as engine:
        assert engine.push(BAD) == [False]


def test_a_page_that_fails_twice_in_a_run_is_new_to_the_next(tmp_path: Path) -> None:
    """Also if its fingerprint was committed before it failed, and the link that was followed again was not."""
    with opened(tmp_path / "job", FORGET) as engine:
        page = engine.fetch(BAD)
        engine.commit()
        engine.end(page, 503)
        engine.end(engine.fetch(BAD), 503)
    with opened(tmp_path / "job", FORGET) as engine:
        assert engine.push(BAD) == [True]
