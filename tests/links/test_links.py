"""Links that a crawl has seen are dropped, and no others: by the extractor, by ``UnseenLinks``, and in whole crawls."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.http import HtmlResponse, TextResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.selector import SelectorList
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.request import fingerprint
from scrapy.utils.response import get_base_url

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.links import memory
from scrapy_bloom.links.extractor import UnseenLinkExtractor, UnseenLinks
from tests.links.strategies import ARGUMENTS, BASES, HREFS, URLS, response_of, sites
from tests.support import crawls
from tests.support.crawler import quick_crawler
from tests.support.crawls import FollowSpider
from tests.support.engine import OUR_FILTER, OURS

PAGE = "http://a.example/docs/page.html"
A, B = "http://a.example/docs/a.html", "http://a.example/docs/b.html"


class AskingSpider(UnseenLinks, Spider):
    name = "asking"


class OpenCrawl:
    """A crawl with a filter of ours, and what a test asks of it."""

    def __init__(self, dupefilter: type[BloomDupeFilter], settings: dict[str, Any]) -> None:
        crawler = quick_crawler(AskingSpider, {"BLOOM_CAPACITY": 10_000, **settings})
        spider = crawler._create_spider()
        assert isinstance(spider, AskingSpider)
        self.spider = crawler.spider = spider
        self.filter = dupefilter.from_crawler(crawler)
        self.filter.open()
        self.crawl: Any = self.filter.crawl

    def downloaded(self, response: TextResponse) -> TextResponse:
        self.crawl.push(Request(response.url), None, None)
        if popped := self.crawl.pop():
            response.request = popped[0]
        return response

    def see(self, *urls: str) -> None:
        for url in urls:
            self.filter.request_seen(Request(url))

    def stat(self, name: str) -> Any:
        return self.crawl.crawler.stats.get_value(name, 0)


@contextmanager
def opened(dupefilter: type[BloomDupeFilter] = BloomDupeFilter, **settings: Any) -> Iterator[OpenCrawl]:
    crawl = OpenCrawl(dupefilter, settings)
    try:
        yield crawl
    finally:
        crawl.filter.close("finished")


@pytest.fixture
def crawl() -> Iterator[OpenCrawl]:
    with opened() as crawl:
        yield crawl


def page(html: str) -> HtmlResponse:
    return HtmlResponse(PAGE, body=html, encoding="utf-8", request=Request(PAGE))


def page_with(*hrefs: str) -> HtmlResponse:
    return page("".join(f'<a href="{href}">x</a>' for href in hrefs))


def urls_of(links: Sequence[Link]) -> list[str]:
    return [link.url for link in links]


def fingerprint_of(make: Callable[[Any], Request], link: Any) -> bytes | None:
    """The fingerprint of the request that *make* makes of a link; None if it raises."""
    try:
        return fingerprint(make(link))
    except ValueError:
        return None


def outcome(extract: Callable[[TextResponse], list[Link]], response: TextResponse) -> Any:
    """The links, or the type of the exception."""
    try:
        return [(link.url, link.text, link.fragment, link.nofollow) for link in extract(response)]
    except Exception as error:
        return type(error)


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
                expected = [link for link in expected if fingerprint_of(Request, link[0]) not in known]
            assert found == expected
            for number, (url, *_) in enumerate(expected):
                if (print_ := fingerprint_of(Request, url)) is not None and number in recorded:
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


# -- UnseenLinks -------------------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    pages=st.lists(st.tuples(URLS, st.none() | BASES, st.sampled_from(["utf-8", "cp1252", "utf-16"])), min_size=2),
    hrefs=st.lists(HREFS, min_size=1, max_size=6),
    recorded=st.sets(st.integers(0, 20)),
)
def test_a_link_passes_if_its_request_would(
    pages: list[tuple[str, str | None, str]], hrefs: list[str], recorded: set[int]
) -> None:
    """What response.follow() makes of a string, page after page, is what is asked about it; what it refuses passes."""
    known = set()
    with opened() as crawl:
        for turn, (url, base, encoding) in enumerate(pages):
            head = "" if base is None else f'<base href="{base}">'
            response = HtmlResponse(url, body=f"<html>{head}</html>", encoding=encoding)
            try:
                unseen = crawl.spider.unseen_links(hrefs, response)
            except ValueError:  # of the base, where response.follow() raises, too
                assert fingerprint_of(response.follow, "a.html") is None
                continue
            for href in hrefs:
                print_ = fingerprint_of(response.follow, href)
                passes = print_ is None or print_ not in known or "://" not in get_base_url(response)
                assert (href in unseen) is passes, href
            for number, href in enumerate(hrefs):
                print_ = fingerprint_of(response.follow, href)
                if number + turn in recorded and print_ is not None:
                    crawl.filter.request_seen(response.follow(href))
                    known.add(print_)


def test_links_and_absolute_urls_need_no_page(crawl: OpenCrawl) -> None:
    """Links and strings alike, in any spelling of the URL; the rest keeps its order, and relative URLs pass."""
    crawl.see("http://a.example/?a=1&b=2")
    links = [Link(B), Link("http://a.example/?b=2&a=1", fragment="x"), Link(A)]
    assert crawl.spider.unseen_links(links) == [links[0], links[2]]
    assert crawl.spider.unseen_links(["http://a.example?b=2&a=1#top", B, "?a=1&b=2", "b"]) == [B, "?a=1&b=2", "b"]
    assert crawl.stat("dupefilter/filtered") == crawl.stat("bloom/links_dropped") == 2


def test_selectors_are_told_by_their_href(crawl: OpenCrawl) -> None:
    """Elements and their attributes; what has no link stays, since follow_all() leaves it out of a list of its own."""
    crawl.see(A)
    response = page('<a href=" a.html ">1</a><a href="b.html">2</a><a>3</a><p>4</p>')
    elements = crawl.spider.unseen_links(response.css("a, p"), response)
    assert isinstance(elements, SelectorList)
    assert [element.xpath("string()").get() for element in elements] == ["2", "3", "4"]
    assert [request.url for request in response.follow_all(elements[:-1])] == [B]
    assert crawl.spider.unseen_links(response.css("a::attr(href)"), response).getall() == ["b.html"]


def test_with_another_filter_all_links_pass(crawl: OpenCrawl) -> None:
    """Scrapy's own filter cannot be asked; it decides about the requests, as ever, whatever another crawl has seen."""
    crawl.see(A)
    crawler = quick_crawler(AskingSpider)
    spider = crawler._create_spider()
    assert isinstance(spider, AskingSpider)
    assert spider.unseen_links([A, B]) == [A, B]


# -- whole crawls ------------------------------------------------------------------------------------------------------

PAGES = 40
SPELLINGS = ["/{0}/{1}.html", "../{0}/{1}.html", "../{0}/{1}.html#x", "/%6{2}/{1}.html#y"]


class Site(crawls.Site):
    """Pages in four folders, each linked to in several spellings, and all of them reached from the first."""

    def answer(self, path: str) -> list[str]:
        number = int(path.rpartition("/")[2].partition(".")[0])
        others = [*range(2 * number + 1, min(2 * number + 3, PAGES)), *range(number % 7, PAGES, 7)]
        return [*(SPELLINGS[(number + other) % 4].format(*of_page(other)) for other in others), "#top"]


def of_page(number: int) -> tuple[str, int, int]:
    """Return the folder of a page, its number, and the last digit of the escape that stands for the folder."""
    return "abcd"[number % 4], number, number % 4 + 1


class Ours(FollowSpider, CrawlSpider):
    rules = (Rule(UnseenLinkExtractor(), callback="note", follow=True),)

    def note(self, response: Any) -> None:
        pass


class Follows(UnseenLinks, FollowSpider):
    def parse(self, response: Any) -> Iterator[Any]:
        yield from response.follow_all(self.unseen_links(response.css("a"), response))


@pytest.mark.parametrize(
    ("spider", "settings"),
    [
        (Follows, OURS),
        pytest.param(Ours, {"DUPEFILTER_CLASS": OUR_FILTER}, marks=pytest.mark.slow),
        pytest.param(Ours, {}, marks=pytest.mark.slow),
    ],
)
def test_every_page_is_fetched(tmp_path: Path, spider: type, settings: dict[str, Any]) -> None:
    """In the rules of a CrawlSpider and in callbacks, with our filter or Scrapy's, all pages are fetched, and once."""
    own = {"SPIDER": f"{__name__}.{spider.__name__}", "START": ["/a/0.html"]}
    own |= {"JOBDIR": str(tmp_path / "job")} if settings is OURS else {}
    with Site({}) as site:
        outcome = crawls.crawl(site, tmp_path, {**settings, **own})
    # The start page is a link, too: an unfiltered request is not remembered.
    pages = ["/a/0.html", *("/{}/{}.html".format(*of_page(number)) for number in range(PAGES))]
    assert Counter(map(unquote, site.hits.elements())) == Counter(pages)
    assert "ERROR" not in outcome.log
    assert (outcome.stats.get("bloom/links_dropped", 0) > PAGES) is bool(settings)
