"""Takes over what scrapy-redis left of a spider, once: its pending requests and its filter, without running pickles.

Interrupted, the take-over is done again: what is there already is not added twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError
from scrapy.utils.httpobj import urlparse_cached
from w3lib.url import canonicalize_url

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.entry import PLAIN, Entries, packed
from scrapy_bloom.fleet.messages import Link, QueueLane

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy import Request
    from scrapy.settings import BaseSettings

    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.fleet.server import Server

logger = logging.getLogger(__name__)

_BATCH = 200
_HEX_DIGITS = 40


class ScrapyRedisFingerprinter:
    """For ``REQUEST_FINGERPRINTER_CLASS``: the fingerprint of scrapy-redis 0.9, whose filter knows no other."""

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of *request*, 20 bytes."""
        parts = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
        return hashlib.sha1(json.dumps(parts, sort_keys=True).encode(), usedforsecurity=False).digest()


def left_by_scrapy_redis(server: Server, settings: BaseSettings, spider: str) -> list[str]:
    """Return the Redis keys in which scrapy-redis left requests and filter of *spider*."""
    names = (
        settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests",
        settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter",
    )
    try:
        return [name for name in (template % {"spider": spider} for template in names) if server.client.exists(name)]
    except RedisError:  # a user that may see no keys but ours
        return []


def warn_of_scrapy_redis(server: Server, settings: BaseSettings, spider: str) -> None:
    """Log what scrapy-redis left of *spider*, if anything: a crawl does not read it."""
    if names := left_by_scrapy_redis(server, settings, spider):
        logger.warning(
            "scrapy-redis left %s on %s, which this crawl does not read. To take it over, once, before the first "
            "worker starts: scrapy bloom import redis://... %s",
            " and ".join(names),
            server.where,
            spider,
        )


def take_over(queue: Queue, settings: BaseSettings, spider: str, entries: Entries) -> dict[str, Any]:
    """Begin *queue* with what scrapy-redis left there; its keys have other names afterwards. Return what was found.

    Raises:
        UnusableError: There is nothing, or *settings* do not make the fingerprints that the filter knows.

    """
    client: Any = queue.server.client
    names = left_by_scrapy_redis(queue.server, settings, spider)
    if not names:
        advice = "Its keys are read from SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY in the project's settings."
        raise UnusableError(queue.server.where, f"has nothing of scrapy-redis for {spider}", advice=advice)
    kinds = {name: client.type(name) for name in names}
    cls = f"{ScrapyRedisFingerprinter.__module__}.{ScrapyRedisFingerprinter.__name__}"
    if b"set" in kinds.values() and settings["REQUEST_FINGERPRINTER_CLASS"] not in {cls, ScrapyRedisFingerprinter}:
        raise UnusableError(
            f"{' and '.join(names)} on {queue.server.where}",
            "hold fingerprints of scrapy-redis, which are not those of this project's settings",
            advice=f'Set REQUEST_FINGERPRINTER_CLASS = "{cls}" for the import and for all workers; or delete the '
            "filter, and pages are fetched again.",
        )
    queue.begin()
    summary: dict[str, Any] = {"requests": 0, "fingerprints": 0, "refused": [], "renamed": []}
    for name, kind in kinds.items():
        if kind == b"set":
            summary["fingerprints"] += _take_filter(queue, name)
        else:
            is_fifo = kind == b"list" and "Lifo" not in str(settings.get("SCHEDULER_QUEUE_CLASS"))
            # The list of a FIFO queue begins with what came last.
            _take_requests(queue, _batches(client, name, kind), entries, summary, push="RPUSH" if is_fifo else "LPUSH")
        summary["renamed"].append(f"{{{name}}}:taken-over")
        client.rename(name, f"{{{name}}}:taken-over")
    return summary


def _take_filter(queue: Queue, name: str) -> int:
    taken, cursor = 0, None
    while cursor != 0:
        cursor, members = queue.server.client.sscan(name, cursor or 0, count=1000)
        fingerprints = [bytes.fromhex(member.decode()) for member in members if len(member) == _HEX_DIGITS]
        for shard in range(queue.shards):
            queue.add(shard, [fingerprint for fingerprint in fingerprints if queue.shard_of(fingerprint) == shard])
        taken += len(fingerprints)
    return taken


def _batches(client: Any, name: str, kind: bytes) -> Iterator[list[bytes]]:
    count, read = (client.zcard, client.zrange) if kind == b"zset" else (client.llen, client.lrange)
    for start in range(0, count(name), _BATCH):
        yield read(name, start, start + _BATCH - 1)


def _take_requests(
    queue: Queue, batches: Iterable[list[bytes]], entries: Entries, summary: dict[str, Any], *, push: str
) -> None:
    """Enqueue the requests in *batches*, each of which has a fingerprint here by which it is taken over once."""
    times: Counter[bytes] = Counter()
    unsigned = Entries(entries.spider)
    for batch in batches:
        links: list[Link] = []
        for body in batch:
            try:
                request = unsigned.read(PLAIN + packed(_PlainUnpickler(io.BytesIO(body)).load()))
                entry = entries.write(request)
            except Exception as error:  # whatever the entry makes the request raise
                summary["refused"].append(f"{body[:40]!r}...: {error}")
                continue
            times[body] += 1
            marker = hashlib.sha1(b"taken over %d " % times[body] + body, usedforsecurity=False).digest()
            slot = str(request.meta.get("download_slot") or urlparse_cached(request).hostname or "")
            lane = QueueLane(slot, str(-2 * request.priority), push)
            links.append(Link(queue.shard_of(marker), marker, lane, entry))
        summary["requests"] += queue.enqueue(links)


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain types only: what would run code has to name a class or a function first."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not a plain type")
