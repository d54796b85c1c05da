"""BloomDupeFilter decides as Scrapy's own filter does, never raises, and says what it did."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter

from scrapy_bloom.components import dupefilter
from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import UnusableError
from tests.support.crawler import quick_crawler
from tests.support.crawls import ADDON, Site, crawl


def crawler_with(**settings: Any) -> Crawler:
    crawler: Crawler = quick_crawler(settings={"BLOOM_CAPACITY": 100, **settings})
    crawler.spider = crawler._create_spider("spider")
    return crawler


def ours_with(**settings: Any) -> BloomDupeFilter:
    ours = BloomDupeFilter.from_crawler(crawler_with(**settings))
    ours.open()
    return ours


class ByMethod:
    """Somebody's fingerprinter, whose fingerprints are short."""

    def fingerprint(self, request: Request) -> bytes:
        return request.method.encode()[:1]


urls = st.builds(
    "http://{}/{}{}{}".format,
    st.sampled_from(["a.example", "A.example", "a.example:80", "xn--4ca.example", "ä.example"]),
    st.sampled_from(["", "a", "a/", "%61", "ä", "a;b", "a b"]),
    st.sampled_from(["", "?", "?a=1&b=2", "?b=2&a=1", "?a=1&a=1", "?a", "?a="]),
    st.sampled_from(["", "#", "#x", "#!x"]),
)
requests = st.builds(
    Request,
    urls,
    method=st.sampled_from(["GET", "GET", "POST", "HEAD"]),
    body=st.sampled_from([b"", b"", b"x"]),
    headers=st.sampled_from([{}, {"Accept": "x"}]),
)


@pytest.mark.parametrize("fingerprinter", [None, ByMethod])
@settings(max_examples=25)
@given(stream=st.lists(requests, max_size=60))
def test_it_decides_as_scrapys_own_filter(fingerprinter: type | None, stream: list[Request]) -> None:
    """Of any stream of requests, those are dropped that RFPDupeFilter drops; also with another fingerprinter."""
    chosen = {"REQUEST_FINGERPRINTER_CLASS": fingerprinter} if fingerprinter else {}
    ours, theirs = ours_with(**chosen), RFPDupeFilter.from_crawler(crawler_with(**chosen))
    assert [ours.request_seen(each) for each in stream] == [theirs.request_seen(each) for each in stream]
    assert [ours.request_fingerprint(each) for each in stream] == [theirs.request_fingerprint(each) for each in stream]
    ours.close("finished")


@pytest.mark.parametrize("debug", [True, False])
def test_it_logs_and_counts_as_scrapys_own_filter(debug: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The same lines at the same level for one duplicate or, with DUPEFILTER_DEBUG, for all; the same stat."""
    lines = []
    for kind in (BloomDupeFilter, RFPDupeFilter):
        crawler = crawler_with(DUPEFILTER_DEBUG=debug)
        each = kind.from_crawler(crawler)
        each.open()
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            for url in ("http://a.example/", "http://b.example/"):
                assert crawler.spider is not None
                each.log(Request(url, headers={"Referer": "http://r.example"}), crawler.spider)
        lines.append([(record.levelname, record.getMessage()) for record in caplog.records])
        each.close("finished")
    assert lines[0] == lines[1]
    assert len(lines[0]) == 1 + debug


class Raising:
    """A fingerprinter that fails on some requests, as those of others do."""

    def fingerprint(self, request: Request) -> bytes:
        if "odd" in request.url:
            raise RuntimeError(request.url)
        return request.url.encode()


def test_what_cannot_be_checked_is_let_through(caplog: pytest.LogCaptureFixture) -> None:
    """Raising would lose the request. It is counted, and the first one is logged with its traceback."""
    ours = ours_with(REQUEST_FINGERPRINTER_CLASS=Raising)
    odd, even = Request("http://a.example/odd"), Request("http://a.example/even")
    assert [ours.request_seen(each) for each in (odd, even, odd, even)] == [False, False, False, True]
    ours.forget(odd)
    assert ours.crawl.crawler.stats.get_value("bloom/unchecked") == 2
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.exc_info
    ours.close("finished")


def test_a_crawl_in_which_nothing_can_be_checked_ends(tmp_path: Path) -> None:
    """Pages that link to each other would be fetched for ever; the log says what to repair, and the job resumes."""
    most = dupefilter.MOST_UNCHECKED_IN_A_ROW
    fingerprinter = {"REQUEST_FINGERPRINTER_CLASS": "tests.components.test_dupefilter.Raising"}
    job = {**ADDON, "JOBDIR": str(tmp_path / "job"), "DEPTH_LIMIT": 10 * most}
    with Site({"/": ["/odd"], "/odd": ["/odd"]}) as site:
        outcome = crawl(site, tmp_path, {**job, **fingerprinter})
        assert outcome.stats["finish_reason"] == "bloom_unchecked"
        assert most <= site.hits["/odd"] + 1 <= most + 32
    assert len(outcome.lines("CRITICAL")) == 1


def test_the_stats_say_what_the_filter_holds() -> None:
    """Keys, layers, bytes, fill and the loss to be expected are set at the end."""
    ours = ours_with()
    for n in range(250):
        ours.request_seen(Request(f"http://a.example/{n}"))
    ours.close("finished")
    stats = ours.crawl.crawler.stats
    assert stats.get_value("bloom/urls") == 250
    assert stats.get_value("bloom/layers") == 2
    assert 0 < stats.get_value("bloom/fill_ratio") <= 0.51
    assert 0 < stats.get_value("bloom/expected_lost") < 1e-3
    assert stats.get_value("bloom/bytes") > 0


def test_a_filter_that_does_not_fit_says_what_it_needs() -> None:
    """Whoever sets a capacity beyond the machine's memory learns the bytes and the way out."""
    with pytest.raises(UnusableError, match=r"[\d,]+ bytes.*BLOOM_CAPACITY"):
        ours_with(BLOOM_CAPACITY=10**12)
