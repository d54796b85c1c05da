"""Takes over what scrapy-redis left of a spider, once: its filter and its pending requests, without running pickles.

The fingerprints of scrapy-redis are not ours, and cannot be made ours. So a queue that is taken over goes on with
them: it has the key space :data:`KEY_SPACE`, and workers that find that make the fingerprints that they send to the
server as scrapy-redis does. Interrupted, the take-over is done again: what is there already is not added twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError
from scrapy.utils.httpobj import urlparse_cached
from w3lib.url import canonicalize_url

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.chain import KEY_SPACE_OF_SCRAPY_REDIS, LOCAL_SHARE
from scrapy_bloom.fleet.queue import Link, Queue, score_of
from scrapy_bloom.fleet.server import Address, Server, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Request, Spider
    from scrapy.settings import BaseSettings

    from scrapy_bloom.fleet.entry import Entries
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

_BATCH = 200
_FINGERPRINTS = 1000
_HEX_DIGITS = 40


class TakenOver(NamedTuple):
    """What :func:`take_over` found."""

    requests: int
    fingerprints: int
    refused: list[str]
    """Why requests could not be taken over, one sentence for each."""
    renamed: list[str]
    """The keys of scrapy-redis as they are called now."""


def names_of(settings: BaseSettings, spider: str) -> tuple[str, str]:
    """Return the Redis keys in which scrapy-redis keeps the requests and the filter of *spider*."""
    queue = settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests"
    dupefilter = settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter"
    return queue % {"spider": spider}, dupefilter % {"spider": spider}


def left_by_scrapy_redis(server: Server, settings: BaseSettings, spider: str) -> str:
    """Return what scrapy-redis left of *spider* on *server*, in words; "" if that is nothing."""
    try:
        found = [name for name in names_of(settings, spider) if server.client.exists(name)]
    except RedisError:  # a user that may see no keys but ours
        return ""
    return " and ".join(found)


def fingerprint_of(request: Request) -> bytes:
    """Return the fingerprint that scrapy-redis 0.9 gives *request*."""
    parts = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
    return hashlib.sha1(json.dumps(parts, sort_keys=True).encode(), usedforsecurity=False).digest()


def take_over(
    address: Address, settings: BloomSettings, scrapy_settings: BaseSettings, spider: Spider, entries: Entries
) -> TakenOver:
    """Begin the queue of *spider* with what scrapy-redis left on the server at *address*, which is also the queue's.

    Afterwards the keys of scrapy-redis have other names, so that nothing is taken over twice.

    Raises:
        UnusableError: The server cannot be used, has nothing of scrapy-redis, or has a queue already.

    """
    server = Server(address)
    try:
        names = names_of(scrapy_settings, spider.name)
        if not left_by_scrapy_redis(server, scrapy_settings, spider.name):
            advice = (
                "Its keys are read from SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY in the project's settings."
            )
            raise UnusableError(server.where, f"has nothing of scrapy-redis under {' or '.join(names)}", advice=advice)
        queue = Queue(
            server,
            key_of(settings.redis_key, spider.name),
            capacity=settings.capacity,
            error_rate=settings.error_rate * (1 - LOCAL_SHARE),
            key_space=KEY_SPACE_OF_SCRAPY_REDIS,
        )
        queue.begin()
        is_stack = "Lifo" in str(scrapy_settings.get("SCHEDULER_QUEUE_CLASS"))
        fingerprints = _take_filter(queue, names[1])
        requests, refused = _take_requests(queue, names[0], spider, entries, is_stack=is_stack)
        return TakenOver(requests, fingerprints, refused, [_rename(server, name) for name in names])
    except RedisError as error:
        advice = "Import again: nothing is taken over twice."
        raise UnusableError(server.where, f"has failed: {error}", advice=advice) from None
    finally:
        server.close()


def _take_filter(queue: Queue, name: str) -> int:
    client = queue.server.client
    if client.type(name) != b"set":
        return 0
    taken, cursor = 0, None
    while cursor != 0:
        cursor, members = client.sscan(name, cursor or 0, count=_FINGERPRINTS)
        fingerprints = [bytes.fromhex(member.decode()) for member in members if len(member) == _HEX_DIGITS]
        queue.add(fingerprints)
        taken += len(fingerprints)
    return taken


def _take_requests(
    queue: Queue, name: str, spider: Spider, entries: Entries, *, is_stack: bool
) -> tuple[int, list[str]]:
    token, taken, refused, number = secrets.token_hex(8), 0, [], 0
    times: Counter[bytes] = Counter()
    for batch in _batches(queue.server.client, name, is_stack=is_stack):
        links: dict[int, list[Link]] = {}
        for body in batch:
            try:
                request = _request_of(body, spider)
                entry = entries.write(request)
            except Exception as error:  # whatever the entry makes the request raise
                refused.append(f"{body[:40]!r}...: {error}")
                continue
            times[body] += 1
            marker = hashlib.sha1(b"taken over %d " % times[body] + body, usedforsecurity=False).digest()
            slot = str(request.meta.get("download_slot") or urlparse_cached(request).hostname or "")
            score = score_of(request.priority, is_start=False)
            shard = queue.shard_of(fingerprint_of(request))
            links.setdefault(shard, []).append(Link(shard, marker, slot, score, is_lifo=False, entry=entry))
        for shard, each in links.items():
            number += 1
            taken += queue.finish(shard, token, number, each).new
    return taken, refused


def _batches(client: Any, name: str, *, is_stack: bool) -> Iterator[list[bytes]]:
    """Yield the entries of the queue of scrapy-redis, in the order in which it would hand them out."""
    kind = client.type(name)
    if kind == b"zset":
        for at in range(0, client.zcard(name), _BATCH):
            yield client.zrange(name, at, at + _BATCH - 1)
    elif kind == b"list":
        length = client.llen(name)
        for at in range(0, length, _BATCH):
            if is_stack:
                yield client.lrange(name, at, at + _BATCH - 1)
            else:
                yield client.lrange(name, max(0, length - at - _BATCH), length - at - 1)[::-1]


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain types only: what would run code has to name a class or a function first."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no plain type")


def _request_of(body: bytes, spider: Spider) -> Request:
    from scrapy.utils.request import request_from_dict

    fields = _PlainUnpickler(io.BytesIO(body)).load()
    if "_class" in fields:
        raise ValueError(f"it is of the class {fields['_class']}, which is not imported for a server's sake")
    return request_from_dict(fields, spider=spider)


def _rename(server: Server, name: str) -> str:
    new = f"{{{name}}}:taken-over" if server.is_cluster else f"{name}:taken-over"
    if server.client.exists(name):
        server.client.rename(name, new)
    return new
