"""A duplicate filter for large Scrapy crawls: a few bytes per URL, with its error stated, bounded and reported."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.crawl.loop_guard_middleware import LoopGuardMiddleware
    from scrapy_bloom.dupefilter import BloomDupeFilter
    from scrapy_bloom.files.directory import open_filter
    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.fleet_scheduler import FleetScheduler
    from scrapy_bloom.frontier.scheduler import DurableScheduler
    from scrapy_bloom.frontier.slots import SlotQueue
    from scrapy_bloom.link_extractor import UnseenLinkExtractor
    from scrapy_bloom.links import UnseenLinks
    from scrapy_bloom.redis_dupefilter import RedisBloomDupeFilter
    from scrapy_bloom.url.canonical import canonicalize_url
    from scrapy_bloom.url.fingerprint import RequestFingerprinter, fingerprint

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "DurableScheduler",
    "FleetScheduler",
    "LoopGuardMiddleware",
    "RedisBloomDupeFilter",
    "RequestFingerprinter",
    "ScalableBloomFilter",
    "SlotQueue",
    "UnseenLinkExtractor",
    "UnseenLinks",
    "canonicalize_url",
    "fingerprint",
    "open_filter",
]

_HOME = {
    "Addon": "scrapy_bloom.addon",
    "BloomDupeFilter": "scrapy_bloom.dupefilter",
    "DurableScheduler": "scrapy_bloom.frontier.scheduler",
    "FleetScheduler": "scrapy_bloom.fleet_scheduler",
    "LoopGuardMiddleware": "scrapy_bloom.crawl.loop_guard_middleware",
    "RedisBloomDupeFilter": "scrapy_bloom.redis_dupefilter",
    "RequestFingerprinter": "scrapy_bloom.url.fingerprint",
    "ScalableBloomFilter": "scrapy_bloom.filter.chain",
    "SlotQueue": "scrapy_bloom.frontier.slots",
    "UnseenLinkExtractor": "scrapy_bloom.link_extractor",
    "UnseenLinks": "scrapy_bloom.links",
    "canonicalize_url": "scrapy_bloom.url.canonical",
    "fingerprint": "scrapy_bloom.url.fingerprint",
    "open_filter": "scrapy_bloom.files.directory",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, so that ``scrapy_bloom.filter`` can be used without Scrapy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
