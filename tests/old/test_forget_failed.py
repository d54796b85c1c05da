"""BLOOM_FORGET_FAILED: what failed in one run is followed again by later links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter
from tests.old.support.crawling import crawl
from tests.old.support.localsite import LocalSite

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULERS = ["scrapy.core.scheduler.Scheduler", pytest.param("scrapy_bloom.DurableScheduler", marks=pytest.mark.slow)]
ON = {"BLOOM_FORGET_FAILED": True, "RETRY_TIMES": 1}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kind", ["flaky", "dropped"])
def test_a_download_that_finally_failed_is_tried_again_by_a_later_run(
    tmp_path: Path, scheduler: str, kind: str
) -> None:
    """A 503 after all retries, and a connection that broke each time, are taken back; success is not."""
    settings = {**ON, "JOBDIR": str(tmp_path), "SCHEDULER": scheduler}
    options: dict[str, Any] = {kind: 1, "flaky_failures": 1000}
    with LocalSite(pages=5, **options) as site:
        first = crawl(site.url("/page/1"), settings)
        # Twice if page 1, which is crawled as the start and as a link, comes again after the first failure.
        assert first.stats["retry/max_reached"] in (1, 2)
        assert first.stats["bloom/forgotten"] == 1
        others = site.all_hits()
        site.flaky_failures = 0
        second = crawl(site.url("/page/1"), settings)
        assert site.hits(f"/{kind}/0") == others[f"/{kind}/0"] + 1
        assert second.stats["bloom/forgotten"] == 0
        assert second.stats["bloom/urls"] == first.stats["bloom/urls"] + 1
        third = crawl(site.url("/page/1"), settings)
        assert site.hits(f"/{kind}/0") == others[f"/{kind}/0"] + 1, "it has succeeded"
        assert third.stats["bloom/forgotten"] == 0
        # Start requests are not filtered, so page 1 is fetched by every run; nothing else is.
        assert {path for path, n in site.all_hits().items() if n != others[path]} == {f"/{kind}/0", "/page/1"}


def test_without_the_setting_a_failed_page_stays_seen(tmp_path: Path) -> None:
    """As with Scrapy's own filter."""
    settings = {"JOBDIR": str(tmp_path), "RETRY_TIMES": 1}
    with LocalSite(pages=5, flaky=1, flaky_failures=2) as site:
        assert crawl(site.url("/page/1"), settings).stats["bloom/forgotten"] == 0
        crawl(site.url("/page/1"), settings)
        assert site.hits("/flaky/0") == 2


def test_a_retry_that_succeeds_takes_nothing_back(tmp_path: Path) -> None:
    """A page that came at the second attempt is a duplicate from then on."""
    with LocalSite(pages=5, flaky=1, flaky_failures=1) as site:
        outcome = crawl(site.url("/page/1"), {**ON, "JOBDIR": str(tmp_path)})
        assert site.hits("/flaky/0") == 2
        assert outcome.stats["bloom/forgotten"] == 0
        crawl(site.url("/page/1"), {**ON, "JOBDIR": str(tmp_path)})
        assert site.hits("/flaky/0") == 2


def test_a_retry_that_succeeds_is_held_back_again(tmp_path: Path) -> None:
    """Until its request is durable, a fingerprint waits in memory; failing and being retried there changes nothing."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.hold_back()
    held, volatile = Request("http://example.com/held"), Request("http://example.com/volatile")
    for request in (held, volatile):
        assert not dupefilter.request_seen(request)
    dupefilter.never_release(volatile)
    for request in (held, volatile):
        dupefilter.forget(request)
    dupefilter._set_stats()
    assert crawler.stats is not None
    assert crawler.stats.get_value("bloom/forgotten") == 2
    for request in (held, volatile):
        dupefilter._recall(request)
        assert dupefilter.request_seen(request)
    dupefilter.seal()
    dupefilter.release()
    chain = dupefilter._chain
    assert chain is not None
    assert len(chain) == 1, "what is never released is not released by a retry"
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/forgotten") == 0


def test_what_failed_before_it_was_durable_is_new_again(tmp_path: Path) -> None:
    """It is not released, counts as forgotten until it comes again, and is then held back like any other."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.hold_back()
    request = Request("http://example.com/")
    assert not dupefilter.request_seen(request)
    dupefilter.forget(request)
    dupefilter.seal()
    dupefilter.release()
    chain = dupefilter._chain
    assert chain is not None
    assert len(chain) == 0
    assert dupefilter.seen_fingerprints([dupefilter.fingerprint_url(request.url)]) == [False]
    assert not dupefilter.request_seen(request)
    dupefilter.seal()
    dupefilter.release()
    assert len(chain) == 1
    dupefilter.close("finished")


def test_a_page_whose_callback_raised_is_tried_again(tmp_path: Path) -> None:
    """A bug in a callback costs the page in this run only."""
    settings = {**ON, "JOBDIR": str(tmp_path)}
    with LocalSite(pages=7) as site:
        first = crawl(site.url("/page/0"), {**settings, "RAISE_ON": "/page/2?"})
        assert first.stats["bloom/forgotten"] == 1
        # Once for each link to it that was found after the last failure.
        assert site.hits("/page/2") == first.stats["spider_exceptions/RuntimeError"]
        failures = site.hits("/page/2")
        second = crawl(site.url("/page/0"), settings)
        assert site.hits("/page/2") == failures + 1
        assert second.stats["bloom/forgotten"] == 0
        assert site.missing_pages() == []


def test_a_redirect_that_ended_in_failure_is_followed_again(tmp_path: Path) -> None:
    """The URL that was redirected is taken back together with the one that failed."""
    settings = {**ON, "JOBDIR": str(tmp_path)}
    with LocalSite(pages=5, redirects=1) as site:
        start = site.url("/page/1")
        first = crawl(start, {**settings, "RAISE_ON": "/page/0"})
        # Page 0 is linked with a query as well, and redirected to without.
        assert first.stats["bloom/forgotten"] >= 2
        failures = site.hits("/redirect/0")
        crawl(start, settings)
        assert site.hits("/redirect/0") == failures + 1


def test_a_link_from_a_page_that_was_retried_is_no_retry(tmp_path: Path) -> None:
    """Spiders pass the meta of a page on to its links, with the count of its retries. Such a link to a page that failed
    is followed; the retry of that page itself still counts as under way."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path), **ON})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    failed = Request("http://example.com/")
    assert not dupefilter.request_seen(failed)
    dupefilter.forget(failed)
    link = Request(failed.url, meta={"retry_times": 1})
    crawler.signals.send_catch_log(signals.request_scheduled, request=link, spider=None)  # as the engine, before asking
    assert not dupefilter.request_seen(link)
    dupefilter.forget(failed)
    retry = get_retry_request(failed, spider=crawler._create_spider("spider"), reason="x")
    crawler.signals.send_catch_log(signals.request_scheduled, request=retry, spider=None)
    assert dupefilter.request_seen(failed)
    dupefilter.close("finished")
