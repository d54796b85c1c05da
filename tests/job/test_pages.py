"""Pages in progress: what is written with them, what waits for them, and which request or item is whose."""

from collections import Counter
from pathlib import Path

import pytest
import scrapy

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.job import commits
from tests.support.engine import Engine, opened


def test_a_page_in_parts_is_said_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One WARNING says what a kill costs then: items that come twice. None is lost."""
    page, *parts = (scrapy.Request(f"http://a.example/{number}", dont_filter=number > 0) for number in range(9))
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
        while (request := again.start()) is not None:
            if request.url == page.url:
                again.push_from(request, *parts)
            else:
                again.give(request, request.url)
            again.end(request)
        assert Counter(given + again.items) == {part.url: 2 for part in parts}


def test_a_page_in_parts_waits_for_what_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was committed in part, and then leads to a request in memory only, is fetched again after a kill."""
    page, stored, live = (scrapy.Request(f"http://a.example/{name}") for name in ("page", "stored", "live"))
    live.meta["live"] = lambda: None
    engine = Engine(tmp_path / "job")
    fetched = engine.fetch(page)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "LONGEST_SECONDS", 0.0)
        engine.push_from(fetched, stored.replace(dont_filter=True))
        engine.commit()
    engine.push_from(fetched, live)
    engine.end(fetched)
    engine.commit()
    with opened(engine.killed(tmp_path / "killed")) as again:
        assert set(again.drain()) == {page.url, stored.url}


def test_items_of_a_page_in_memory_whose_parent_is_unknown_wait_for_no_page(tmp_path: Path) -> None:
    """Either page in progress may have led to it. If one of these is committed, nothing would lead to it again."""
    pages = [scrapy.Request(f"http://a.example/{name}") for name in "12"]
    live = scrapy.Request("http://a.example/live", meta={"live": lambda: None})
    with opened(tmp_path / "job") as engine:
        engine.push(*pages)
        in_progress = [engine.start(), engine.start()]
        fetched = engine.fetch(live)
        engine.give(fetched, "item")
        engine.end(fetched)
        engine.end(in_progress[1])
        engine.commit()
        assert engine.items == ["item"]
        engine.end(in_progress[0])


def test_pages_in_memory_keep_the_order_of_their_items(tmp_path: Path) -> None:
    """Their items are written when the page is done that led to them, in the order in which they came."""
    page = scrapy.Request("http://a.example/")
    with opened(tmp_path / "job") as engine:
        fetched = engine.fetch(page)
        for number in range(3):
            engine.push_from(fetched, scrapy.Request(f"http://a.example/{number}", meta={"live": lambda: None}))
            live = engine.start()
            engine.give(live, number)
            engine.end(live)
        assert not engine.items
        engine.end(fetched)
        assert engine.items == [0, 1, 2]


def test_requests_that_wait_for_their_page_keep_their_order_over_a_commit(tmp_path: Path) -> None:
    """The commit does not have them, so they are not to be read from the file."""
    other, page, young, *held = (scrapy.Request(f"http://a.example/{name}", dont_filter=True) for name in "opyqr")
    with opened(tmp_path / "job") as engine:
        fetched = engine.fetch(other, page)  # the last in is the first out
        engine.push_from(fetched, *held)
        engine.push(young)
        engine.commit()
        assert engine.drain() == [young.url, held[1].url, held[0].url, other.url]
        engine.end(fetched)


def test_a_run_that_ends_before_its_requests_in_memory_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The page that led to them is pending for the next run, and a WARNING counts both; without such requests, none."""
    for live in (2, 0):
        caplog.clear()
        with opened(tmp_path / f"job-{live}") as engine:
            fetched = engine.fetch(scrapy.Request("http://a.example/"))
            engine.push_from(
                fetched, *(scrapy.Request(f"http://a.example/{n}", meta={"live": lambda: None}) for n in range(live))
            )
            engine.end(fetched)
        last = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][-1:]
        assert [("2 pending requests" in message, "1 page" in message) for message in last] == [(True, True)] * bool(
            live
        )
        with opened(tmp_path / f"job-{live}") as engine:
            assert engine.drain() == ["http://a.example/"] * bool(live)


PAGE = scrapy.Request("http://a.example/", dont_filter=True)


class WithoutSession(BloomDupeFilter):
    """Asks about a request without its session id."""

    def request_seen(self, request: scrapy.Request) -> bool:
        return super().request_seen(request.replace(url=request.url.partition("?")[0]))


def test_a_fingerprint_is_durable_only_with_its_request(tmp_path: Path) -> None:
    """Also if the filter of the user was asked about another request object."""
    settings = {"DUPEFILTER_CLASS": WithoutSession}
    urls = [f"http://a.example/{number}?session=1" for number in range(3)]
    engine = Engine(tmp_path / "job", settings)
    page = engine.fetch(PAGE)
    assert engine.push_from(page, *map(scrapy.Request, urls)) == [True] * 3
    assert engine.push_from(page, *map(scrapy.Request, urls)) == [False] * 3
    engine.commit()
    with opened(engine.killed(tmp_path / "copy"), settings) as engine:
        assert sorted(engine.drain()) == [PAGE.url, *urls]


@pytest.mark.parametrize("in_job", [True, False])
def test_each_page_has_a_request_object_of_its_own(tmp_path: Path, in_job: bool) -> None:
    """One object is queued twice, and once more by its own callback."""
    with opened(tmp_path / "job" if in_job else None) as engine:
        live = scrapy.Request("http://a.example/live", meta={"live": lambda: None}, dont_filter=True)
        page = engine.fetch(PAGE)
        engine.push_from(page, live, live)
        first = engine.fetch()
        engine.push_from(first, first)
        second, third = engine.fetch(), engine.fetch()
        assert len({id(request) for request in (first, second, third)}) == 3
        assert second.meta is third.meta is live.meta
        for request in (first, third, second, page):
            assert engine.crawl.of_request(request) is not None
            engine.end(request)
            assert engine.crawl.of_request(request) is None
        engine.commit()
        assert engine.pending() == 0
        if in_job:
            assert engine.store.database.state.pending == 0
