"""Finds the filter that answers for the links of a response: :class:`CrawlLinks`, one for each crawl.

Knows the crawler's signals and stats. Does not know which filter that is, nor what a link is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from scrapy import Request, signals

from scrapy_bloom.crawl.link_filter import link_filter_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_bloom.crawl.href_memory import Known
    from scrapy_bloom.crawl.link_filter import LinkFilter

logger = logging.getLogger(__name__)

T = TypeVar("T")

# One for the whole process, since an extractor is given nothing but a response. By its request, which stays the same
# under response.replace().
_crawls: WeakKeyDictionary[Request, CrawlLinks] = WeakKeyDictionary()


def crawl_of(response: Response) -> CrawlLinks | None:
    """Return what the crawl that downloaded *response* knows; None if its spider has no ``UnseenLinks``."""
    return None if response.request is None else _crawls.get(response.request)


class CrawlLinks:
    """The filter of one crawl, and the counts of the links dropped before it."""

    def __init__(self, crawler: Crawler) -> None:
        """Note the responses of *crawler* from now on."""
        self._crawler = crawler
        self._filter: LinkFilter | None = None
        self._is_debugging = crawler.settings.getbool("DUPEFILTER_DEBUG")
        crawler.signals.connect(self._received, signal=signals.response_received)

    def _received(self, request: Request) -> None:
        _crawls[request] = self

    @property
    def filter(self) -> LinkFilter | None:
        """What answers for links; None if the duplicate filter cannot."""
        if self._filter is None:
            for _, answer in self._crawler.signals.send_catch_log(link_filter_wanted):
                if hasattr(answer, "seen_fingerprints"):  # else it is the Failure of a receiver, which is in the log
                    self._filter = answer
        return self._filter

    @property
    def fingerprint_url(self) -> Callable[[str], bytes] | None:
        """The fingerprint of a URL's request; None if nobody can tell which links were seen."""
        return None if self.filter is None else self.filter.fingerprint_url

    def unseen(self, things: Sequence[T], knowns: Sequence[Known]) -> list[T]:
        """Return those of *things*, with *knowns* beside them, that are within the limits and were not seen.

        Asks about all uncertain ones at once. Counts and logs those dropped as the scheduler and the filter would have
        done with their requests.
        """
        link_filter = self.filter
        if link_filter is None:
            return list(things)
        doubtful = [known for known in knowns if not known.is_within_limits]
        if doubtful:
            allowed = link_filter.within_limits([known.url for known in doubtful])
            for known, is_allowed in zip(doubtful, allowed, strict=True):
                known.is_within_limits = is_allowed
            if False in allowed:
                things = [thing for thing, known in zip(things, knowns, strict=True) if known.is_within_limits]
                knowns = [known for known in knowns if known.is_within_limits]
        epoch = link_filter.epoch
        certain = -1 if epoch is None else epoch
        seen = [known.seen_in == certain for known in knowns]
        places, fingerprints = [], []
        for place, known in enumerate(knowns):
            if not seen[place] and known.fingerprint is not None:
                places.append(place)
                fingerprints.append(known.fingerprint)
        if places:
            answers = link_filter.seen_fingerprints(fingerprints)
            if epoch is None:
                epoch = link_filter.epoch  # asking may have made it certain
            for place, is_seen in zip(places, answers, strict=True):
                seen[place] = is_seen
                knowns[place].seen_in = epoch if is_seen else None
        if True in seen:
            self._count_and_log(known.url for known, is_seen in zip(knowns, seen, strict=True) if is_seen)
        return [thing for thing, is_seen in zip(things, seen, strict=True) if not is_seen]

    def _count_and_log(self, dropped: Iterable[str]) -> None:
        urls = list(dropped)
        stats = self._crawler.stats
        if stats is not None:
            stats.inc_value("dupefilter/filtered", len(urls))
            stats.inc_value("bloom/links_dropped", len(urls))
        if self._is_debugging:
            for url in urls:
                logger.debug("Filtered duplicate link: %(link)s", {"link": url}, extra={"spider": self._crawler.spider})
