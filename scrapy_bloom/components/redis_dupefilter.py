"""RedisBloomDupeFilter: a duplicate filter that workers share on a server, under any scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.utils.misc import load_object

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.components.fleet_scheduler import FleetScheduler
from scrapy_bloom.components.requests import Requests
from scrapy_bloom.components.scheduler import DurableScheduler
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.frontier.order import IN_ANY_ORDER

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.fleet.shared_filter import SharedFilter
    from scrapy_bloom.job.records import Feeds
    from scrapy_bloom.url.fingerprint import Fingerprints


class RedisBloomDupeFilter(BloomDupeFilter):
    """For ``DUPEFILTER_CLASS``: as ``BloomDupeFilter``, with the filter on the server of ``BLOOM_REDIS_URL``.

    For Scrapy's scheduler and others, such as the scheduler of scrapy-redis. Under ``FleetScheduler`` it works exactly
    like ``BloomDupeFilter``: the shared queue contains the filter.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting. Also if ``SCHEDULER`` is
            ``DurableScheduler``, because workers cannot share its requests.
        BloomError: On :meth:`open`, or with the first request; the server cannot be used.

    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter of *crawler*."""
        # Not issubclass(): to that, all of Scrapy's schedulers are each other's subclasses.
        bases = load_object(crawler.settings["SCHEDULER"]).__mro__
        if DurableScheduler in bases and FleetScheduler not in bases:
            problem = (
                "SCHEDULER is DurableScheduler, which does not share its requests. If this worker is lost, no other "
                "worker fetches them, because RedisBloomDupeFilter counts them as seen. "
                "Set SCHEDULER = 'scrapy_bloom.FleetScheduler'"
            )
            raise SettingsError([problem])
        return super().from_crawler(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Build the filter as the scheduler of scrapy-redis does, which never opens or closes it."""
        crawler = spider.crawler
        dupefilter = cls.from_crawler(crawler)
        crawler.signals.connect(dupefilter.close, signal=signals.spider_closed, weak=False)
        return dupefilter

    def clear(self) -> None:
        """Remove the filter from the server, as scrapy-redis does at its start or end unless told otherwise."""
        self.open()
        store: Any = None if self.crawl is None else self.crawl.store
        store.clear()

    def _join(self, fingerprints: Fingerprints, feeds: Feeds) -> tuple[SharedFilter, Requests]:  # noqa: ARG002
        from scrapy_bloom.components.fleet_settings import shared_filter  # imports redis

        return shared_filter(self._options.crawler, self._options.bloom, fingerprints), Requests(IN_ANY_ORDER)
