"""FleetScheduler: DurableScheduler over the fleet's store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.scheduler import DurableScheduler
from scrapy_bloom.startup import log_start_errors

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.store import Store
    from scrapy_bloom.url.fingerprint import Fingerprints

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
            Crawl.of(crawler).use_store(_fleet_store)
        return super().from_crawler(crawler)


def _fleet_store(crawler: Crawler, settings: BloomSettings, fingerprints: Fingerprints) -> Store:
    from scrapy_bloom.fleet.store import FleetStore  # imports redis

    return FleetStore(crawler, settings, fingerprints, flush=Crawl.of(crawler).flush_feeds)
