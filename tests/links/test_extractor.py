import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import HtmlResponse, TextResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.request import fingerprint
from scrapy.utils.response import get_base_url

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.links import memory
from scrapy_bloom.links.extractor import UnseenLinkExtractor
from tests.links.crawling import PAGE, A, B, OpenCrawl, opened, page, page_with, urls_of
from tests.links.strategies import ARGUMENTS, response_of, sites


def outcome(extract: Callable[[TextResponse], list[Link]], response: TextResponse) -> Any:
    """The links, or the type of the exception."""
    try:
        return [(link.url, link.text, link.fragment, link.nofollow) for link in extract(response)]
    except Exception as error:
        return type(error)


def fingerprint_of(url: str) -> bytes | None:
    try:
        return fingerprint(Request(url))
    except ValueError:
        return None


LINK_ABOVE_THE_ROOT = ("a", (("href", "../../../x"),), "", "text", "nav")
ABOVE_THE_ROOT = (HtmlResponse, "file:///docs/page.html", None, "utf-8", [LINK_ABOVE_THE_ROOT])


@hypothesis_settings(max_examples=20, deadline=None)
@example({}, [ABOVE_THE_ROOT], {0}, set(), 200_000)
@given(ARGUMENTS, sites(), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 9)), st.sampled_from([3, 200_000]))
def test_the_links_are_those_of_scrapy_without_the_seen_ones(
    arguments: dict[str, Any], pages: list[Any], recorded: set[int], forgotten: set[int], most_known: int
) -> None:
    """Page by page, while links are requested and forgotten: the same links, order, text, nofollow, and exceptions."""
    theirs, ours = LinkExtractor(**arguments), UnseenLinkExtractor(**arguments)
    known: set[bytes] = set()
    with pytest.MonkeyPatch.context() as patch, opened() as crawl:
        patch.setattr(memory, "MOST_KNOWN", most_known)
        for turn, arguments_of_page in enumerate([*pages, *pages]):
            response = response_of(*arguments_of_page)
            expected = outcome(theirs.extract_links, response)
            found = outcome(ours.extract_links, response_of(*arguments_of_page))
            if isinstance(expected, type):
                assert found is expected
                continue
            if response.selector.type == "html" and "://" in get_base_url(response):
                expected = [link for link in expected if fingerprint_of(link[0]) not in known]
            assert found == expected
            for number, (url, *_) in enumerate(expected):
                if (print_ := fingerprint_of(url)) is not None and number in recorded:
                    crawl.see(url)
                    known.add(print_)
                elif print_ is not None and number + turn in forgotten:
                    crawl.filter.forget(Request(url))
                    known.discard(print_)


def test_what_was_seen_is_counted_as_filtered(crawl: OpenCrawl) -> None:
    """Each different href of a page counts once, on every page; what was not seen does not."""
    crawl.see(A)
    extractor = UnseenLinkExtractor()
    for _ in range(3):
        assert urls_of(extractor.extract_links(page_with("a.html", "a.html", "/docs/a.html#x", "b.html"))) == [B]
    assert crawl.stat("bloom/links_dropped") == crawl.stat("dupefilter/filtered") == 6


def test_links_that_are_dropped_count_as_requests_for_them_would() -> None:
    """A link is a vote for its page, whether it becomes a request that is a duplicate or is dropped before that."""
    pages = [page_with("a.html", "/docs/a.html#x", "b.html"), page_with("a.html#y"), page_with("../docs/a.html")]
    votes = []
    for extractor in (LinkExtractor(), UnseenLinkExtractor()):
        with opened(BLOOM_LOOP_GUARD=True) as crawl:
            for response in [*pages, *pages]:
                crawl.see(*set(urls_of(extractor.extract_links(response))))
            votes.append([crawl.crawl.core.guard.share.links.of(fingerprint(Request(url))) for url in (A, B)])
    assert votes[0] == votes[1] == [8, 2]


def test_a_link_seen_too_long_ago_comes_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With BLOOM_MAX_AGE, what is too old is a link again on the first page after that."""
    now = 1_000_000_000.0
    monkeypatch.setitem(ScalableBloomFilter.__init__.__kwdefaults__, "clock", lambda: now)
    with opened(BLOOM_MAX_AGE="7d") as crawl:
        extractor = UnseenLinkExtractor()
        crawl.see(A)
        assert extractor.extract_links(page_with("a.html")) == []
        now += 8 * 86_400
        assert urls_of(extractor.extract_links(page_with("a.html"))) == [A]


def test_links_beyond_a_limit_are_dropped_and_counted_for_it() -> None:
    """A trap's links never become requests; they count for their limit, and not as duplicates."""
    with opened(BLOOM_LOOP_GUARD=True) as crawl:
        extractor = UnseenLinkExtractor()
        trap = "/a" * 30
        for _ in range(2):
            assert urls_of(extractor.extract_links(page_with(trap, "a.html"))) == [A]
        assert crawl.stat("bloom/loop/depth") > 0
        assert crawl.stat("dupefilter/filtered") == 0


def raises_for_a(url: str) -> str:
    if url.endswith(("/a.html", "/page.html")):
        raise RuntimeError("broken")
    return url


class KeepsFragments(BloomDupeFilter):
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()


class ByUrl:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()


@pytest.mark.parametrize(
    ("dupefilter", "settings", "seen", "hrefs", "expected"),
    [
        (BloomDupeFilter, {"BLOOM_URL_RULES": ["common"]}, [A], ["a.html?utm_source=x", "a.html"], []),
        (
            BloomDupeFilter,
            {"BLOOM_URL_RULES": [f"{__name__}.raises_for_a"]},
            [B],
            ["a.html", "b.html", "#x"],
            [A, f"{PAGE}#x"],
        ),
        (
            KeepsFragments,
            {},
            [PAGE, f"{PAGE}#x", f"{A}#x"],
            ["#x", "#y", "a.html#x", "a.html#y"],
            [f"{PAGE}#y", f"{A}#y"],
        ),
        (BloomDupeFilter, {"REQUEST_FINGERPRINTER_CLASS": ByUrl}, [A], ["a.html", "b.html"], [A, B]),
    ],
    ids=["rules", "a rule that raises", "fingerprint() of a filter", "fingerprinter"],
)
def test_what_counts_as_the_same_page_for_requests_does_so_for_links(
    dupefilter: type[BloomDupeFilter], settings: dict[str, Any], seen: list[str], hrefs: list[str], expected: list[str]
) -> None:
    """A rule that raises lets links pass, as it does requests. A fingerprinter of the user's takes requests only, so
    nobody can tell which links were seen, and none is counted."""
    with opened(dupefilter, **settings) as crawl:
        crawl.see(*seen)
        assert urls_of(UnseenLinkExtractor().extract_links(page_with(*hrefs))) == expected
        assert crawl.stat("dupefilter/filtered") == len(hrefs) - len(expected)


class OnlyB(UnseenLinkExtractor):
    def _link_allowed(self, link: Link) -> bool:
        return link.text == "take me" and super()._link_allowed(link)


def test_a_subclass_that_chooses_links_is_asked_about_each(crawl: OpenCrawl) -> None:
    """An overridden part of Scrapy's extractor may look at anything, the text for example."""
    extractor = OnlyB()
    assert extractor.extract_links(page('<a href="a.html">leave me</a>')) == []
    assert urls_of(extractor.extract_links(page('<a href="a.html">take me</a>'))) == [A]
    crawl.see(A)
    assert extractor.extract_links(page('<a href="a.html">take me</a>')) == []


def test_without_a_crawl_all_links_come_out_and_a_warning_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever forgets to set DUPEFILTER_CLASS gets Scrapy's extractor, and is told."""
    extractor = UnseenLinkExtractor()
    for _ in range(2):
        assert urls_of(extractor.extract_links(page_with("a.html"))) == [A]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "BloomDupeFilter" in record.getMessage()


def test_crawls_in_one_process_are_kept_apart() -> None:
    """An extractor of a class attribute serves several crawls: each drops what it has seen itself."""
    extractor = UnseenLinkExtractor()
    with opened() as one, opened() as other:
        one.see(A)
        for _ in range(2):
            assert urls_of(extractor.extract_links(one.downloaded(page_with("a.html", "b.html")))) == [B]
            assert urls_of(extractor.extract_links(other.downloaded(page_with("a.html", "b.html")))) == [A, B]
        other.see(B)
        assert urls_of(extractor.extract_links(other.downloaded(page_with("a.html", "b.html")))) == [A]
    with opened():
        assert urls_of(extractor.extract_links(page_with("a.html"))) == [A]
