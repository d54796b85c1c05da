"""UnseenLinkExtractor: the links of Scrapy's extractor that unseen_links() lets pass, only sooner."""

from __future__ import annotations

import gc
import logging
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request, signals
from scrapy.http import HtmlResponse, XmlResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.selector import Selector
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomDupeFilter, UnseenLinkExtractor
from scrapy_bloom.old.crawl import href_memory
from scrapy_bloom.old.crawl.href_tags import HrefTags
from tests.old.support.scheduling import SCRAPYS, AskingSpider, ByPath, finish, open_scheduler, stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy.core.scheduler import Scheduler
    from scrapy.http import TextResponse


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = open_scheduler(spider=AskingSpider)
    yield scheduler
    finish(scheduler)


def downloaded(scheduler: Scheduler, response: TextResponse) -> TextResponse:
    """The *response*, made known to the crawl as the engine does with each."""
    response.request = Request(response.url)
    arguments = {"response": response, "request": response.request, "spider": scheduler.spider}
    scheduler.crawler.signals.send_catch_log(signals.response_received, **arguments)
    return response


def page_of(scheduler: Scheduler, html: str, url: str = "http://a.example/docs/page.html") -> TextResponse:
    return downloaded(scheduler, HtmlResponse(url, body=html, encoding="utf-8"))


def seen(scheduler: Scheduler, *urls: str) -> None:
    for url in urls:
        scheduler.df.request_seen(Request(url))


def urls_of(links: Sequence[Link]) -> list[str]:
    return [link.url for link in links]


# -- the same links as the two one after the other ---------------------------------------------------------------------

HREFS = st.one_of(
    st.sampled_from(
        [
            *(
                "a.html",
                "a.html#x",
                "./a.html",
                "../docs/a.html",
                "b.html",
                "b.html#y.1_-",
                "b.html#",
                "#",
                "#x",
                "#y",
                "",
            ),
            *(
                "/docs/a.html",
                "//a.example/docs/a.html",
                "http://a.example/docs/a.html",
                "HTTP://A.example/docs/a.html",
            ),
            *(
                "?q=1",
                "?q=2&p=1",
                "?p=1&q=2",
                "a.html?p=1&q=2",
                "a.html?q=2&p=1#x",
                ";p",
                "a;p",
                "c.pdf",
                "c.html?x.pdf",
            ),
            *(
                "http:a.html",
                "http:/a.html",
                "http:///a.html",
                "http://",
                "https://a.example/docs/a.html",
                "https:a.html",
            ),
            *(
                "mailto:me@a.example",
                "javascript:void(0)",
                "http://[",
                "http://a.example:x/",
                "//[::1",
                "data:,x",
                "a b",
            ),
            *(
                " a.html",
                "a.html ",
                "\ta.html\n",
                "/x ",
                " /x",
                " #x",
                "#x ",
                "a\n.html",
                "\x01a",
                "\u00a0a",
                "\\a",
                "a\\b",
            ),
            *(
                "\u00e4",
                "a?\u00e4=\u00fc",
                "#\u00e4",
                "a.html#\u00e4",
                "%e4",
                "a%20b",
                "a%2",
                "#a%20b",
                "#a#b",
                "#!a",
                "a#!/b",
            ),
            *(
                "../../../x",
                "..",
                ".",
                "./",
                "../",
                "/",
                "//",
                "///x",
                "/../x",
                "a/../b.html",
                "www.b.example",
                "b.example/x",
            ),
            *(
                "http://b.example/",
                "http://b.example",
                "http://b.example?x",
                "http://sub.b.example/a.html",
                "ftp://b.example/",
            ),
            *(
                "http://b.example/x.pdf#y",
                "http://b.example?x#y",
                "x.tar.gz",
                "docs/x.tar.gz#y",
                "../docs/b.html#x",
                "./b.html#y",
                "//x",
                "http://x",
                "a/..x",
                "~a/_b-1.html#x",
            ),
        ]
    ),
    st.text("ab/.:?#;&=%\\@[] \u00e4\n", max_size=8),
)
SPELLINGS = [
    *("#", "", "#x", "#y", "page.html", "page.html#x", "./page.html#y", "/docs/page.html#x", "#x ", "#\u00e4"),
    *("a.html", "a.html#", "a.html#x", "./a.html#x", "/docs/a.html#x", " a.html#x", "a.html#x ", "a.html#\u00e4"),
    *("//a.example/docs/a.html", "http://a.example/docs/a.html#x", "a.html#x\ny", "a.html#xy", "b.html", "b.html#x"),
]
"""A few URLs, some of which differ only behind the ``#``."""
SAME_PAGES = st.sampled_from(SPELLINGS)

URLS = st.sampled_from(
    [
        *("http://a.example/docs/page.html", "http://a.example/docs/other.html?q=0", "http://a.example/docs/deep/"),
        *("http://a.example", "http://a.example/", "https://a.example/docs/page.html", "http://b.example/docs/;p"),
        *(
            "http://a.example/docs/page.html#f",
            "file:///docs/page.html",
            "http://a.example:80/docs/page.html",
            "http://a.example/x/../docs/page.html",
            "about:x",
        ),
    ]
)
BASES = st.sampled_from(["/docs/", "http://b.example/x/y", "deep/", "//b.example", "http://[", "mailto:x", ""])
TAGS = ["a", "a", "a", "area", "link", "A", "img", "div"]
ATTRIBUTES = ["href", "href", "href", "src", "data-href"]


@st.composite
def sites(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Pages with the same few values on all of them, or nothing would be remembered."""
    hrefs = draw(st.sampled_from([HREFS, HREFS, SAME_PAGES]))
    values = st.sampled_from(draw(st.lists(hrefs, min_size=1, max_size=8 if hrefs is SAME_PAGES else 4, unique=True)))
    element = st.tuples(
        st.sampled_from(TAGS),
        st.lists(st.tuples(st.sampled_from(ATTRIBUTES), values), min_size=1, max_size=2, unique_by=lambda a: a[0]),
        st.sampled_from([None, None, "nofollow", "NOFOLLOW, me", "me"]),
        st.sampled_from(["text", "", "next <b>page</b>", "\u00e4 &amp; b", " spaces  "]),
        st.sampled_from(["nav", "main"]),
    )
    page = st.tuples(
        st.one_of(URLS, st.just("http://a.example/docs/page.html")),
        st.one_of(st.none(), st.none(), BASES),
        st.sampled_from(["utf-8", "utf-8", "cp1252", "utf-16"]),
        st.lists(element, min_size=1, max_size=8),
        st.sampled_from([False, False, False, True]),
    )
    return draw(st.lists(page, min_size=2, max_size=5))


def drop_queries(value: str) -> str | None:
    return None if "?" in value else value.replace("b.html", "a.html")


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "allow": st.sampled_from([r"\.html", [re.compile("docs"), "#x"], ()]),
        "deny": st.sampled_from(["b", ["#y", r"\?"], "x$"]),
        "allow_domains": st.sampled_from(["a.example", {"b.example", "A.EXAMPLE"}]),
        "deny_domains": st.sampled_from(["b.example", ["sub.b.example"]]),
        "deny_extensions": st.sampled_from([(), ["html"], "pdf", ["gz", ""], "tar.gz", "example/docs/a.html"]),
        "restrict_xpaths": st.sampled_from(
            ["//div", ["//div[@class='main']", "//body"], "//nothing", "//a", "//comment()"]
        ),
        "restrict_css": st.sampled_from([".nav", [".main", "a"]]),
        "restrict_text": st.sampled_from(["text", ["page", "^$"]]),
        "tags": st.sampled_from(["a", ("a", "link", "img"), ["area"], (), None, {"div", "a"}, "A", "*"]),
        "attrs": st.sampled_from(["href", ("src", "href"), ["data-href", "href"], (), "*"]),
        "canonicalize": st.booleans(),
        "unique": st.booleans(),
        "process_value": st.sampled_from([None, drop_queries]),
        "strip": st.booleans(),
    },
)


def response_of(scheduler: Scheduler, page: tuple[Any, ...]) -> TextResponse:
    url, base, encoding, elements, is_xml = page
    made = []
    for tag, attributes, rel, text, css in elements:
        pairs = [*attributes, *([("rel", rel)] if rel else [])]
        attrs = "".join(f' {name}="{value.translate(ESCAPES)}"' for name, value in pairs)
        made.append(f'<div class="{css}"><{tag}{attrs}>{text}</{tag}></div>')
    head = "" if base is None else f'<base href="{base}">{"</base>" if is_xml else ""}'
    html = f"<html><head>{head}{'<!-- x -->' if is_xml else HIDDEN}</head><body>{''.join(made)}</body></html>"
    if is_xml:
        html = html.replace("<html>", '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:o="urn:o">')
    return downloaded(scheduler, (XmlResponse if is_xml else HtmlResponse)(url, body=html, encoding=encoding))


HIDDEN = """<!-- <a href="a.html">x</a> --><script>'<a href="/b.html">x</a>'</script>"""
ESCAPES = str.maketrans({"&": "&amp;", '"': "&quot;", "<": "&lt;", "\n": "&#10;", "\t": "&#9;", "\x01": ""})


def outcome(scheduler: Scheduler, extract: Any) -> tuple[Any, Any]:
    """The links, or the type of the exception, and how many more are counted as filtered."""
    before = stat(scheduler, "dupefilter/filtered") or 0
    try:
        links = [(type(x), x.url, x.text, x.fragment, x.nofollow) for x in extract()]
    except Exception as error:
        return type(error), None
    return links, (stat(scheduler, "dupefilter/filtered") or 0) - before


@pytest.mark.parametrize("examples", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_the_links_are_those_that_both_would_give(examples: int) -> None:
    """Page by page, while links are requested and forgotten: links, order, text, nofollow, counts, and exceptions."""
    hypothesis_settings(max_examples=examples)(
        given(
            arguments=st.one_of(st.just({}), ARGUMENTS),
            pages=sites(),
            recorded=st.sets(st.integers(0, 5)),
            forgotten=st.sets(st.integers(0, 9)),
        )(both_give_the_same)
    )()


def both_give_the_same(
    arguments: dict[str, Any], pages: list[tuple[Any, ...]], recorded: set[int], forgotten: set[int]
) -> None:
    scheduler = open_scheduler(spider=AskingSpider)
    spider: Any = scheduler.spider
    theirs, ours, of_unparsed = LinkExtractor(**arguments), *(UnseenLinkExtractor(**arguments) for _ in range(2))
    requested: list[Request] = []
    for turn, page in enumerate([*pages, *pages]):
        response = response_of(scheduler, page)
        expected = outcome(scheduler, lambda response=response: spider.unseen_links(theirs.extract_links(response)))
        assert outcome(scheduler, lambda response=response: ours.extract_links(response)) == expected
        unparsed = response.replace()
        assert outcome(scheduler, lambda response=unparsed: of_unparsed.extract_links(response)) == expected
        for number, (_, url, *_) in enumerate(expected[0] if isinstance(expected[0], list) else []):
            if number in recorded and "://" in url:
                requested.append(Request(url))
                scheduler.df.request_seen(requested[-1])
        if turn in forgotten and requested:
            scheduler.df.forget(requested.pop(0))  # type: ignore[attr-defined]  # BloomDupeFilter has it
    finish(scheduler)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        *(pytest.param(a, marks=pytest.mark.slow) for a in ({"canonicalize": True}, {"unique": False}, {"allow": "x"})),
    ],
)
def test_two_spellings_are_counted_as_both_would_count_them(scheduler: Scheduler, arguments: dict[str, Any]) -> None:
    """Any two together on a page, when all pages but one were seen: as one link or as two, odd fragments or plain."""
    spider: Any = scheduler.spider
    theirs, ours = LinkExtractor(**arguments), UnseenLinkExtractor(**arguments)
    seen(scheduler, *(f"http://a.example/docs/{name}" for name in ("page.html", "page.html?q", "a.html")))
    for _ in range(2):  # the filter is asked, then the memory
        ours.extract_links(page_of(scheduler, "".join(f'<a href="{href}">x</a>' for href in SPELLINGS)))
    pages = ["page.html?q#f", "b.html", "../docs/page.html", ""]
    for url, hrefs in [("page.html", SPELLINGS), *((url, SPELLINGS[:10]) for url in pages)]:
        for pair in combinations(hrefs, 2):
            html = "".join(f'<a href="{href.translate(ESCAPES)}">x</a>' for href in pair)
            response = page_of(scheduler, html, f"http://a.example/docs/{url}")
            expected = outcome(scheduler, lambda page=response: spider.unseen_links(theirs.extract_links(page)))
            for page in (response, response.replace()):  # parsed, and not yet
                assert outcome(scheduler, lambda page=page: ours.extract_links(page)) == expected, (url, pair)


# -- one by one --------------------------------------------------------------------------------------------------------


def test_what_was_seen_is_dropped_on_every_page(scheduler: Scheduler) -> None:
    """In any folder and spelling; the rest comes out with its text, page after page, until it is requested."""
    extractor = UnseenLinkExtractor()
    seen(scheduler, "http://a.example/docs/a.html")
    html = '<a href="a.html">A</a> <a href="/docs/a.html#x">A</a> <a href="b.html" rel="nofollow">B</a>'
    for _ in range(2):
        (link,) = extractor.extract_links(page_of(scheduler, html))
        assert (link.url, link.text, link.nofollow) == ("http://a.example/docs/b.html", "B", True)
    assert len(extractor.extract_links(page_of(scheduler, html, "http://a.example/x/"))) == 2
    seen(scheduler, "http://a.example/docs/b.html")
    assert extractor.extract_links(page_of(scheduler, html)) == []
    assert stat(scheduler, "bloom/links_dropped") == stat(scheduler, "dupefilter/filtered") == 2 + 2 + 1 + 3


def test_a_page_without_a_new_link_is_not_parsed(scheduler: Scheduler) -> None:
    """Its links are read from the text of its tags. One new link, and it is parsed; a comment is asked about, too."""
    extractor = UnseenLinkExtractor()
    seen(scheduler, "http://a.example/docs/a.html", "http://a.example/docs/page.html")
    html = '<!-- <a href="a.html">A</a> --><a href="a.html">A</a> <a href="#x">X</a><area href="/docs/page.html"> %s'
    for _ in range(2):
        page = page_of(scheduler, html % "<a name='z'>Z</a>")
        assert extractor.extract_links(page) == []
        assert page._cached_selector is None
    assert stat(scheduler, "dupefilter/filtered") == 2 * 3
    page = page_of(scheduler, html % '<!-- <a href="b.html">B</a> -->')
    assert extractor.extract_links(page) == []
    assert page._cached_selector is not None
    (link,) = extractor.extract_links(page_of(scheduler, html % "<a href=b.html>B</a>"))
    assert (link.url, link.text) == ("http://a.example/docs/b.html", "B")
    assert stat(scheduler, "dupefilter/filtered") == stat(scheduler, "bloom/links_dropped") == 4 * 3


def test_a_page_that_was_parsed_may_have_been_changed(scheduler: Scheduler) -> None:
    """By the spider, which may have put in a link: then the tree is what counts."""
    seen(scheduler, "http://a.example/docs/a.html")
    page = page_of(scheduler, '<a href="a.html">A</a>')
    page.selector.root.find(".//a").set("href", "b.html")
    assert urls_of(UnseenLinkExtractor().extract_links(page)) == ["http://a.example/docs/b.html"]


def test_a_response_that_makes_its_own_tree_is_believed(scheduler: Scheduler) -> None:
    """As those of a rendering browser may: what its body has is not all."""

    class Rendered(HtmlResponse):
        @property
        def selector(self) -> Selector:
            return Selector(text='<a href="b.html">B</a>')

    seen(scheduler, "http://a.example/docs/a.html")
    page = downloaded(scheduler, Rendered("http://a.example/docs/", body=b'<a href="a.html">', encoding="utf-8"))
    assert urls_of(UnseenLinkExtractor().extract_links(page)) == ["http://a.example/docs/b.html"]


def test_a_link_beyond_the_limits_counts_there_on_every_page() -> None:
    """Also one that the rules make equal to a page that was seen."""
    scheduler = open_scheduler(spider=AskingSpider, BLOOM_LOOP_GUARD=True, BLOOM_URL_RULES=["tracking"])
    seen(scheduler, "http://a.example/docs/a.html")
    extractor = UnseenLinkExtractor()
    beyond = f'<a href="a.html?{"&amp;".join(["utm_source=x"] * 3)}">A</a>'
    for turn in range(1, 4):
        assert extractor.extract_links(page_of(scheduler, beyond)) == []
        assert stat(scheduler, "bloom/loop/params") == turn
    assert len(extractor.extract_links(page_of(scheduler, f'{beyond}<a href="b.html">B</a>'))) == 1
    assert (stat(scheduler, "bloom/loop/params"), stat(scheduler, "dupefilter/filtered")) == (4, None)
    finish(scheduler)


def test_reading_in_vain_is_given_up(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each page hides a link that is new in a comment, reading saves nothing."""
    reads: list[bytes] = []
    read = HrefTags.read
    monkeypatch.setattr(HrefTags, "read", lambda self, body, encoding: reads.append(body) or read(self, body, encoding))
    extractor = UnseenLinkExtractor()
    seen(scheduler, "http://a.example/docs/a.html")
    for n in range(200):
        html = f'<a href="a.html">A</a><!-- <a href="print{n}.html">P</a> -->'
        assert extractor.extract_links(page_of(scheduler, html)) == []
    assert len(reads) < 50


def test_the_filter_is_asked_once_about_a_page(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time may be a round trip to a server."""
    asked: list[int] = []
    ask = scheduler.df.seen_fingerprints  # type: ignore[attr-defined]  # BloomDupeFilter has it
    monkeypatch.setattr(
        scheduler.df, "seen_fingerprints", lambda fingerprints: asked.append(len(fingerprints)) or ask(fingerprints)
    )
    seen(scheduler, "http://a.example/docs/a.html")
    html = '<a href="a.html">A</a> <a href="b.html">B</a> <a href="c.html">C</a> <a href="c.html#x">C</a>'
    assert len(UnseenLinkExtractor().extract_links(page_of(scheduler, html))) == 3
    assert [n for n in asked if n] == [3]


def test_a_forgotten_url_comes_out_again(scheduler: Scheduler) -> None:
    """What was dropped on a hundred pages is a link again as soon as its fingerprint is taken back."""
    extractor = UnseenLinkExtractor()
    html = '<a href="a.html">A</a> <a href="b.html">B</a>'
    seen(scheduler, "http://a.example/docs/a.html", "http://a.example/docs/b.html")
    assert extractor.extract_links(page_of(scheduler, html)) == []
    scheduler.df.forget(Request("http://a.example/docs/a.html"))  # type: ignore[attr-defined]  # BloomDupeFilter has it
    assert urls_of(extractor.extract_links(page_of(scheduler, html))) == ["http://a.example/docs/a.html"]


def test_links_to_parts_of_one_page_are_seen_together(scheduler: Scheduler) -> None:
    """Once one of them was, the next is dropped by memory; forgotten, all come out again."""
    extractor = UnseenLinkExtractor()
    (link,) = extractor.extract_links(page_of(scheduler, '<a href="a.html#x">A</a>'))
    seen(scheduler, link.url)
    for part in "xyz":
        assert extractor.extract_links(page_of(scheduler, f'<a href="a.html#{part}">A</a>')) == []
    scheduler.df.forget(Request(link.url))  # type: ignore[attr-defined]  # BloomDupeFilter has it
    for part in "xyzv":
        assert len(extractor.extract_links(page_of(scheduler, f'<a href="a.html#{part}">A</a>'))) == 1


def test_a_subclass_may_tell_parts_of_a_page_apart() -> None:
    """A fingerprint() of the user's that keeps fragments loses no part of a page to another."""

    class ByFragment(BloomDupeFilter):
        def fingerprint(self, request: Request) -> bytes:
            return fingerprint(request, keep_fragments=True)

    scheduler = open_scheduler(spider=AskingSpider, DUPEFILTER_CLASS=ByFragment)
    extractor = UnseenLinkExtractor()
    seen(scheduler, "http://a.example/docs/a.html#x")
    html = '<a href="a.html#x">A</a> <a href="a.html#y">B</a>'
    for _ in range(2):
        assert urls_of(extractor.extract_links(page_of(scheduler, html))) == ["http://a.example/docs/a.html#y"]
    finish(scheduler)


def test_allow_and_deny_see_the_fragment(scheduler: Scheduler) -> None:
    """Where a regular expression may ask for it, links are not judged by another one with a fragment."""
    html = '<a href="a.html#x">A</a> <a href="a.html#y">B</a> <a href="#x">C</a> <a href="#z">D</a>'
    found = UnseenLinkExtractor(allow="#[xz]", deny="page.html#z").extract_links(page_of(scheduler, html))
    assert [link.text for link in found] == ["A", "C"]


def test_fingerprints_held_back_for_a_scheduler_count_as_seen(scheduler: Scheduler) -> None:
    """A request that is not durable yet, or never will be, is a duplicate for links as well."""
    scheduler.df.hold_back()  # type: ignore[attr-defined]  # BloomDupeFilter has it
    seen(scheduler, "http://a.example/docs/a.html", "http://a.example/docs/b.html")
    scheduler.df.never_release(Request("http://a.example/docs/b.html"))  # type: ignore[attr-defined]  # likewise
    html = '<a href="a.html">A</a> <a href="b.html">B</a> <a href="c.html">C</a>'
    assert urls_of(UnseenLinkExtractor().extract_links(page_of(scheduler, html))) == ["http://a.example/docs/c.html"]


def test_two_crawls_with_the_same_extractor_do_not_mix(scheduler: Scheduler) -> None:
    """As when the same spider class crawls twice in one process: each drops what it has seen itself."""
    extractor = UnseenLinkExtractor()
    other = open_scheduler(spider=AskingSpider)
    html = '<a href="a.html">A</a> <a href="b.html">B</a>'
    seen(scheduler, "http://a.example/docs/a.html")
    seen(other, "http://a.example/docs/b.html")
    for _ in range(2):
        assert urls_of(extractor.extract_links(page_of(scheduler, html))) == ["http://a.example/docs/b.html"]
        assert urls_of(extractor.extract_links(page_of(other, html))) == ["http://a.example/docs/a.html"]
    finish(other)


def test_what_a_crawl_has_taught_it_goes_with_the_spider(scheduler: Scheduler) -> None:
    """An extractor of a class attribute outlives many crawls, and must not keep what they knew."""
    extractor = UnseenLinkExtractor()
    extractor.extract_links(page_of(scheduler, '<a href="a.html">A</a>'))
    assert len(extractor._memories) == 1
    del scheduler.spider._links  # as its spider goes; Scrapy's log handlers keep the one of a test
    gc.collect()
    assert len(extractor._memories) == 0


def test_new_arguments_are_followed(scheduler: Scheduler) -> None:
    """Spiders that change the extractor of a rule, for the domains they were given, get the links they ask for."""
    extractor = UnseenLinkExtractor(allow_domains="b.example")
    html = '<a href="a.html">A</a>'
    assert extractor.extract_links(page_of(scheduler, html)) == []
    extractor.allow_domains.add("a.example")
    assert len(extractor.extract_links(page_of(scheduler, html))) == 1
    extractor.deny_res.append(re.compile("a.html"))
    assert extractor.extract_links(page_of(scheduler, html)) == []


@pytest.mark.parametrize("most_pages", [1, 20, 10_000])
def test_memory_is_bounded(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, most_pages: int) -> None:
    """Over any number of folders and hrefs, what is remembered stays within the bound and one page, and stays right."""
    monkeypatch.setattr(href_memory, "MEMORY_BYTES", 50_000)
    monkeypatch.setattr(href_memory, "_MOST_PAGES", most_pages)
    extractor = UnseenLinkExtractor()
    seen(scheduler, "http://a.example/top.html")
    for folder in range(60):
        links = "".join(f'<a href="{folder}-{n}.html">x</a>' for n in range(5))
        html = f'{links}<a href="/top.html">x</a><a href="{"x" * 5000}">x</a>'
        assert len(extractor.extract_links(page_of(scheduler, html, f"http://a.example/{folder}/"))) == 6
        ((_, memory),) = extractor._memories.values()
        assert memory.nbytes == sum(table.nbytes for table in memory._tables.values()) < 60_000


@pytest.mark.parametrize("settings", [{}, {"BLOOM_URL_RULES": ["common"]}])
def test_links_to_parts_of_one_page_take_the_memory_of_one(settings: dict[str, Any]) -> None:
    """A hundred links that differ behind the # are one entry, and names of files in a folder are resolved together."""
    scheduler = open_scheduler(spider=AskingSpider, **settings)
    extractor = UnseenLinkExtractor()
    html = "".join(
        f'<a href="../x/a.html#p{n}">A</a> <a href="../x/{n}.html">B</a> <a href="#{n}">C</a>' for n in range(99)
    )
    assert len(extractor.extract_links(page_of(scheduler, html))) == 3 * 99
    ((_, memory),) = extractor._memories.values()
    assert memory is not None
    tables = memory._tables.values()
    assert sum(map(len, tables)) == 1 + 99
    assert {stem for table in tables for stem in table.stems} <= {
        *("", "../", "../x/"),
        *("http://a.example/", "http://a.example/docs/"),
    }
    finish(scheduler)


@pytest.mark.parametrize("settings", [{"dupefilter": SCRAPYS}, {"REQUEST_FINGERPRINTER_CLASS": ByPath}])
def test_where_the_filter_cannot_tell_it_is_scrapys_extractor(settings: dict[str, Any]) -> None:
    """With Scrapy's filter or a custom fingerprinter all links come out, and none is counted."""
    scheduler = open_scheduler(spider=AskingSpider, **settings)
    seen(scheduler, "http://a.example/docs/a.html")
    assert len(UnseenLinkExtractor().extract_links(page_of(scheduler, '<a href="a.html">A</a>'))) == 1
    assert stat(scheduler, "bloom/links_dropped") is None
    finish(scheduler)


def test_without_the_mixin_it_is_scrapys_extractor_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Once: whoever forgets UnseenLinks, or puts it behind Spider, is told."""
    extractor = UnseenLinkExtractor()
    for _ in range(2):
        assert len(extractor.extract_links(HtmlResponse("http://a.example/", body=b'<a href="a.html">A</a>'))) == 1
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "has scrapy_bloom.UnseenLinks as its first base class" in message


def test_a_replaced_response_still_belongs_to_its_crawl(scheduler: Scheduler) -> None:
    """Callbacks that mend the HTML before they extract lose nothing by it."""
    seen(scheduler, "http://a.example/docs/a.html")
    response = page_of(scheduler, "").replace(body=b'<a href="a.html">A</a>')
    assert UnseenLinkExtractor().extract_links(response) == []


def test_with_dupefilter_debug_every_dropped_link_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Those that never became a Link as well."""
    scheduler = open_scheduler(spider=AskingSpider, DUPEFILTER_DEBUG=True)
    seen(scheduler, "http://a.example/docs/a.html")
    with caplog.at_level(logging.DEBUG, logger="scrapy_bloom"):
        UnseenLinkExtractor().extract_links(page_of(scheduler, '<a href="a.html">A</a>'))
    assert [record.getMessage() for record in caplog.records] == [
        "Filtered duplicate link: http://a.example/docs/a.html"
    ]
    finish(scheduler)


def test_a_subclass_with_rules_of_its_own_is_obeyed(scheduler: Scheduler) -> None:
    """Overridden parts of Scrapy's extractor, which may look at anything, are asked for every link."""

    class OnlyNext(UnseenLinkExtractor):
        def _link_allowed(self, link: Link) -> bool:
            return link.text == "next" and super()._link_allowed(link)

    seen(scheduler, "http://a.example/docs/c.html")
    extractor = OnlyNext()
    html = '<a href="a.html">A</a> <a href="b.html">next</a> <a href="c.html">next</a>'
    for _ in range(2):
        assert urls_of(extractor.extract_links(page_of(scheduler, html))) == ["http://a.example/docs/b.html"]


def test_hrefs_and_selectors_are_taken_with_their_response(scheduler: Scheduler) -> None:
    """unseen_links() gives back what it was given, for response.follow_all(), which makes the same URLs of it."""
    spider: Any = scheduler.spider
    seen(scheduler, "http://a.example/docs/a.html", "http://a.example/docs/?%E4=1")
    html = '<a href=" a.html#x ">A</a> <a href="b.html">B</a> <a>C</a> <a href="/docs/?\u00e4=1">D</a>'
    response = downloaded(scheduler, HtmlResponse("http://a.example/docs/", body=html, encoding="cp1252"))
    for _ in range(2):
        assert spider.unseen_links(response.css("a::attr(href)").getall(), response) == ["b.html"]
    for query in ("a::attr(href)", "a"):
        unseen = spider.unseen_links(response.css(query), response)
        assert [request.url for request in response.follow_all(unseen)] == ["http://a.example/docs/b.html"]
    assert spider.unseen_links([Link("http://a.example/docs/a.html"), Link("http://a.example/")], response) == [
        Link("http://a.example/")
    ]
    assert stat(scheduler, "bloom/links_dropped") == 2 * 2 + 2 * 2 + 1


def test_pages_in_utf_16_get_the_urls_that_their_requests_have(scheduler: Scheduler) -> None:
    """Older w3lib appends the byte order mark to each URL: another page than the one with that link in UTF-8."""
    spider: Any = scheduler.spider
    href = "http://b.example/a.html"
    known = set()
    for encoding in ("utf-8", "utf-16"):
        page = downloaded(
            scheduler, HtmlResponse("http://a.example/", body=f'<a href="{href}">A</a>', encoding=encoding)
        )
        request = page.follow(href)
        is_new = fingerprint(request) not in known
        assert bool(spider.unseen_links([href], page)) == bool(UnseenLinkExtractor().extract_links(page)) == is_new
        scheduler.df.request_seen(request)
        known.add(fingerprint(request))


def followed(response: TextResponse, href: str) -> Request | None:
    try:
        return response.follow(href)
    except (ValueError, AttributeError):
        return None


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.slow)])
def test_hrefs_are_dropped_where_their_requests_would_be(examples: int) -> None:
    """What response.follow() makes of a string, page after page, is what is asked about it."""
    hypothesis_settings(max_examples=examples)(
        given(pages=sites(), recorded=st.sets(st.integers(0, 5)))(those_of_known_requests_are_dropped)
    )()


def those_of_known_requests_are_dropped(pages: list[tuple[Any, ...]], recorded: set[int]) -> None:
    scheduler = open_scheduler(spider=AskingSpider)
    spider: Any = scheduler.spider
    known = set()
    for page in [*pages, *pages]:
        response = response_of(scheduler, page)
        hrefs = [value for element in page[3] for _, value in element[1]]
        unseen = spider.unseen_links(hrefs, response)
        expected = []
        for href in hrefs:
            request = followed(response, href)
            if request is None or fingerprint(request) not in known:
                expected.append(href)
        assert unseen == expected
        for number, href in enumerate(unseen):
            request = followed(response, href)
            if request is not None and number in recorded:
                scheduler.df.request_seen(request)
                known.add(fingerprint(request))
    finish(scheduler)


def test_limits_of_the_loop_guard_hold_for_links() -> None:
    """A trap's links are dropped on every page, counted for their limit and not as duplicates, as by the filter."""
    scheduler = open_scheduler(spider=AskingSpider, BLOOM_LOOP_GUARD=True)
    extractor = UnseenLinkExtractor()
    html = f'<a href="{"shop/" * 9}">A</a> <a href="b.html">B</a>'
    for _ in range(2):
        assert urls_of(extractor.extract_links(page_of(scheduler, html))) == ["http://a.example/docs/b.html"]
    assert scheduler.stats is not None
    counted = {name: n for name, n in scheduler.stats.get_stats().items() if name.startswith("bloom/loop/")}
    assert counted == {"bloom/loop/tandem": 2}
    assert stat(scheduler, "dupefilter/filtered") is None
    finish(scheduler)


def test_url_rules_hold_for_links() -> None:
    """What counts as the same page for requests does so for links."""
    scheduler = open_scheduler(spider=AskingSpider, BLOOM_URL_RULES=["tracking"])
    seen(scheduler, "http://a.example/docs/a.html?utm_source=b")
    html = '<a href="a.html?utm_source=c">A</a> <a href="a.html">A</a> <a href="a.html?page=2">B</a>'
    found = UnseenLinkExtractor().extract_links(page_of(scheduler, html))
    assert urls_of(found) == ["http://a.example/docs/a.html?page=2"]
    finish(scheduler)
