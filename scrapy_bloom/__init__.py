"""A crawl memory for Scrapy: a few bytes per URL, with its error stated; no page and no item lost to ``kill -9``."""

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_bloom.components.addon import Addon as Addon
    from scrapy_bloom.components.dupefilter import BloomDupeFilter as BloomDupeFilter
    from scrapy_bloom.components.dupefilter import RedisBloomDupeFilter as RedisBloomDupeFilter
    from scrapy_bloom.components.feeds import FeedExporter as FeedExporter
    from scrapy_bloom.components.fingerprints import RequestFingerprinter as RequestFingerprinter
    from scrapy_bloom.components.fingerprints import fingerprint as fingerprint
    from scrapy_bloom.components.loop_guard import LoopGuardMiddleware as LoopGuardMiddleware
    from scrapy_bloom.components.scheduler import DurableScheduler as DurableScheduler
    from scrapy_bloom.components.scheduler import FleetScheduler as FleetScheduler
    from scrapy_bloom.errors import BloomError as BloomError
    from scrapy_bloom.filter.chain import ScalableBloomFilter as ScalableBloomFilter
    from scrapy_bloom.filter.directory import open_filter as open_filter
    from scrapy_bloom.links.extractor import UnseenLinkExtractor as UnseenLinkExtractor
    from scrapy_bloom.links.extractor import UnseenLinks as UnseenLinks
    from scrapy_bloom.url.canonical import canonicalize_url as canonicalize_url

__version__ = "2.0.0"
OLDEST_SCRAPY = (2, 13, 1)

_HOME = {
    "Addon": "components.addon",
    "BloomDupeFilter": "components.dupefilter",
    "BloomError": "errors",
    "DurableScheduler": "components.scheduler",
    "FeedExporter": "components.feeds",
    "FleetScheduler": "components.scheduler",
    "LoopGuardMiddleware": "components.loop_guard",
    "RedisBloomDupeFilter": "components.dupefilter",
    "RequestFingerprinter": "components.fingerprints",
    "ScalableBloomFilter": "filter.chain",
    "UnseenLinkExtractor": "links.extractor",
    "UnseenLinks": "links.extractor",
    "canonicalize_url": "url.canonical",
    "fingerprint": "components.fingerprints",
    "open_filter": "filter.directory",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, so that ``scrapy_bloom.filter`` can be used without Scrapy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _HOME[name].startswith("filter."):
        _check_scrapy()
    return getattr(import_module(f"scrapy_bloom.{_HOME[name]}"), name)


@cache
def _check_scrapy() -> None:
    """Log on one CRITICAL line that the installed Scrapy is too old, if it is, and raise ImportError."""
    import scrapy  # here, since scrapy_bloom.filter can do without

    if scrapy.version_info[:3] >= OLDEST_SCRAPY:
        return
    oldest = ".".join(map(str, OLDEST_SCRAPY))
    problem = f"scrapy-bloom {__version__} needs Scrapy {oldest} or newer, and this is Scrapy {scrapy.__version__}"
    logging.getLogger(__name__).critical("%s. Update it: pip install --upgrade scrapy", problem)
    raise ImportError(problem)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
