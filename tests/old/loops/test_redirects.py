"""Addresses whose pages have moved to known ones bring nothing, and each counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.loops.account import DRY
from scrapy_bloom.old.loops.judging import judge_of
from scrapy_bloom.old.loops.verdicts import parked_shapes
from tests.old.loops.test_guarded_crawl import GUARDED
from tests.old.support.crawling import crawl
from tests.old.support.guarding import come_back, opened_guard
from tests.old.support.loopsite import LoopSite, prose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="durable"),
        pytest.param({"SCHEDULER": "scrapy.core.scheduler.Scheduler"}, id="scrapys-scheduler"),
    ],
)
def test_each_redirect_to_a_known_page_counts_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Their shape runs dry when DRY of them have come back, and not before."""
    with LoopSite() as site:
        crawl(site.url("/archive"), {**GUARDED, "JOBDIR": str(tmp_path), **settings})
        fetched = site.hits("/old/")
    assert DRY <= fetched < LoopSite.OLD
    (dry,) = parked_shapes(tmp_path)
    assert dry.shape.endswith("/old/N")
    assert (dry.fetched, dry.dry, dry.waiting) == (fetched, fetched, LoopSite.OLD - fetched)


def test_redirects_that_are_followed_again_say_nothing() -> None:
    """After a kill, addresses that were redirected to pages of their own are asked for again. Their pages are known by
    then, and are dropped; that is no reason to park the next address."""
    guard = opened_guard()
    moved = [f"http://example.com/old/{number}" for number in range(2 * DRY)]
    for url in moved:
        page = Request(f"{url}/new", meta={"redirect_urls": [url]})
        come_back(guard, page, prose(url))
    for url in moved:
        guard.saw_nothing(Request(f"{url}/new", meta={"redirect_urls": [url]}))
    assert judge_of("http://example.com/old/999", guard._shapes, guard._accounts) is None
    guard.close()
