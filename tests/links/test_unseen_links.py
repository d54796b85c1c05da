from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy.http import HtmlResponse, Response
from scrapy.link import Link
from scrapy.selector import SelectorList
from scrapy.utils.request import fingerprint
from scrapy.utils.response import get_base_url

from tests.links.crawling import A, AskingSpider, B, OpenCrawl, opened, page
from tests.links.strategies import BASES, HREFS, URLS
from tests.support.crawler import quick_crawler


def followed(response: Response, link: Any) -> bytes | None:
    """The fingerprint of the request that response.follow() makes; None if it raises."""
    try:
        return fingerprint(response.follow(link))
    except ValueError:
        return None


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
                assert followed(response, "a.html") is None
                continue
            for href in hrefs:
                print_ = followed(response, href)
                passes = print_ is None or print_ not in known or "://" not in get_base_url(response)
                assert (href in unseen) is passes, href
            for number, href in enumerate(hrefs):
                if number + turn in recorded and followed(response, href) is not None:
                    crawl.filter.request_seen(response.follow(href))
                    known.add(followed(response, href))


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
