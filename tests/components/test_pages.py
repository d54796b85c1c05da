"""Which page a request or an item belongs to, and what a filter of the user's decided about a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from tests.support.engine import Engine, opened

if TYPE_CHECKING:
    from pathlib import Path

PAGE = Request("http://a.example/", dont_filter=True)


class WithoutSession(BloomDupeFilter):
    """Asks about a request without its session id."""

    def request_seen(self, request: Request) -> bool:
        return super().request_seen(request.replace(url=request.url.partition("?")[0]))


def test_a_fingerprint_is_durable_only_with_its_request(tmp_path: Path) -> None:
    """Also if the filter of the user was asked about another request object."""
    settings = {"DUPEFILTER_CLASS": WithoutSession}
    urls = [f"http://a.example/{number}?session=1" for number in range(3)]
    engine = Engine(tmp_path / "job", settings)
    page = engine.fetch(PAGE)
    assert engine.push_from(page, *map(Request, urls)) == [True] * 3
    assert engine.push_from(page, *map(Request, urls)) == [False] * 3
    engine.commit()
    with opened(engine.killed(tmp_path / "copy"), settings) as engine:
        assert sorted(engine.drain()) == [PAGE.url, *urls]


@pytest.mark.parametrize("in_job", [True, False])
def test_each_page_has_a_request_object_of_its_own(tmp_path: Path, in_job: bool) -> None:
    """One object is queued twice, and once more by its own callback."""
    with opened(tmp_path / "job" if in_job else None) as engine:
        live = Request("http://a.example/live", meta={"live": lambda: None}, dont_filter=True)
        page = engine.fetch(PAGE)
        engine.push_from(page, live, live)
        first = engine.fetch()
        engine.push_from(first, first)
        second, third = engine.fetch(), engine.fetch()
        assert len({id(request) for request in (first, second, third)}) == 3
        assert second.meta is third.meta is live.meta
        for request in (first, third, second, page):
            assert engine.crawl.pages.of_request(request) is not None
            engine.end(request)
            assert engine.crawl.pages.of_request(request) is None
        engine.commit()
        assert engine.pending() == 0
        if in_job:
            assert engine.store.database.state.pending == 0
