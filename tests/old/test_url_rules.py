"""BLOOM_URL_RULES through everything that makes or keeps fingerprints on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, RequestFingerprinter
from scrapy_bloom.old.errors import BloomError
from tests.old.support.scheduling import finish, open_scheduler, stat

if TYPE_CHECKING:
    from pathlib import Path

NOISY, NOISIER, PLAIN = (f"http://a.example/page{query}" for query in ("?utm_source=x", "?gclid=1&gclid=1", ""))


def test_the_first_spelling_is_fetched_and_the_others_are_duplicates() -> None:
    """Rules decide what is seen, and leave the URL that is fetched as it was found."""
    scheduler = open_scheduler(BLOOM_URL_RULES=["common"])
    assert [scheduler.enqueue_request(Request(url)) for url in (NOISY, NOISIER, PLAIN)] == [True, False, False]
    request = scheduler.next_request()
    assert request is not None
    assert request.url == NOISY
    assert stat(scheduler, "dupefilter/filtered") == 2
    finish(scheduler)


def test_links_are_asked_about_under_the_rules() -> None:
    """A link to another spelling of a page that was seen is known before it becomes a request."""
    scheduler = open_scheduler(BLOOM_URL_RULES="tracking")
    scheduler.enqueue_request(Request(NOISY))
    link_filter = scheduler.df.link_filter()
    fingerprints = [link_filter.fingerprint_url(url) for url in (PLAIN, NOISIER, "http://a.example/other")]
    assert list(link_filter.seen_fingerprints(fingerprints)) == [True, True, False]
    finish(scheduler)


def test_the_fingerprinter_follows_the_rules_for_everybody() -> None:
    """As REQUEST_FINGERPRINTER_CLASS it gives the HTTP cache, among others, the fingerprints of the filter."""
    settings = {"BLOOM_URL_RULES": ["tracking"], "REQUEST_FINGERPRINTER_CLASS": RequestFingerprinter}
    fingerprinter = get_crawler(settings_dict=settings).request_fingerprinter
    assert fingerprinter is not None
    assert fingerprinter.fingerprint(Request(NOISY)) == fingerprinter.fingerprint(Request(PLAIN))


def opened(jobdir: Path, rules: object) -> BloomDupeFilter:
    crawler = get_crawler(settings_dict={"JOBDIR": str(jobdir), "BLOOM_URL_RULES": rules, "BLOOM_CAPACITY": 1000})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    return dupefilter


def test_a_job_goes_on_under_the_same_rules_only(tmp_path: Path) -> None:
    """A preset and its rules written out are the same; other rules, or another order, are refused by name."""
    first = opened(tmp_path, ["safe", "www"])
    first.request_seen(Request("http://www.a.example:80/"))
    first.close("finished")
    second = opened(tmp_path, ["default_port", "repeated_pairs", "www"])
    assert second.request_seen(Request("http://a.example/"))
    second.close("finished")
    for others in ([], ["www", "safe"], ["common"]):
        with pytest.raises(BloomError, match=r"rules was 'default_port,repeated_pairs,www', is now '"):
            opened(tmp_path, others)


def breaks_later(url: str) -> str:
    if "7" in url:
        raise RuntimeError("seven")
    return url


def test_a_rule_that_breaks_costs_no_page(caplog: pytest.LogCaptureFixture) -> None:
    """What a user's function cannot rule is fetched, counted in bloom/unchecked, and the first is logged."""
    scheduler = open_scheduler(BLOOM_URL_RULES=[breaks_later])
    for _ in range(2):
        assert scheduler.enqueue_request(Request("http://a.example/7"))
    assert stat(scheduler, "bloom/unchecked") == 2
    assert "RuntimeError: seven" in caplog.text
    finish(scheduler)
