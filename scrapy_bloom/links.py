""":class:`UnseenLinks`: asks the filter about links before they become requests.

On a link-rich site 99 % of all look-ups are duplicates, and Scrapy spends over 100 microseconds on each: it builds the
request, passes it through middlewares and signals, and drops it in the scheduler. Asked here, it costs two.

Knows the spider and its crawler's signals. Does not know the filter: whichever filter can answer does so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from scrapy.link import Link

from scrapy_bloom.crawl.link_filter import link_filter_wanted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.link_filter import LinkFilter

logger = logging.getLogger(__name__)

LinkT = TypeVar("LinkT", Link, str)


class UnseenLinks:
    """Spider mixin with one method, which drops the links that the duplicate filter would drop as requests.

    In the rules of a ``CrawlSpider``, or in any callback::

        class MySpider(UnseenLinks, CrawlSpider):
            rules = [Rule(LinkExtractor(), process_links="unseen_links", follow=True)]

        yield from response.follow_all(self.unseen_links(extractor.extract_links(response)))

    For links that become plain GET requests to their own URL. A link whose request gets another method, a body,
    ``dont_filter`` or another URL on its way to the scheduler must not be asked about here: its page could be missed.
    """

    crawler: Crawler
    _link_filter: LinkFilter | None = None
    _has_warned = False

    def unseen_links(self, links: Iterable[LinkT]) -> list[LinkT]:
        """Return the *links* (``Link`` objects or absolute URLs) not seen yet, in order, without recording them.

        Duplicates count in ``dupefilter/filtered``, as in the scheduler, and in ``bloom/links_dropped``; links that a
        limit of the loop guard objects to count in ``bloom/loop/<limit>`` alone.
        With a filter that cannot answer (of another class, or with a custom fingerprinter) all links pass. So do
        relative URLs and selectors, whose URL is not known here; a WARNING says so once.
        """
        links = list(links)
        link_filter = self._link_filter or self._find_link_filter()
        if link_filter is None:
            return links
        urls = [link if isinstance(link, str) else getattr(link, "url", "") for link in links]
        allowed = link_filter.within_limits(urls)
        if not all(allowed):
            links = [link for link, is_allowed in zip(links, allowed, strict=True) if is_allowed]
            urls = [url for url, is_allowed in zip(urls, allowed, strict=True) if is_allowed]
        if not self._has_warned and not all(":" in url for url in urls):
            self._has_warned = True
            logger.warning(
                "unseen_links() was given %(link)r, whose URL it cannot know, and lets such links pass. It takes Link "
                "objects, or absolute URLs as response.urljoin() makes them.",
                {"link": next(link for link, url in zip(links, urls, strict=True) if ":" not in url)},
                extra={"spider": self},
            )
        seen = link_filter.seen_urls(urls)
        dropped = [link for link, is_seen in zip(links, seen, strict=True) if is_seen]
        if dropped and self.crawler.stats is not None:
            self.crawler.stats.inc_value("dupefilter/filtered", len(dropped))
            self.crawler.stats.inc_value("bloom/links_dropped", len(dropped))
            if self.crawler.settings.getbool("DUPEFILTER_DEBUG"):
                for link in dropped:
                    logger.debug("Filtered duplicate link: %(link)s", {"link": link}, extra={"spider": self})
        return [link for link, is_seen in zip(links, seen, strict=True) if not is_seen]

    def _find_link_filter(self) -> LinkFilter | None:
        for _, answer in self.crawler.signals.send_catch_log(link_filter_wanted):
            if hasattr(answer, "seen_urls"):  # anything else is the Failure of a receiver, which is in the log
                self._link_filter = answer
        return self._link_filter
