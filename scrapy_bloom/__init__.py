"""A crawl memory for Scrapy: a few bytes per URL, with its error stated; no page and no item lost to ``kill -9``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.dupefilter import BloomDupeFilter
    from scrapy_bloom.errors import BloomError
    from scrapy_bloom.feeds import FeedExporter
    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.filter.directory import open_filter
    from scrapy_bloom.fleet_scheduler import FleetScheduler
    from scrapy_bloom.links.extractor import UnseenLinkExtractor
    from scrapy_bloom.links.spider import UnseenLinks
    from scrapy_bloom.middleware import LoopGuardMiddleware
    from scrapy_bloom.redis_dupefilter import RedisBloomDupeFilter
    from scrapy_bloom.scheduler import DurableScheduler
    from scrapy_bloom.url.canonical import canonicalize_url
    from scrapy_bloom.url.fingerprint import RequestFingerprinter, fingerprint

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "BloomError",
    "DurableScheduler",
    "FeedExporter",
    "FleetScheduler",
    "LoopGuardMiddleware",
    "RedisBloomDupeFilter",
    "RequestFingerprinter",
    "ScalableBloomFilter",
    "UnseenLinkExtractor",
    "UnseenLinks",
    "canonicalize_url",
    "fingerprint",
    "open_filter",
]

_HOME = {
    "Addon": "addon",
    "BloomDupeFilter": "dupefilter",
    "BloomError": "errors",
    "DurableScheduler": "scheduler",
    "FeedExporter": "feeds",
    "FleetScheduler": "fleet_scheduler",
    "LoopGuardMiddleware": "middleware",
    "RedisBloomDupeFilter": "redis_dupefilter",
    "RequestFingerprinter": "url.fingerprint",
    "ScalableBloomFilter": "filter.chain",
    "UnseenLinkExtractor": "links.extractor",
    "UnseenLinks": "links.spider",
    "canonicalize_url": "url.canonical",
    "fingerprint": "url.fingerprint",
    "open_filter": "filter.directory",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, so that ``scrapy_bloom.filter`` can be used without Scrapy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"scrapy_bloom.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
