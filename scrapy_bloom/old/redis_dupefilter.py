""":class:`RedisBloomDupeFilter`, the face that Scrapy sees when several processes share one filter.

Decides where the chain lives, on which server and behind which local filter, under Scrapy's own scheduler or that of
scrapy-redis. Does not know the way of a request (``crawl.base_dupefilter``), nor when the server is asked and what
happens while it is away (``fleet.filter.fleet_filter``).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from scrapy import signals

from scrapy_bloom.old.crawl.base_dupefilter import BaseBloomDupeFilter, State
from scrapy_bloom.old.crawl.queue_place import queue_place
from scrapy_bloom.old.crawl.regular_call import RegularCall
from scrapy_bloom.old.crawl.shutdown import end_crawl
from scrapy_bloom.old.fleet.address import prefix_of, server_of
from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.filter.bitmap import LOCAL_AGE_SHARE
from scrapy_bloom.old.fleet.filter.fleet_filter import CLOSE, LOCAL_SHARE, LOOK_SECONDS, FleetFilter
from scrapy_bloom.old.fleet.filter.shared import SharedFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_CLOSE_REASON = "bloom_redis_away"


class RedisBloomDupeFilter(BaseBloomDupeFilter):
    """For ``DUPEFILTER_CLASS`` of a fleet: the same decisions as ``BloomDupeFilter``, shared through Redis or Valkey.

    ``docs/fleet_filter.md`` describes it, ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        UnusableError: On :meth:`open`; the server is not there, or what it holds cannot be used.
        KeySpaceError: On :meth:`open`; the filter was filled under another fingerprinter or other rules.
        MissingPackageError: On :meth:`open`; redis-py is not installed.

    """

    is_shared = True  # so the loop guard parks nothing, which would be lost with this process

    _logger = logger

    _filter: FleetFilter | None = None
    _looking: RegularCall

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter from the settings of *crawler*."""
        self = super().from_crawler(crawler)
        self._looking = RegularCall(crawler, self._look, LOOK_SECONDS)
        if self._settings.forget_failed:
            logger.warning("BLOOM_FORGET_FAILED has no effect here: a filter that is shared cannot take back a URL.")
        return self

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Build and open the filter for scrapy-redis' scheduler, which calls neither ``open()`` nor ``close()``."""
        self = cls.from_crawler(spider.crawler)
        self.open()
        spider.crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    def seen_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether any process has seen it, in one round trip at most. Adds nothing.

        While the server is away, what is not known here counts as not seen.
        """
        return [False] * len(fingerprints) if self._filter is None else self._filter.seen_many(fingerprints)

    @property
    def epoch(self) -> int | None:
        """A number that changes when the filter begins anew; None until the server has confirmed that it is there."""
        return None if self._filter is None else self._filter.epoch

    def clear(self) -> None:
        """Remove the filter from the server, for all processes. scrapy-redis calls this at the end of a crawl."""
        if self._filter is None:
            self.open()
        if self._filter is not None:
            self._filter.clear()

    def _open_chain(self) -> None:
        settings, crawler = self._settings, self._crawler
        spider = crawler.spider.name if crawler.spider is not None else crawler.spidercls.name
        server = server_of(settings.redis_url, crawler.settings)
        shared = SharedFilter(
            connect(*server),
            prefix_of(settings.redis_key, crawler.settings, spider),
            engine=settings.redis_engine,
            shards=settings.redis_shards,
            capacity=settings.capacity,
            error_rate=settings.error_rate * (1 - LOCAL_SHARE),
            growth=settings.growth,
            key_space=self._fingerprints.space,
            ttl=settings.redis_ttl,
            max_age=settings.max_age,
        )
        fleet = FleetFilter(
            shared,
            capacity=settings.capacity,
            error_rate=settings.error_rate * LOCAL_SHARE,
            growth=settings.growth,
            local_age=None if settings.max_age is None else settings.max_age * LOCAL_AGE_SHARE,
            on_error=settings.redis_on_error,
            queue=queue_place(crawler.settings, server),
            on_away=partial(end_crawl, crawler, _CLOSE_REASON) if settings.redis_on_error == CLOSE else None,
            on_settled=self._set_stats,
        )
        fleet.open()
        self._filter = fleet

    def crawl_begins(self) -> None:
        """Say what the crawl begins with, and first where the filter is."""
        if self._filter is not None:
            shared = self._filter.shared
            logger.info(
                "Sharing the filter on %s: engine %s, shards: %d",
                shared.where,
                shared.parameters.engine,
                shared.parameters.shards,
            )
        super().crawl_begins()

    def _close_chain(self) -> None:
        """Write the backlog and disconnect. The filter stays on the server."""
        if self._filter is not None:
            self._filter.close()
            self._set_stats()
            self._filter = None

    def _adder(self, state: State) -> Callable[[bytes], bool]:
        if self._filter is None or state is State.HOLDING_BACK:
            raise ValueError("the filter has not been opened")
        return self._filter.add

    def _seen(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        return self.seen_many(fingerprints)

    def _look(self) -> None:
        if self._filter is not None:
            self._filter.look()

    def _spider_closed(self, spider: Spider, reason: str) -> None:  # noqa: ARG002 - the signal's arguments
        self.close(reason)

    def _where(self) -> str:
        return "on the server" if self._filter is None else f"on {self._filter.shared.where}"

    def _room(self) -> int:
        return 0 if self._filter is None or self._filter.figures is None else self._filter.figures.room

    def _expired(self) -> int:
        return 0 if self._filter is None or self._filter.figures is None else self._filter.figures.forgotten

    def _figures(self) -> Mapping[str, float]:
        fleet = self._filter
        if fleet is None:
            return {}
        described: dict[str, float] = {}
        if fleet.figures is not None:
            described = {
                "bloom/urls": fleet.figures.urls,
                "bloom/layers": fleet.figures.layers,
                "bloom/bytes": fleet.figures.nbytes,
                "bloom/fill_ratio": fleet.figures.fill_ratio,
                "bloom/estimated_error_rate": fleet.figures.error_rate + fleet.local.estimated_error_rate(),
            }
        return {
            **described,
            "bloom/expected_lost": fleet.expected_lost,
            "bloom/redis/round_trips": fleet.shared.server.round_trips,
            "bloom/redis/local_bytes": fleet.local.nbytes,
            "bloom/redis/away": fleet.outage.times,
            "bloom/redis/accepted_alone": fleet.backlog.accepted,
            "bloom/redis/unwritten": fleet.backlog.unwritten,
        }
