"""Finds the filter that answers for the links of a response: :class:`CrawlLinks`, one for each crawl.

Knows the crawler's signals and stats. Does not know which filter that is, nor what a link is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request, signals

from scrapy_bloom.old.crawl.link_filter import link_filter_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_bloom.old.crawl.href_memory import Known
    from scrapy_bloom.old.crawl.href_sift import Found
    from scrapy_bloom.old.crawl.link_filter import LinkFilter

logger = logging.getLogger(__name__)

# One for the whole process, since an extractor is given only a response. Keyed by the request, which stays the same
# under response.replace().
_crawls: WeakKeyDictionary[Request, CrawlLinks] = WeakKeyDictionary()


def crawl_of(response: Response) -> CrawlLinks | None:
    """Return what the crawl that downloaded *response* knows; None if its spider has no ``UnseenLinks``."""
    return None if response.request is None else _crawls.get(response.request)


class Answer(NamedTuple):
    """What the filter said of a link."""

    is_seen: bool
    epoch: int | None
    """In which it was seen, if it was."""


_NEW = Answer(is_seen=False, epoch=None)


class CrawlLinks:
    """The filter of one crawl, and the counts of the links dropped before it."""

    def __init__(self, crawler: Crawler) -> None:
        """Note the responses of *crawler* from now on."""
        self._crawler = crawler
        self._filter: LinkFilter | None = None
        self.is_debugging = crawler.settings.getbool("DUPEFILTER_DEBUG")
        """Whether every link that is dropped is logged."""
        crawler.signals.connect(self._received, signal=signals.response_received)

    def _received(self, request: Request) -> None:
        _crawls[request] = self

    @property
    def filter(self) -> LinkFilter | None:
        """The part of the filter that answers for links; None if the duplicate filter has none."""
        if self._filter is None:
            for _, answer in self._crawler.signals.send_catch_log(link_filter_wanted):
                if hasattr(answer, "seen_fingerprints"):  # else a Failure, which is in the log
                    self._filter = answer
        return self._filter

    @property
    def fingerprint_url(self) -> Callable[[str], bytes] | None:
        """Makes the fingerprint of a URL's request; None if nobody can tell which links were seen."""
        return None if self.filter is None else self.filter.fingerprint_url

    @property
    def ignores_fragments(self) -> bool:
        """Whether URLs that differ only in their fragment certainly have one fingerprint."""
        return self.filter is not None and self.filter.ignores_fragments

    @property
    def certain(self) -> int:
        """The epoch in which a link once seen is a duplicate without asking again; -1 if there is none."""
        epoch = None if self.filter is None else self.filter.epoch
        return -1 if epoch is None else epoch

    def unseen(
        self,
        found: Sequence[Found],
        dropped: Sequence[str] = (),
        n_more: int = 0,
        answers: dict[Known, Answer] | None = None,
    ) -> list[Found]:
        """Return those of *found* that are within the limits and were not seen; asks about all of them at once.

        Counts and logs those dropped as the scheduler and the filter would have done with their requests. URLs of
        links *dropped* before count with them, and so do *n_more*, which are not logged. *answers* are those that
        :meth:`ask` gave for this page.
        """
        link_filter = self.filter
        if link_filter is None or not found:
            self._drop(dropped, n_more)
            return list(found)
        found = _within_limits(link_filter, found)
        answers = answers or {}
        answers = {**answers, **self.ask([one.known for one in found if one.known not in answers])}
        for one in found:
            one.known.seen_in = answers[one.known].epoch  # not before the limits have let it pass
        self._drop([*dropped, *(one.url for one in found if answers[one.known].is_seen)], n_more)
        return [one for one in found if not answers[one.known].is_seen]

    def ask(self, links: Iterable[Known]) -> dict[Known, Answer]:
        """Return whether each of *links* was seen; asks about all of them at once, counts and remembers nothing."""
        answers: dict[Known, Answer] = dict.fromkeys(links, _NEW)
        link_filter = self.filter
        if link_filter is None or not answers:
            return answers
        asked = [known for known in answers if known.fingerprint is not None]
        epoch = link_filter.epoch
        seen = link_filter.seen_fingerprints([known.fingerprint for known in asked if known.fingerprint is not None])
        if epoch is None:
            epoch = link_filter.epoch  # asking may have confirmed the filter
        answers.update(
            (known, Answer(is_seen=True, epoch=epoch)) for known, is_seen in zip(asked, seen, strict=True) if is_seen
        )
        return answers

    def _drop(self, urls: Sequence[str], n_more: int) -> None:
        """Count links to *urls*, and *n_more*, that were seen before, and log those to *urls* if asked to."""
        stats, n = self._crawler.stats, len(urls) + n_more
        if stats is not None and n:
            stats.inc_value("dupefilter/filtered", n)
            stats.inc_value("bloom/links_dropped", n)
        if self.is_debugging:
            for url in urls:
                logger.debug("Filtered duplicate link: %(link)s", {"link": url}, extra={"spider": self._crawler.spider})


def _within_limits(link_filter: LinkFilter, found: Sequence[Found]) -> Sequence[Found]:
    """Return those of *found* within the limits of the loop guard, and note that they are."""
    doubtful = [one for one in found if not one.known.is_within_limits]
    if not doubtful:
        return found
    held_back = set()
    for one, is_allowed in zip(doubtful, link_filter.within_limits([one.url for one in doubtful]), strict=True):
        if is_allowed:
            one.known.is_within_limits = True  # the limits do not look at the fragment
        else:
            held_back.add(one.place)
    return [one for one in found if one.place not in held_back] if held_back else found
