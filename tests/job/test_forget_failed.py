"""``BLOOM_FORGET_FAILED``: a page that has failed is new again, from one moment on for the queue and for the filter."""

from pathlib import Path

import pytest
from scrapy import Request

from tests.support.engine import Engine, opened

SETTINGS = {"BLOOM_FORGET_FAILED": True}
BAD, OTHER = "http://a.example/bad", "http://a.example/other"


def test_a_page_that_failed_is_followed_once_more(tmp_path: Path) -> None:
    """However often unfiltered requests of it have failed before."""
    with opened(tmp_path / "job", SETTINGS) as engine:
        for _ in range(3):
            engine.end(engine.fetch(Request(BAD, dont_filter=True)), 503)
        assert engine.push(Request(BAD), Request(BAD)) == [True, False]
        engine.end(engine.fetch(), 503)
        assert engine.push(Request(BAD)) == [False]
    with opened(tmp_path / "job", SETTINGS) as engine:  # in the next run it is new
        assert engine.push(Request(BAD)) == [True]


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "not linked"])
@pytest.mark.parametrize("kill", ["before", "after the transaction", "after the commit"])
def test_a_kill_leaves_a_failed_page_pending_or_new(tmp_path: Path, kill: str, is_linked: bool) -> None:
    """Never both, and never neither. A link that came after the failure is part of the same commit."""
    engine = Engine(tmp_path / "job", SETTINGS)
    engine.push(Request(BAD))
    engine.commit()
    page = engine.fetch()
    engine.end(page, 503)
    if is_linked:
        assert engine.push(Request(BAD), Request(BAD)) == [True, False]
    if kill != "before":
        engine.commit(whole=kill == "after the commit")
    copy = engine.killed(tmp_path / "copy")
    for run in (1, 2):
        with opened(copy, SETTINGS) as engine:
            is_pending = run == 1 and (kill == "before" or is_linked)
            assert engine.pending() == is_pending
            assert engine.push(Request(BAD), Request(OTHER)) == [run == 1 and not is_pending, run == 1]
            assert len(engine.drain()) == 2 * (run == 1)


def test_a_page_that_waits_is_new_at_once(tmp_path: Path) -> None:
    """It has failed, and a request in memory that it led to is not done: a kill has it pending."""
    engine = Engine(tmp_path / "job", SETTINGS)
    page = engine.fetch(Request(BAD))
    engine.push_from(page, Request(OTHER, meta={"live": lambda: None}))
    engine.commit()
    engine.end(page, 503)
    assert engine.push(Request(BAD)) == [True]
    engine.commit()
    with opened(engine.killed(tmp_path / "copy"), SETTINGS) as engine:
        assert engine.push(Request(BAD)) == [False]


def test_a_page_that_fails_twice_in_a_run_is_new_to_the_next(tmp_path: Path) -> None:
    """Also if its fingerprint was committed before it failed, and the link that was followed again was not."""
    with opened(tmp_path / "job", SETTINGS) as engine:
        page = engine.fetch(Request(BAD))
        engine.commit()
        engine.end(page, 503)
        engine.end(engine.fetch(Request(BAD)), 503)
    with opened(tmp_path / "job", SETTINGS) as engine:
        assert engine.push(Request(BAD)) == [True]
