""":class:`RedisBloomDupeFilter`, the face that Scrapy sees when several processes share one filter.

Turns Scrapy's questions into questions to a shared filter, and its state into stats, under Scrapy's own scheduler or
that of scrapy-redis. What is asked of the server when, and what is done when it is away, is decided in
``fleet/filter/fleet_filter.py``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.dupefilters import BaseDupeFilter

from scrapy_bloom.crawl.keys import Keys, keys_of
from scrapy_bloom.crawl.link_filter import LinkFilter, link_filter_wanted
from scrapy_bloom.crawl.request_log import RequestLog
from scrapy_bloom.crawl.startup import told_before_the_traceback
from scrapy_bloom.fleet.client import connect
from scrapy_bloom.fleet.filter.fleet_filter import CLOSE, LOCAL_SHARE, FleetFilter
from scrapy_bloom.fleet.filter.shared import SharedFilter
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from scrapy.statscollectors import StatsCollector
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_DEFAULT_URL = "redis://localhost:6379"
_DEFAULT_KEY = "bloom:%(spider)s"
_CLOSE_REASON = "bloom_redis_away"
_SCRAPY_REDIS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}


class RedisBloomDupeFilter(BaseDupeFilter):
    """For ``DUPEFILTER_CLASS`` of a fleet: the same decisions as ``BloomDupeFilter``, shared through Redis or Valkey.

    ``docs/fleet.md`` describes it, ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        UnusableError: On :meth:`open`; the server is not there, or what it holds cannot be used.
        KeySpaceError: On :meth:`open`; the filter was filled under another fingerprinter or other rules.
        MissingPackageError: On :meth:`open`; redis-py is not installed.

    """

    def __init__(
        self,
        settings: BloomSettings,
        keys: Keys,
        stats: StatsCollector,
        *,
        url: str | None,
        parameters: Mapping[str, Any],
        prefix: str,
        debug: bool = False,
        crawler: Crawler | None = None,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._stats = stats
        self._url = url
        self._parameters = parameters
        self._prefix = prefix
        self._log = RequestLog(logger, stats, debug=debug)
        self._crawler = crawler
        self._fingerprint = keys.of_request
        self._filter: FleetFilter | None = None
        self._add: Callable[[bytes], bool] = self._open_and_add

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter from the settings of *crawler*."""
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        with told_before_the_traceback(logger):
            settings = BloomSettings.from_settings(crawler.settings)
        if settings.forget_failed:
            logger.warning("BLOOM_FORGET_FAILED has no effect here: a filter that is shared cannot take back a URL.")
        spider = crawler.spider.name if crawler.spider is not None else crawler.spidercls.name
        prefix = settings.redis_key or crawler.settings.get("SCHEDULER_DUPEFILTER_KEY") or _DEFAULT_KEY
        url, parameters = _server_of(settings, crawler.settings)
        dupefilter = cls(
            settings,
            keys_of(crawler),
            crawler.stats,
            url=url,
            parameters=parameters,
            prefix=prefix % {"spider": spider},
            debug=crawler.settings.getbool("DUPEFILTER_DEBUG"),
            crawler=crawler,
        )
        crawler.signals.connect(dupefilter.link_filter, signal=link_filter_wanted)
        return dupefilter

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Build and open the filter for scrapy-redis' scheduler, which calls neither ``open()`` nor ``close()``."""
        self = cls.from_crawler(spider.crawler)
        self.open()
        spider.crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    def open(self) -> None:
        """Connect to the server, and find or begin the filter there."""
        settings = self._settings
        with told_before_the_traceback(logger, self._crawler):
            shared = SharedFilter(
                connect(self._url, self._parameters),
                self._prefix,
                engine=settings.redis_engine,
                shards=settings.redis_shards,
                capacity=settings.capacity,
                error_rate=settings.error_rate * (1 - LOCAL_SHARE),
                growth=settings.growth,
                key_space=self._keys.space,
                ttl=settings.redis_ttl,
            )
            fleet = FleetFilter(
                shared,
                capacity=settings.capacity,
                error_rate=settings.error_rate * LOCAL_SHARE,
                growth=settings.growth,
                on_error=settings.redis_on_error,
                on_away=partial(_end, self._crawler) if self._crawler and settings.redis_on_error == CLOSE else None,
                on_settled=self._set_stats,
            )
            fleet.open()
        self._filter = fleet
        self._add = fleet.add
        logger.info(
            "Sharing the filter on %s: engine %s, shards: %d", shared.where, shared.design.engine, shared.design.shards
        )
        self._set_stats()

    def request_seen(self, request: Request) -> bool:
        """Return whether *request* was seen before by any process, and remember it if not.

        Never raises, since Scrapy would lose the request: one that cannot be checked is let through and counted in
        ``bloom/unchecked``. May wait for the server, see ``BLOOM_REDIS_ON_ERROR`` in ``docs/fleet.md``.
        """
        try:
            return not self._add(self._fingerprint(request))
        except Exception:  # whatever it is, the page must not be lost
            self._log.unchecked(request)
            return False

    def seen_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether any process has seen it, in one round trip at most. Adds nothing.

        What cannot be found out, as while the server is away, counts as not seen.
        """
        return [False] * len(fingerprints) if self._filter is None else self._filter.seen_many(fingerprints)

    def link_filter(self) -> LinkFilter:
        """Return what answers for links: the filter itself."""
        return self

    def seen_urls(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether its plain GET request was seen by any process, without recording it.

        All URLs go to the server together. False where that cannot be told: before opening, with a custom
        fingerprinter, for what is not a URL.
        """
        seen = [False] * len(urls)
        fingerprint_of = self._keys.of_url
        if fingerprint_of is None or self._filter is None:
            return seen
        places, fingerprints = [], []
        for place, url in enumerate(urls):
            try:
                fingerprints.append(fingerprint_of(url))
                places.append(place)
            except Exception:  # noqa: S112 - the request that is made of it shall fail, or not, as it would without us
                continue
        try:
            for place, is_seen in zip(places, self.seen_many(fingerprints), strict=True):
                seen[place] = is_seen
        except Exception:
            logger.exception("Links could not be checked for being seen, and pass")
        return seen

    def log(self, request: Request, spider: Spider) -> None:
        """Log that *request* was filtered, as Scrapy's own filter does, and count it in ``dupefilter/filtered``."""
        self._log.filtered(request, spider)

    def clear(self) -> None:
        """Remove the filter from the server, for all processes; scrapy-redis does so at the end of a crawl."""
        if self._filter is None:
            self.open()
        if self._filter is not None:
            self._filter.clear()

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Write what waits to be written, set the final stats and disconnect. The filter stays on the server."""
        if self._filter is None:
            return
        self._filter.close()
        self._set_stats()
        self._filter = None
        self._add = self._open_and_add

    def _spider_closed(self, spider: Spider, reason: str) -> None:  # noqa: ARG002 - the signal's arguments
        self.close(reason)

    def _open_and_add(self, fingerprint: bytes) -> bool:
        """Open the filter under a scheduler that does not call :meth:`open`."""
        self.open()
        return self._add(fingerprint)

    def _set_stats(self) -> None:
        fleet = self._filter
        if fleet is None:
            return
        set_value = self._stats.set_value
        if fleet.info is not None:
            set_value("bloom/urls", fleet.info.urls)
            set_value("bloom/layers", fleet.info.layers)
            set_value("bloom/bytes", fleet.info.nbytes)
            set_value("bloom/fill_ratio", fleet.info.fill_ratio)
            set_value("bloom/estimated_error_rate", fleet.info.error_rate + fleet.local.estimated_error_rate())
        set_value("bloom/expected_lost", fleet.expected_lost)
        set_value("bloom/redis/round_trips", fleet.shared.server.round_trips)
        set_value("bloom/redis/local_bytes", fleet.local.nbytes)
        set_value("bloom/redis/away", fleet.times_away)
        set_value("bloom/redis/accepted_alone", fleet.accepted_alone)
        set_value("bloom/redis/unwritten", fleet.unwritten)


def _server_of(ours: BloomSettings, settings: BaseSettings) -> tuple[str | None, dict[str, Any]]:
    """Return URL and parameters of the server: ours, or else scrapy-redis', or else the local one."""
    if ours.redis_url is not None:
        return ours.redis_url, {}
    parameters = settings.getdict("REDIS_PARAMS")
    for name, parameter in _SCRAPY_REDIS.items():
        if settings.get(name):
            parameters[parameter] = settings.get(name)
    url = parameters.pop("url", None)
    return (url, parameters) if url or parameters else (_DEFAULT_URL, {})


def _end(crawler: Crawler) -> None:
    """End the crawl as extensions do, after the present call has returned."""
    from scrapy.utils.defer import deferred_f_from_coro_f
    from twisted.internet import reactor

    engine: Any = crawler.engine

    async def end() -> None:
        close = getattr(engine, "close_spider_async", None)  # Scrapy 2.14 and newer
        if close is not None:
            await close(reason=_CLOSE_REASON)
        else:
            await engine.close_spider(crawler.spider, _CLOSE_REASON)

    call_later: Any = getattr(reactor, "callLater")  # noqa: B009 - which reactor it is, is not known to types
    call_later(0, deferred_f_from_coro_f(end))
