"""Finds the unseen links of a page with Scrapy's ``LinkExtractor``, which gets only these.

On a site with many links, Scrapy's extractor resolves, quotes and checks the same links on every page, only for the
filter to drop their requests. Here one XPath lists their text, and a page without a new one is done.
"""

from __future__ import annotations

import logging
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from lxml import etree  # type: ignore[import-untyped] # its stubs are a package of their own
from parsel import Selector, SelectorList
from scrapy.http import TextResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.response import get_base_url
from w3lib.html import HTML5_WHITESPACE, strip_html5_whitespace

from scrapy_bloom.components.hooks import LINK_EXTRACTOR
from scrapy_bloom.components.spider_crawl import SpiderCrawl, crawl_handling, crawl_of
from scrapy_bloom.links.memory import LinkMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

_find_hrefs = etree.XPath("//a/@href | //area/@href", smart_strings=False)

_CHANGE_WHAT_IS_A_LINK = {"tags", "attrs", "deny_tags", "deny_attrs", "process_value", "strip", "restrict_text"}
"""With these arguments, the ``href`` of an ``a`` or ``area`` alone does not determine the link."""


class UnseenLinkExtractor(LinkExtractor):
    """Scrapy's ``LinkExtractor`` without the links that were seen before; takes all its arguments.

    In a rule of a ``CrawlSpider``, or in a callback::

        rules = [Rule(UnseenLinkExtractor(allow="/docs/"), follow=True)]

    Returns the links of ``LinkExtractor`` whose requests the duplicate filter would not drop, in the same order and
    with the same text. None is recorded as seen. Its memory is separate for each crawl and takes some 30 MB at most.
    With ``tags``, ``attrs``, ``deny_tags``, ``deny_attrs``, ``process_value``,
    ``restrict_text`` or ``strip`` it first extracts all links, and then drops those seen.

    For links that become plain GET requests to their own URL: see :class:`~scrapy_bloom.UnseenLinks`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = signature(LinkExtractor).bind(*args, **kwargs).arguments
        added = type(self).__mro__[: type(self).__mro__.index(LinkExtractor)]
        is_usual = not any("_link_allowed" in vars(cls) for cls in added)
        self._is_plain = is_usual and not _CHANGE_WHAT_IS_A_LINK & given.keys()
        self._memories: WeakKeyDictionary[SpiderCrawl, LinkMemory] = WeakKeyDictionary()
        self._has_warned = False

    def extract_links(self, response: TextResponse) -> list[Link]:
        """Return the links of *response* that were not seen before, as ``LinkExtractor.extract_links()`` would."""
        crawl = crawl_handling(response.request)
        if crawl is None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "UnseenLinkExtractor extracts all links, as Scrapy's LinkExtractor does: %s does not belong to a crawl "
                "with scrapy_bloom.BloomDupeFilter",
                response,
            )
        # Outside of HTML, names have namespaces.
        if crawl is None or response.selector.type != "html" or LINK_EXTRACTOR in crawl.missing_hooks:
            return super().extract_links(response)
        known = crawl.core.decisions, crawl.fingerprints
        memory = self._memories.get(crawl)
        if memory is None:
            memory = LinkMemory(lambda url: self._link_allowed(Link(url))) if self._is_plain else LinkMemory()
            self._memories[crawl] = memory
        base = get_base_url(response)
        if not self._is_plain:
            links = super().extract_links(response)
            new = memory.new([link.url for link in links], base, "utf-8", *known)  # they are quoted already
            return [link for link in links if link.url in new]

        stripped = [href.strip(HTML5_WHITESPACE) for href in self._hrefs(response)]
        new = memory.new(stripped, base, response.encoding, *known)
        if not new:
            return []
        # Scrapy's own work begins with a list of elements and their links. It takes a third of that work.
        scrapys = self.link_extractor
        scrapys._iter_links = partial(_links, wanted=new)  # type: ignore[method-assign]
        try:
            return super().extract_links(response)
        finally:
            del scrapys._iter_links  # and its class has it again

    def _hrefs(self, response: TextResponse) -> list[str]:
        """Return the raw links of *response* in the parts that the extractor looks at."""
        if not self.restrict_xpaths:
            hrefs: list[str] = _find_hrefs(response.selector.root)
            return hrefs
        parts = [part.root for xpath in self.restrict_xpaths for part in response.xpath(xpath)]
        return [href for part in parts for _, _, href in _links(part)]


def _links(part: Any, wanted: set[str] | None = None) -> Iterator[tuple[Any, str, str]]:
    """Yield the elements of *part* whose ``href`` is *wanted*, as Scrapy's extractor does."""
    for element in part.iter("a", "area"):
        href = element.get("href")
        if href is not None and (wanted is None or href.strip(HTML5_WHITESPACE) in wanted):
            yield element, "href", href


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
