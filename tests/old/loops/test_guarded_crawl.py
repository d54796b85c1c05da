"""Crawls with the loop guard: traps end, honest pages come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.crawl.loop_guard_middleware import LoopGuardMiddleware
from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.loops.verdicts import parked_shapes
from tests.old.support.crawling import crawl
from tests.old.support.loopsite import LoopSite

if TYPE_CHECKING:
    from pathlib import Path

    from tests.old.support.crawling import Outcome

GUARDED = {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_LOOP_GUARD": True, "ROBOTSTXT_OBEY": False}
FIFO = {
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
}


def check_pages(site: LoopSite, outcome: Outcome) -> None:
    """The crawl ended by itself, each honest page came once, and few of the calendar."""
    assert outcome.stats["finish_reason"] == "finished"
    assert site.hits("/good/") == LoopSite.GOOD
    assert site.hits("/record/") == 2 * LoopSite.LISTS
    assert site.hits("/calendar/") < 100
    assert set(site.asked().values()) == {1}


@pytest.mark.parametrize(
    ("queue", "spider"),
    [
        pytest.param({}, "SiteSpider", id="lifo"),
        pytest.param(FIFO, "AskingRuleSpider", id="fifo", marks=pytest.mark.slow),
    ],
)
def test_an_endless_calendar_ends_and_every_honest_page_comes(queue: dict[str, Any], spider: str) -> None:
    """The crawl ends by itself, and has fetched all honest pages, also those behind empty lists, and under 100 pages of
    the calendar."""
    with LoopSite() as site:
        outcome = crawl(site.url("/"), {**GUARDED, **queue}, spider=spider)
        check_pages(site, outcome)
    waiting = outcome.stats["bloom/loop/waiting"]
    assert waiting > 0
    assert "downloader/exception_count" not in outcome.stats  # neither what is parked nor what goes back to the queue
    assert f"The loop guard parked {counted(waiting, 'request')} in memory; gone now (no JOBDIR)" in outcome.log
    assert "/calendar/N/** has run dry and is parked" in outcome.log


def test_under_scrapys_own_scheduler_the_middleware_parks() -> None:
    """A scheduler that does not ask the guard hands everything out, and what has run dry is ignored and parked then."""
    settings = {**GUARDED, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
    with LoopSite() as site:
        outcome = crawl(site.url("/"), settings, spider="SiteSpider")
        check_pages(site, outcome)
    ignored = outcome.stats["downloader/exception_type_count/scrapy.exceptions.IgnoreRequest"]
    assert ignored == outcome.stats["bloom/loop/parked"] > 0  # what only goes back to the queue is no exception


def test_under_a_scheduler_that_leaves_its_filter_alone_the_guard_opens_and_closes(tmp_path: Path) -> None:
    """As under that of scrapy-redis: the guard parks from the first page on, and what it knows is there afterwards."""
    settings = {**GUARDED, "SCHEDULER": "tests.old.support.lazy_scheduler.LazyScheduler", "JOBDIR": str(tmp_path)}
    with LoopSite() as site:
        outcome = crawl(site.url("/"), settings, spider="SiteSpider")
        check_pages(site, outcome)
        fetched = site.hits("/calendar/")
    assert "does not ask the loop guard" not in outcome.log
    assert fetched == next(one.fetched for one in parked_shapes(tmp_path) if one.shape.endswith("/calendar/N/**"))


def test_without_the_setting_nothing_is_guarded(tmp_path: Path) -> None:
    """Without BLOOM_LOOP_GUARD the crawl follows the endless calendar until its budget is spent."""
    with LoopSite() as site:
        outcome = crawl(site.url("/"), {**GUARDED, "BLOOM_LOOP_GUARD": False, "CLOSESPIDER_PAGECOUNT": 400})
        assert outcome.stats["finish_reason"] == "closespider_pagecount"
    assert not [name for name in outcome.stats if name.startswith("bloom/loop/")]


def test_under_a_filter_that_does_not_ask_it_the_guard_says_so() -> None:
    """Scrapy's own filter shows the guard no request, so nothing can be held back; one warning says it."""
    filter_ = "scrapy.dupefilters.RFPDupeFilter"
    with LoopSite() as site:
        outcome = crawl(site.url("/archive"), {**GUARDED, "DUPEFILTER_CLASS": filter_})
        assert site.hits("/old/") == LoopSite.OLD
    warning = f"the duplicate filter does not ask the loop guard (DUPEFILTER_CLASS = {filter_})"
    assert outcome.log.count(warning) == 1


def test_a_limit_of_depth_that_depends_on_the_order_is_warned_of() -> None:
    """DEPTH_LIMIT drops links by the way on which their page was found first, which the guard changes."""
    with LoopSite() as site:
        outcome = crawl(site.url("/good/0"), {**GUARDED, "DEPTH_LIMIT": 3})
    assert "WARNING: DEPTH_LIMIT is 3, and the loop guard changes the order of the crawl" in outcome.log


@pytest.mark.parametrize(
    ("method", "status", "is_judged"),
    [("GET", 200, True), ("HEAD", 200, False), ("GET", 304, False), ("GET", 503, False)],
)
def test_answers_without_a_body_say_nothing_about_their_pages(method: str, status: int, is_judged: bool) -> None:
    """A check of links by HEAD parks nothing."""
    crawler = get_crawler(settings_dict=GUARDED)
    middleware = LoopGuardMiddleware.from_crawler(crawler)
    guard = middleware._guard
    guard.open(None)
    for number in range(30):
        request = Request(f"http://example.com/{number}", method=method)
        middleware.process_spider_input(HtmlResponse(request.url, status=status, request=request))
    assert guard._pages == (30 if is_judged else 0)
    guard.close()
