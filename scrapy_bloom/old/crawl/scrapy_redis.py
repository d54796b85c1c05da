"""Where scrapy-redis keeps a spider's requests, by its own settings, and how it makes fingerprints.

Knows scrapy-redis' settings. Does not know how the requests are taken over: ``fleet/frontier/scrapy_redis.py`` does.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import BloomError
from scrapy_bloom.old.fleet.address import is_named_by_scrapy_redis, server_of
from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.frontier.scrapy_redis import Source
from scrapy_bloom.old.url.canonical import canonicalize_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.settings import BaseSettings

    from scrapy_bloom.old.fleet.address import Address
    from scrapy_bloom.old.fleet.client import Server
    from scrapy_bloom.old.fleet.frontier.queue import Link

logger = logging.getLogger("scrapy_bloom.old.fleet_scheduler")

_QUEUE_KEY, _DUPEFILTER_KEY = "%(spider)s:requests", "%(spider)s:dupefilter"
_STACKS = ("LifoQueue", "SpiderStack")


def source_of(
    settings: BaseSettings,
    spider: str,
    queue_server: tuple[Address, Server],
    *,
    fingerprinter: str,
    link_of: Callable[[Any], Link],
    to_lifo: bool,
) -> Source | None:
    """Return where scrapy-redis kept the requests of *spider*; None if its server is not there, which is logged.

    Args:
        settings: Those of the crawl, which may still have those of scrapy-redis.
        spider: Its name.
        queue_server: Where to look if scrapy-redis' settings name no server: that of the queue.
        fingerprinter: What makes the fingerprints of the crawl, as in a key space.
        link_of: As of :class:`Source`.
        to_lifo: As of :class:`Source`.

    """
    address, server = queue_server
    theirs = server_of(None, settings) if is_named_by_scrapy_redis(settings) else address
    if theirs != address:
        try:
            server = connect(*theirs)
        except BloomError as error:
            logger.warning(
                "The server that the REDIS_* settings name was asked for requests of scrapy-redis to take over: %s "
                "With BLOOM_FLEET_TAKE_OVER = False it is not asked.",
                error,
            )
            return None
    why_not = f"it was made without {fingerprinter}, which may tell apart what is one page there"
    return Source(
        server,
        str((settings.get("SCHEDULER_QUEUE_KEY") or _QUEUE_KEY) % {"spider": spider}),
        str((settings.get("SCHEDULER_DUPEFILTER_KEY") or _DUPEFILTER_KEY) % {"spider": spider}),
        is_stack=str(settings.get("SCHEDULER_QUEUE_CLASS", "")).endswith(_STACKS),
        link_of=link_of,
        to_lifo=to_lifo,
        why_not="" if fingerprinter == "scrapy" else why_not,
    )


def fingerprint(request: Request) -> bytes | None:
    """Return scrapy-redis 0.9's fingerprint of *request*, whatever fingerprinter is set.

    None if Scrapy tells requests apart that scrapy-redis does not: a page that was not fetched would count as seen.

    Source: ``scrapy_redis.dupefilter.RFPDupeFilter.request_fingerprint``.
    """
    if request.meta.get("verbatim_url"):
        return None
    fields = {"body": request.body.hex(), "method": request.method, "url": canonicalize_url(request.url)}
    return hashlib.sha1(json.dumps(fields, sort_keys=True).encode(), usedforsecurity=False).digest()
