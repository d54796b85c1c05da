"""Drops seen links before a callback makes requests of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from parsel import Selector, SelectorList
from scrapy.http import TextResponse
from scrapy.link import Link
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace

from scrapy_bloom.components.spider_crawl import crawl_of
from scrapy_bloom.links.memory import LinkMemory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.crawler import Crawler
    from scrapy.http import Response

LinkT = TypeVar("LinkT", Link, str, Selector)


class UnseenLinks:
    """Spider mixin that drops the links which the duplicate filter would drop as requests.

    ::

        class MySpider(UnseenLinks, scrapy.Spider):
            def parse(self, response):
                hrefs = response.css("a::attr(href)").getall()
                yield from response.follow_all(self.unseen_links(hrefs, response))

    For links that become plain GET requests to their own URL. A link whose request gets another method, a body,
    ``dont_filter`` or another URL on its way to the scheduler must not be asked about here: its page could be missed.
    """

    crawler: Crawler
    _link_memory: LinkMemory | None = None

    def unseen_links(self, links: Iterable[LinkT], response: Response | None = None) -> list[LinkT]:
        """Return the *links* not seen yet, in order, without recording them.

        Takes ``Link`` objects and absolute URLs. With the *response* that the links are from, it takes all that
        ``response.follow_all()`` takes: relative URLs, too, and selectors of links or of their ``href``.

        Seen links count in ``dupefilter/filtered``, as in the scheduler, and in ``bloom/links_dropped``. Links beyond a
        limit of the loop guard count in ``bloom/loop/<limit>``. Links whose URL cannot be determined are kept. So are
        all links if the filter cannot answer, because it is of another class or has a custom fingerprinter.
        """
        memory = self._link_memory
        if memory is None:
            memory = self._link_memory = LinkMemory()
        # follow_all() leaves out selectors without a link, but only in a list of their own.
        kind: Any = type(links) if isinstance(links, SelectorList) else list
        links = list(links)
        hrefs = [_href(link) for link in links]
        base, encoding = "http://unknown.invalid/", "utf-8"  # a site without pages, so relative links pass
        if isinstance(response, TextResponse):
            base, encoding = get_base_url(response), response.encoding
        new = {href for href in hrefs if href is not None}
        if (crawl := crawl_of(self.crawler)) is not None:
            new = memory.new(new, base, encoding, crawl.core.decisions, crawl.fingerprints)
        kept: list[LinkT] = kind(link for link, href in zip(links, hrefs, strict=True) if href is None or href in new)
        return kept


def _href(link: Link | str | Selector) -> str | None:
    """Return the text that ``response.follow(link)`` joins with the page's URL; None if it would raise."""
    if isinstance(link, Link):
        return link.url
    if isinstance(link, Selector):
        root = link.root
        link = root.get("href") if getattr(root, "tag", None) in ("a", "link") else root
        return strip_html5_whitespace(link) if isinstance(link, str) else None
    return link
