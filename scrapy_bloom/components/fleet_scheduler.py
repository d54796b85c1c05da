"""FleetScheduler: DurableScheduler over the fleet's store."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from scrapy_bloom.components.scheduler import DurableScheduler
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.crawl.hooks import wake_engine
from scrapy_bloom.crawl.startup import log_start_errors
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.job.feed_journal import FeedJournal

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class FleetScheduler(DurableScheduler):
    """For ``SCHEDULER``: many workers share filter and queue on the server of ``BLOOM_REDIS_URL``.

    Each URL is fetched once, by whichever worker comes first; a worker that is killed loses nothing; all end by
    themselves when nothing is pending or in hand anywhere. ``docs/fleet.md`` says how.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the server cannot be used, or its queue is not for these settings.

    """

    shares_requests = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler of *crawler*, and its duplicate filter."""
        with log_start_errors(logger):
            from scrapy_bloom.fleet.store import FleetStore  # imports redis

            crawl = Crawl.of(crawler)
            wake, journal = partial(wake_engine, crawler), partial(_open_journal, crawl)
            crawl.setup.make_store = partial(FleetStore, effects=crawl.parts, wake=wake, open_journal=journal)
            scheduler = super().from_crawler(crawler)
            if not crawl.setup.filter:
                need = "FleetScheduler needs scrapy_bloom.BloomDupeFilter: workers share its filter"
                raise SettingsError([f"DUPEFILTER_CLASS is {crawler.settings['DUPEFILTER_CLASS']!r}; {need}"])
            return scheduler


def _open_journal(crawl: Crawl, directory: Path) -> FeedJournal:
    crawl.parts.journal = FeedJournal(directory, lambda: crawl.parts.feeds)
    return crawl.parts.journal
