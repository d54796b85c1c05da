"""What scrapy-redis knows of a spider, in its own terms: its settings, Redis keys and fingerprints. Knows no server."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from scrapy_bloom.url.canonical import canonicalize_url

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings

_QUEUE_KEY, _DUPEFILTER_KEY = "%(spider)s:requests", "%(spider)s:dupefilter"
_STACKS = ("LifoQueue", "SpiderStack")


def queue_key(settings: BaseSettings, spider: str) -> str:
    """Return the Redis key of the pending requests of *spider*."""
    return str((settings.get("SCHEDULER_QUEUE_KEY") or _QUEUE_KEY) % {"spider": spider})


def dupefilter_key(settings: BaseSettings, spider: str) -> str:
    """Return the Redis key of the fingerprints of *spider*."""
    return str((settings.get("SCHEDULER_DUPEFILTER_KEY") or _DUPEFILTER_KEY) % {"spider": spider})


def is_stack(settings: BaseSettings) -> bool:
    """Return whether a queue that is a list hands out first what came last."""
    return str(settings.get("SCHEDULER_QUEUE_CLASS", "")).endswith(_STACKS)


def fingerprint(request: Request) -> bytes | None:
    """Return what scrapy-redis 0.9 filters *request* by, whatever fingerprinter is set.

    None if Scrapy tells requests apart that scrapy-redis does not: a page that was not fetched would count as seen.

    Source: ``scrapy_redis.dupefilter.RFPDupeFilter.request_fingerprint``.
    """
    if request.meta.get("verbatim_url"):
        return None
    fields = {"body": request.body.hex(), "method": request.method, "url": canonicalize_url(request.url)}
    return hashlib.sha1(json.dumps(fields, sort_keys=True).encode(), usedforsecurity=False).digest()
