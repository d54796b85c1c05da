""":class:`UnseenLinks`: asks the filter about links before they become requests.

On a link-rich site 99 % of all look-ups are duplicates, and Scrapy spends over 100 microseconds on each: it builds the
request, passes it through middlewares and signals, and drops it in the scheduler. Asked here, each costs two.

Knows the spider. Does not know the filter: ``crawl/crawl_links.py`` finds it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin

from parsel import Selector, SelectorList
from scrapy.http import TextResponse
from scrapy.link import Link
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace
from w3lib.url import safe_url_string

from scrapy_bloom.old.crawl.crawl_links import CrawlLinks
from scrapy_bloom.old.crawl.garbage import pass_over_startup
from scrapy_bloom.old.crawl.href_memory import HrefMemory, Known
from scrapy_bloom.old.crawl.href_page import page_of
from scrapy_bloom.old.crawl.href_sift import Found, sift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

LinkT = TypeVar("LinkT", Link, str, Selector)


class UnseenLinks:
    """Spider mixin that drops the links which the duplicate filter would drop as requests.

    Put it first among the bases of the spider. Then an ``UnseenLinkExtractor`` finds unseen links only, and
    :meth:`unseen_links` picks them out of any other links::

        class MySpider(UnseenLinks, CrawlSpider):
            rules = [Rule(UnseenLinkExtractor(), follow=True)]

            def parse_other(self, response):
                hrefs = response.css("a::attr(href)").getall()
                yield from response.follow_all(self.unseen_links(hrefs, response))

    For links that become plain GET requests to their own URL. A link whose request gets another method, a body,
    ``dont_filter`` or another URL on its way to the scheduler must not be asked about here: its page could be missed.

    While the spider crawls, what the process had at its start is kept out of garbage collections (``gc.freeze()``).
    """

    crawler: Crawler
    _links: CrawlLinks | None = None
    _hrefs: HrefMemory | None = None
    _has_warned = False

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Build the spider as its other bases do, and note the responses of *crawler* as its own."""
        spider: Self = super().from_crawler(crawler, *args, **kwargs)  # type: ignore[misc] # scrapy.Spider's
        spider._links = CrawlLinks(crawler)
        pass_over_startup(crawler)
        return spider

    def unseen_links(self, links: Iterable[LinkT], response: Response | None = None) -> list[LinkT]:
        """Return the *links* not seen yet, in order, without recording them.

        Takes ``Link`` objects and absolute URLs. With the *response* that the links are from, it takes all that
        ``response.follow_all()`` takes: relative URLs, too, and selectors of links or of their ``href``.

        Duplicates count in ``dupefilter/filtered``, as in the scheduler, and in ``bloom/links_dropped``; links that a
        limit of the loop guard objects to count in ``bloom/loop/<limit>`` alone.
        With a filter that cannot answer (of another class, or with a custom fingerprinter) all links pass. So do
        links whose URL cannot be known; if the *response* is what is missing, a WARNING says so once.
        """
        as_selectors = isinstance(links, SelectorList)
        links = list(links)
        crawl = self._links
        if crawl is None:  # from_crawler() of an earlier base did not call ours
            crawl = self._links = CrawlLinks(self.crawler)
        if crawl.filter is not None:
            fingerprint_url = crawl.fingerprint_url
            if fingerprint_url is not None and isinstance(response, TextResponse):
                links = self._unseen_on(response, links, crawl, fingerprint_url)
            else:
                found = [Found(place, *self._known(link, fingerprint_url)) for place, link in enumerate(links)]
                links = [links[one.place] for one in crawl.unseen(found)]
        # follow_all() leaves out selectors without a link, but only in a list of their own.
        return SelectorList(links) if as_selectors else links  # type: ignore[type-var] # then all are selectors

    def _unseen_on(
        self, response: TextResponse, links: list[LinkT], crawl: CrawlLinks, fingerprint_url: Callable[[str], bytes]
    ) -> list[LinkT]:
        """Return those of *links*, given as the page has them, that were not seen yet."""
        try:
            base = get_base_url(response)
        except ValueError:  # let it pass: response.follow() then fails where the spider sees it
            return links
        raws = [_href(link) for link in links]
        if self._hrefs is None:
            self._hrefs = HrefMemory(_followed, fingerprint_url, shares=crawl.ignores_fragments, passes_unresolved=True)
        page = page_of(self._hrefs, base, response.url, response.encoding)
        if page is not None:
            found, seen, n_more = sift(page, raws, crawl.certain, is_unique=False, names_seen=crawl.is_debugging)
        else:
            found, seen, n_more = [], [], 0
            for place, raw in enumerate(raws):
                if raw is not None:
                    url = _followed(raw, base, response.url, response.encoding) or ""
                    found.append(Found(place, url, Known.of(url, fingerprint_url)))
        unseen = {one.place for one in crawl.unseen(found, seen, n_more)}
        return [link for place, link in enumerate(links) if place in unseen or raws[place] is None]

    def _known(self, link: LinkT, fingerprint_url: Callable[[str], bytes] | None) -> tuple[str, Known]:
        """Return the URL of *link*, and what is known of it, without its page."""
        url = link if isinstance(link, str) else getattr(link, "url", "")
        if ":" not in url and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "unseen_links() was given %(link)r, whose URL it cannot know, and lets such links pass. Give it the "
                "response, too: self.unseen_links(links, response).",
                {"link": link},
                extra={"spider": self},
            )
        return url, Known.of(url, fingerprint_url)


def _href(link: Link | str | Selector) -> str | None:
    """Return the URL that ``response.follow(link)`` joins with that of the page, None if it would raise."""
    if isinstance(link, str):
        return link
    if isinstance(link, Link):
        return link.url
    root: Any = getattr(link, "root", None)
    if getattr(root, "tag", None) in ("a", "link"):
        root = root.get("href")
    return strip_html5_whitespace(root) if isinstance(root, str) else None


def _followed(raw: str, base: str, _url: str, encoding: str) -> str | None:
    """Return the URL of the request that ``response.follow(raw)`` makes, None if that fails."""
    try:
        return safe_url_string(urljoin(base, raw), encoding=encoding)
    except ValueError:
        return None
