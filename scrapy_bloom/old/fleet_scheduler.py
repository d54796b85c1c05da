""":class:`FleetScheduler`, the face that Scrapy sees when the pending requests of many workers are on one server.

Turns Scrapy's requests into links, and leased requests into Scrapy's. ``fleet/frontier/queue.py`` knows what is on the
server, ``fleet/frontier/courier.py`` when to talk to it, and ``crawl/base_dupefilter.py`` what a request passes on its
way.

**Why nothing is lost.** A page is acknowledged when the engine is done with it. By then the courier has all that its
callback yielded, and delivers it before the acknowledgement or in the same script. Until then the page is leased; a
worker that dies or freezes loses its leases to the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from scrapy_bloom.old.crawl import scrapy_redis
from scrapy_bloom.old.crawl.base_dupefilter import BaseBloomDupeFilter
from scrapy_bloom.old.crawl.fleet_filter import WorkerFilter
from scrapy_bloom.old.crawl.in_progress import watch
from scrapy_bloom.old.crawl.queue_order import is_lifo
from scrapy_bloom.old.crawl.request_entry import RequestEntries
from scrapy_bloom.old.crawl.shutdown import end_crawl
from scrapy_bloom.old.crawl.spider_state import spider_state_kept
from scrapy_bloom.old.crawl.start_urls import requests_of
from scrapy_bloom.old.crawl.startup import log_start_errors
from scrapy_bloom.old.crawl.withheld import Withheld
from scrapy_bloom.old.errors import BloomError, SettingsError, UnusableError, counted
from scrapy_bloom.old.fleet.address import prefix_of, server_of
from scrapy_bloom.old.fleet.client import ServerError, connect
from scrapy_bloom.old.fleet.filter.fleet_filter import CLOSE, LOCAL_SHARE
from scrapy_bloom.old.fleet.filter.shared import GoneError, SharedFilter
from scrapy_bloom.old.fleet.frontier.courier import Courier
from scrapy_bloom.old.fleet.frontier.entry import PUSHED, GarbledError, NotPlainError
from scrapy_bloom.old.fleet.frontier.queue import Link, Queue, score_base, shard_of
from scrapy_bloom.old.fleet.frontier.scrapy_redis import Taken, has_filter, is_anything_left, take_over
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.old.fleet.client import Server
    from scrapy_bloom.old.fleet.frontier.queue import Leased

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 10.0
"""How long the end of a crawl waits for a server that is away."""

_AWAY, _FAILED = "bloom_redis_away", "bloom_fleet_failed"
_SETTLE_URLS = 1024
_MAX_STARTS = 1000  # start requests that a worker remembers, to begin again with when the server has lost the queue
_STARTED = "bloom_started"
"""In the meta of start requests that came from the queue, and of their copies, such as retries. start() did not yield
those, so they must not count as ones that another worker has yielded already."""


class FleetScheduler(BaseScheduler):
    """Set ``SCHEDULER = "scrapy_bloom.FleetScheduler"`` in every worker of a fleet, and ``BLOOM_REDIS_URL``.

    The queue and the filter of all workers are on one Redis or Valkey server, or a cluster of them. A worker that is
    killed loses nothing: what it had in hand is fetched again, by others or by itself. The scheduler filters by itself
    and ignores ``DUPEFILTER_CLASS``, except that ``scrapy.dupefilters.BaseDupeFilter`` switches filtering off.

    ``docs/fleet.md`` describes it, ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        UnusableError: On :meth:`open`; the server is not there, or what it holds cannot be used.
        KeySpaceError: On :meth:`open`; the filter was filled under another fingerprinter or other rules.
        MissingPackageError: On :meth:`open`; redis-py is not installed.

    """

    survives_kill = True  # so that a filter need not warn that pending requests are lost
    asks_loop_guard = True  # by its own filter, whatever DUPEFILTER_CLASS is
    is_shared = True  # so that the loop guard parks nothing in memory, which the filter on the server would outlive

    def __init__(self, crawler: Crawler, settings: BloomSettings, dupefilter: WorkerFilter) -> None:
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        self.crawler = crawler
        self.stats = crawler.stats
        self.df = dupefilter
        self._settings = settings
        self._is_filtering = _is_filtering(crawler)
        concurrency = crawler.settings.getint("CONCURRENT_REQUESTS")
        self._prefetch = concurrency // 2
        self._target = concurrency + self._prefetch
        self._lifo = is_lifo(crawler.settings["SCHEDULER_DISK_QUEUE"])
        start = crawler.settings["SCHEDULER_START_DISK_QUEUE"]
        self._start_lifo = is_lifo(start) if start else None
        self._courier: Courier | None = None
        self._held: dict[Request, Leased | None] = {}  # None: crawled from memory
        self._in_memory: deque[Request] = deque()
        self._withheld = Withheld()
        self._starts: dict[bytes, int] = {}
        self._start_links: list[Link] = []
        self._blocked_seconds = 0.0
        self._expected_lost = 0.0
        self._is_outdated = False
        self._unsettled = 0
        self._has_logged_unwritable = False
        self._idle_since: float | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the scheduler from the settings of *crawler*."""
        with log_start_errors(logger):
            settings = BloomSettings.from_settings(crawler.settings)
            return cls(crawler, settings, WorkerFilter.from_crawler(crawler))

    # -- Scrapy's interface ------------------------------------------------------------------------------------------

    def open(self, spider: Spider) -> None:
        """Connect to the server, and join the queue or begin it."""
        self.spider = spider
        with log_start_errors(logger), spider_state_kept(self.crawler):
            self._entries = RequestEntries(spider, self._settings.fleet_secret)
            self._open_queue(spider)
        self.df.open()
        self._is_watching = watch(self.crawler, self._left)
        if self._queue.start_urls is not None:
            self.crawler.signals.connect(self._wait_for_start_urls, signals.spider_idle)
            logger.info("Waiting for start URLs that are pushed to %s on the server", self._queue.start_urls)
        if not self._is_watching:
            logger.warning(
                "This Scrapy does not let us see when it is done with a request: pages are acknowledged at the end "
                "only, and all that this worker fetches is fetched again if it is killed. Please report it together "
                "with the Scrapy version."
            )

    def has_pending_requests(self) -> bool:
        """Return whether there is anything to do, here or at any worker whose pages may bring more."""
        courier = self._courier
        if courier is None:
            return False
        self._collect(courier)
        return bool(self._in_memory) or not courier.is_over or not courier.is_idle

    def enqueue_request(self, request: Request) -> bool:
        """Take in *request* unless it is known here to be a duplicate; the server may still find that it is."""
        began = time.perf_counter()
        try:
            return self._enqueue(request)
        finally:
            self._blocked_seconds += time.perf_counter() - began

    def next_request(self) -> Request | None:
        """Return the next request that has arrived from the server, or None."""
        courier = self._courier
        if courier is None:
            return None
        began = time.perf_counter()
        try:
            self._collect(courier)
            if self._in_memory:
                self.stats.inc_value("scheduler/dequeued/memory")
                self.stats.inc_value("scheduler/dequeued")
                kept = self._in_memory.popleft()
                self._held[kept] = None
                return kept
            while (leased := courier.take(self._room())) is not None:
                request = self._read(courier, leased)
                if request is not None:
                    self.stats.inc_value("scheduler/dequeued")
                    self._idle_since = None
                    return request
            return None
        finally:
            self._blocked_seconds += time.perf_counter() - began

    def close(self, reason: str) -> None:
        """Deliver what is done, give back what is not, and disconnect."""
        courier, self._courier = self._courier, None
        if courier is None:
            return
        for request in [] if self._is_watching else list(self._held):
            self._done(courier, request)  # the engine closes the scheduler only after all it works on
        links, done = courier.close(CLOSING_SECONDS)
        self._collect(courier)
        if links or done:
            logger.warning(
                "%s could not be acknowledged, and %s could not be delivered, to the queue on %s. Pages stay leased, "
                "and are fetched again after %g s, with their links; of requests that came from no page, those of "
                "start() come again with the next start.",
                counted(done, "page"),
                counted(links, "link"),
                self._queue.server.where,
                self._settings.fleet_lease,
            )
        if self._in_memory:
            logger.warning(
                "%s could not be written to the queue, and will end with this process. Pages that led there are "
                "fetched again.",
                counted(len(self._in_memory), "pending request"),
            )
        if links or self._in_memory:
            self.df.queue_was_lost()
        self._settle()
        self._set_stats(courier)
        self.df.close(reason)
        try:
            self._queue.server.close()
        except ServerError as error:
            logger.debug("Closing the connection to %s failed: %s", self._queue.server.where, error)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open_queue(self, spider: Spider) -> None:
        settings = self._settings
        address = server_of(settings.redis_url, self.crawler.settings)
        server = connect(*address)
        for risk in server.risks:
            logger.warning("The server %s puts the queue at risk: %s", server.where, risk)
        prefix = prefix_of(settings.redis_key, self.crawler.settings, spider.name)
        shards = settings.redis_shards
        if settings.redis_ttl is not None:
            logger.warning("BLOOM_REDIS_TTL has no effect here: a queue that expires would lose pages.")
        source = None
        if settings.fleet_take_over:
            source = scrapy_redis.source_of(
                self.crawler.settings,
                spider.name,
                (address, server),
                fingerprinter=self.df.fingerprints.space["fingerprinter"],
                link_of=self._taken_over,
                to_lifo=self._lifo,
            )
        # Beside a filter of scrapy-redis each URL is looked up twice, under the fingerprints of both.
        lookups = 2 if source is not None and has_filter(source) else 1
        shared = SharedFilter(
            server,
            prefix,
            engine=settings.redis_engine,
            shards=shards,
            capacity=settings.capacity,
            error_rate=settings.error_rate * (1 - LOCAL_SHARE) / lookups,
            growth=settings.growth,
            # With one shard there is nothing to tell apart, and a filter of RedisBloomDupeFilter can be gone on with.
            key_space={**self.df.fingerprints.space, **({"shards by": "host"} if shards > 1 else {})},
            max_age=settings.max_age,
        )
        advice = "See what the server logs, and whether its user may do that."
        try:
            shared.open()
            self._queue = Queue(
                server,
                shared,
                prefix,
                spider=spider.name,
                worker=settings.fleet_worker or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",
                lease_seconds=settings.fleet_lease,
                host_workers=settings.fleet_host_workers,
                start_urls=self._start_urls_key(server, prefix, spider),
            )
            courier = Courier(
                self._queue,
                low=self._prefetch // 2,
                news=_in_reactor(self._wake),
                on_away=partial(_in_reactor(self._end), _AWAY) if settings.redis_on_error == CLOSE else _nothing,
                on_begun_anew=self._begun_anew,
            )
            is_left = source is not None and is_anything_left(self._queue, source)
            self._filter_figures = shared.figures()
            taken = Taken()
            courier.join()  # once it has joined, a worker starts even if the server goes away now
            if source is not None and is_left:
                taken = take_over(self._queue, source)
                self._filter_figures = shared.figures()
            courier.start()
        except ServerError as error:
            raise UnusableError(f"The queue on {server.where}", f"cannot be used: {error}", advice=advice) from None
        except GoneError:
            found = "lost its filter while requests of scrapy-redis were taken over"
            raise UnusableError(f"The queue on {server.where}", found, advice="Start again: it goes on.") from None
        finally:
            if source is not None and source.server is not server:
                with suppress(ServerError):
                    source.server.close()
        self.df.trusted_at = self._trusted_at
        self.df.described = self._described
        self.df.figures = lambda: self._filter_figures
        self.df.place = f"on {shared.where}"
        self._courier = courier
        logger.info(
            "Sharing the queue on %s, key %s: engine %s, shards: %d, worker %s",
            server.where,
            prefix,
            shared.parameters.engine,
            self._queue.shards,
            self._queue.worker,
        )

        if courier.has_begun and self._filter_figures.urls and not taken.requests:
            logger.warning(
                "There was no queue yet on %s, key %s, but a filter that knows %d URLs: pages that were pending when "
                "it was filled count as seen and will not be fetched. To get them, use another BLOOM_REDIS_KEY, or "
                "remove what is under the key.",
                server.where,
                prefix,
                self._filter_figures.urls,
            )

    def _start_urls_key(self, server: Server, prefix: str, spider: Spider) -> str | None:
        key = self._settings.fleet_start_urls
        if key is None:
            return None
        key = key % {"spider": spider.name, "name": spider.name}
        tag = f"{{{prefix}:0}}"
        if server.is_cluster and tag not in key:
            problem = (
                f"BLOOM_FLEET_START_URLS is {key!r}, which a cluster may keep on another node than the queue; put "
                f"{tag} into it, as in {tag}:start_urls"
            )
            raise SettingsError([problem])
        return key

    def _taken_over(self, fields: object) -> Link:
        request = self._entries.of_fields(fields)
        try:
            entry = self._entries.write(request)
        except NotPlainError as error:
            raise GarbledError(str(error)) from None
        fingerprint = None
        if self._is_filtering and not request.dont_filter:
            with suppress(Exception):  # a fingerprinter of the user's; the page must not be lost
                fingerprint = self.df.fingerprint_of(request)
        link = self._link(request, fingerprint, entry)
        return replace(link, scrapy_redis=None if request.dont_filter else scrapy_redis.fingerprint(request))

    def _trusted_at(self) -> float:
        courier = self._courier
        return 0.0 if courier is None else float("inf") if courier.is_away else courier.confirmed_at

    # -- requests on their way ---------------------------------------------------------------------------------------

    def _enqueue(self, request: Request) -> bool:
        courier = self._courier
        if courier is None:
            return False
        if self._is_outdated:
            self._collect(courier)
        is_start = bool(request.meta.get("is_start_request"))
        fingerprint = None
        if self._is_filtering and not request.dont_filter:
            if self.df.request_seen(request):
                self.df.log(request, self.spider)
                return False
            with suppress(Exception):  # request_seen() has said so; the page must not be lost
                fingerprint = self.df.fingerprint_of(request)
        elif is_start and not request.meta.get(_STARTED):
            fingerprint = self._start_fingerprint(request)
        try:
            entry = self._entries.write(request)
        except NotPlainError as error:
            if fingerprint is not None and not request.dont_filter:
                self.df.keep(fingerprint)
            self._keep_in_memory(request, error)
            return True
        link = self._link(request, fingerprint, entry)
        if is_start and len(self._start_links) < _MAX_STARTS:
            self._start_links.append(link)
        courier.send(link)
        return True

    def _link(self, request: Request, fingerprint: bytes | None, entry: bytes) -> Link:
        host = urlparse_cached(request).hostname or ""
        is_first_in = bool(request.meta.get("is_start_request")) and self._start_lifo is not None
        knows_scrapy_redis = self._queue.knows_scrapy_redis and fingerprint is not None and not request.dont_filter
        return Link(
            fingerprint,
            shard_of(host, self._queue.shards),
            str(request.meta.get("download_slot") or host),
            score_base(request.priority, is_start=is_first_in),
            bool(self._start_lifo) if is_first_in else self._lifo,
            entry,
            request,
            scrapy_redis.fingerprint(request) if knows_scrapy_redis else None,
        )

    def _start_fingerprint(self, request: Request) -> bytes | None:
        """Return the fingerprint by which the fleet takes an unfiltered start request once, whichever worker yields it.

        Each worker runs start(), again after each restart. The n-th of equal requests is the n-th of every worker.
        """
        try:
            fingerprint = self.df.fingerprint_of(request)
        except Exception:  # its page may be fetched by each worker
            return None
        times = self._starts[fingerprint] = self._starts.get(fingerprint, 0) + 1
        return hashlib.sha1(b"start %d " % times + fingerprint, usedforsecurity=False).digest()

    def _keep_in_memory(self, request: Request, error: NotPlainError) -> None:
        """Crawl from memory a request that cannot be written.

        It came from one of the pages in hand. They are acknowledged only after it: if this process ends before that,
        they are fetched again, and lead to it again.
        """
        self.stats.inc_value("scheduler/unserializable")
        if not self._has_logged_unwritable:
            self._has_logged_unwritable = True
            logger.error(
                "%s cannot be written to the queue without a pickle: %s. It is crawled by this worker alone, and the "
                "page it came from is fetched again if the worker is killed before. Put plain types into meta and "
                "cb_kwargs, and methods of the spider into callback and errback; or set BLOOM_FLEET_SECRET to the same "
                "long random text in all workers. Further ones are not shown; scheduler/unserializable counts them.",
                request,
                error,
            )
        self._withheld.add(request, self._held)
        self._in_memory.append(request)

    def _read(self, courier: Courier, leased: Leased) -> Request | None:
        try:
            if leased.entry[:1] == PUSHED:
                self._begin_with(courier, leased)
                return None
            request = self._entries.read(leased.entry)
        except GarbledError as error:
            logger.error(  # noqa: TRY400 - the reason is in the message
                "%s %s of the queue on %s cannot be read: %s. It is set aside.",
                "Start URL" if leased.entry[:1] == PUSHED else "Request",
                f"{leased.shard}:{leased.id.decode(errors='replace')}",
                self._queue.server.where,
                error,
            )
            courier.set_aside(leased)
            return None
        if request.meta.get("is_start_request"):
            request.meta[_STARTED] = True
        self._held[request] = leased
        return request

    def _begin_with(self, courier: Courier, leased: Leased) -> None:
        """Put the requests of a start URL that was pushed into the queue, as a page does with its links.

        It is acknowledged behind them: if this process ends before, another makes them again.
        """
        requests = requests_of(leased.entry[1:], self.spider)
        page = Request("data:,start-url")  # stands for the page that they come from
        self._held[page] = leased
        for request in requests:
            self._enqueue(request)
        self._done(courier, page)

    def _wait_for_start_urls(self) -> None:
        """Keep the spider open when it is idle, as it is between two start URLs.

        Raises:
            DontCloseSpider: It has not been idle for ``BLOOM_FLEET_MAX_IDLE`` seconds.

        """
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        most = self._settings.fleet_max_idle
        if not most or now - self._idle_since < most:
            raise DontCloseSpider

    def _left(self, request: Request) -> None:
        if self._courier is not None and request in self._held:
            self._done(self._courier, request)
            if not self._in_memory and None not in self._held.values():
                self.df.queue_is_safe()

    def _done(self, courier: Courier, request: Request) -> None:
        """Acknowledge *request* and what has waited for it, or let it wait."""
        for page in self._withheld.done(request):
            leased = self._held.pop(page)
            if leased is not None:
                courier.acknowledge(leased, self._room())

    def _room(self) -> int:
        """Return how many requests this worker may hold that the downloader does not work on."""
        engine: Any = self.crawler.engine
        downloader = getattr(engine, "downloader", None)
        active = len(downloader.active) if downloader is not None else len(self._held)
        return max(0, self._target - active)

    # -- news --------------------------------------------------------------------------------------------------------

    def _collect(self, courier: Courier) -> None:
        """Take in what the server made of the links that it got."""
        is_outdated, self._is_outdated = self._is_outdated, False
        for link, is_seen in courier.collect():
            if link.fingerprint is not None:
                self.df.learn(link.fingerprint)
            if is_seen:
                self.df.log(link.ref, self.spider)
                self.crawler.signals.send_catch_log(signals.request_dropped, request=link.ref, spider=self.spider)
            else:
                self.stats.inc_value("scheduler/enqueued")
                self._unsettled += link.fingerprint is not None
                if self._unsettled >= _SETTLE_URLS and self._queue.shared.parameters.engine == "bitmap":
                    self._settle()  # of the other engine it would wait for the server
        if is_outdated:
            self.df.forget_all()

    def _settle(self) -> None:
        """Add the loss expected since the last time, at the present error rates, which are the highest yet."""
        unsettled, self._unsettled = self._unsettled, 0
        try:
            self._filter_figures = self._queue.shared.figures()
        except (ServerError, BloomError) as error:
            logger.debug("The filter on %s could not be described: %s", self._queue.server.where, error)
            return
        lookups = 2 if self._queue.knows_scrapy_redis else 1
        rate = lookups * self._filter_figures.error_rate + self.df.local.estimated_error_rate()
        self._expected_lost += unsettled * rate
        for name, value in self._described().items():
            self.stats.set_value(name, value)

    def _described(self) -> dict[str, float]:
        """Return the stats of the filter as it was at the last look."""
        figures = self._filter_figures
        return {
            "bloom/urls": figures.urls,
            "bloom/layers": figures.layers,
            "bloom/bytes": figures.nbytes,
            "bloom/fill_ratio": figures.fill_ratio,
            "bloom/estimated_error_rate": figures.error_rate + self.df.local.estimated_error_rate(),
            "bloom/expected_lost": self._expected_lost,
        }

    def _set_stats(self, courier: Courier) -> None:
        set_value = self.stats.set_value
        set_value("bloom/redis/round_trips", self._queue.server.round_trips)
        set_value("bloom/redis/away", courier.times_away)
        set_value("bloom/fleet/blocked_seconds", round(self._blocked_seconds, 3))
        set_value("bloom/fleet/taken_back", courier.taken_back)
        set_value("bloom/fleet/stale", courier.stale)
        set_value("bloom/fleet/aside", courier.aside)

    def _wake(self) -> None:
        courier = self._courier
        if courier is None:
            return
        if courier.has_failed:
            self._end(_FAILED)
        self._collect(courier)
        slot: Any = getattr(self.crawler.engine, "_slot", None)
        if slot is not None:  # without one, the engine looks every 5 s
            slot.nextcall.schedule()

    def _end(self, reason: str) -> None:
        end_crawl(self.crawler, reason)

    def _begun_anew(self, *, is_queue: bool) -> None:
        """Note that the server has lost what it knew. Called by the courier's thread."""
        self._is_outdated = True
        if is_queue and self._courier is not None:
            for link in self._start_links:
                self._courier.send(link)


def _nothing() -> None:
    pass


def _is_filtering(crawler: Crawler) -> bool:
    """Return whether duplicates are dropped at all.

    Raises:
        SettingsError: Another filter than Scrapy's or ours is set, which nobody would ask.

    """
    cls = load_object(crawler.settings["DUPEFILTER_CLASS"])
    if cls is BaseDupeFilter:
        return False
    is_ours = issubclass(cls, BaseBloomDupeFilter) and cls.__module__.startswith("scrapy_bloom.")
    if cls is RFPDupeFilter or is_ours:
        return True
    problem = (
        f"DUPEFILTER_CLASS is {cls.__module__}.{cls.__qualname__}, which FleetScheduler would not ask: it filters by "
        "itself, with the queue. Remove the setting; what counts as the same page can be said by "
        "REQUEST_FINGERPRINTER_CLASS"
    )
    raise SettingsError([problem])


def _in_reactor(call: Callable[..., None]) -> Callable[..., None]:
    """Return a function that makes the crawl's thread call *call*, whichever thread calls it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from twisted.internet import reactor

        of_reactor: Any = reactor  # which one it is, is not known to types
        return partial(of_reactor.callFromThread, call)

    def soon(*arguments: Any) -> None:
        try:
            loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop has ended; so has the crawl
            logger.debug("News came after the end of the crawl")

    return soon
