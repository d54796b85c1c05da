"""A duplicate filter for large Scrapy crawls: a few bytes per URL, with its error stated, bounded and reported."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_bloom.old.addon import Addon
    from scrapy_bloom.old.crawl.loop_guard_middleware import LoopGuardMiddleware
    from scrapy_bloom.old.dupefilter import BloomDupeFilter
    from scrapy_bloom.old.files.directory import open_filter
    from scrapy_bloom.old.filter.chain import ScalableBloomFilter
    from scrapy_bloom.old.fleet_scheduler import FleetScheduler
    from scrapy_bloom.old.frontier.scheduler import DurableScheduler
    from scrapy_bloom.old.frontier.slots import SlotQueue
    from scrapy_bloom.old.link_extractor import UnseenLinkExtractor
    from scrapy_bloom.old.links import UnseenLinks
    from scrapy_bloom.old.redis_dupefilter import RedisBloomDupeFilter
    from scrapy_bloom.old.url.canonical import canonicalize_url
    from scrapy_bloom.old.url.fingerprint import RequestFingerprinter, fingerprint

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
    "Addon": "scrapy_bloom.old.addon",
    "BloomDupeFilter": "scrapy_bloom.old.dupefilter",
    "DurableScheduler": "scrapy_bloom.old.frontier.scheduler",
    "FleetScheduler": "scrapy_bloom.old.fleet_scheduler",
    "LoopGuardMiddleware": "scrapy_bloom.old.crawl.loop_guard_middleware",
    "RedisBloomDupeFilter": "scrapy_bloom.old.redis_dupefilter",
    "RequestFingerprinter": "scrapy_bloom.old.url.fingerprint",
    "ScalableBloomFilter": "scrapy_bloom.old.filter.chain",
    "SlotQueue": "scrapy_bloom.old.frontier.slots",
    "UnseenLinkExtractor": "scrapy_bloom.old.link_extractor",
    "UnseenLinks": "scrapy_bloom.old.links",
    "canonicalize_url": "scrapy_bloom.old.url.canonical",
    "fingerprint": "scrapy_bloom.old.url.fingerprint",
    "open_filter": "scrapy_bloom.old.files.directory",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, so that ``scrapy_bloom.old.filter`` can be used without Scrapy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
