"""Addresses whose pages have moved to known ones bring nothing, and each counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom.loops.account import DRY
from scrapy_bloom.loops.verdicts import parked_shapes
from tests.loops.test_guarded_crawl import GUARDED
from tests.support.crawling import crawl
from tests.support.loopsite import LoopSite

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
