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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from redis.exceptions import RedisError
from w3lib.url import canonicalize_url

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.messages import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from scrapy_bloom.fleet.messages import QueueLane
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.fleet.server import Server

logger = logging.getLogger(__name__)

_BATCH = 200
_HEX_DIGITS = 40


class ScrapyRedisFingerprinter:
    """For ``REQUEST_FINGERPRINTER_CLASS``: the fingerprint of scrapy-redis 0.9, whose filter knows no other."""

    PATH: ClassVar = "scrapy_bloom.fleet.takeover.ScrapyRedisFingerprinter"

    def fingerprint(self, request: Any) -> bytes:
        """Return the fingerprint of *request*, 20 bytes."""
        parts = {"method": request.method, "url": canonicalize_url(request.url), "body": (request.body or b"").hex()}
        return hashlib.sha1(json.dumps(parts, sort_keys=True).encode(), usedforsecurity=False).digest()


@dataclass(frozen=True)
class ScrapyRedis:
    """Where scrapy-redis has requests and filter of *spider*, and how it orders them."""

    spider: str
    names: Sequence[str]
    is_fifo: bool
    """Whether a list of requests is a queue whose first request in is the first out."""
    has_its_fingerprints: bool
    """Whether the crawl makes the fingerprints that scrapy-redis' filter knows."""

    @classmethod
    def of(cls, spider: str, settings: Mapping[Any, Any]) -> Self:
        """Read it from the *settings* of a project."""
        queue = settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests"
        dupefilter = settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter"
        return cls(
            spider,
            [name % {"spider": spider} for name in (queue, dupefilter)],
            is_fifo="Lifo" not in str(settings.get("SCHEDULER_QUEUE_CLASS")),
            has_its_fingerprints=settings.get("REQUEST_FINGERPRINTER_CLASS")
            in {ScrapyRedisFingerprinter.PATH, ScrapyRedisFingerprinter},
        )

    def left_on(self, server: Server) -> list[str]:
        """Return the keys that are there."""
        try:
            return [name for name in self.names if server.client.exists(name)]
        except RedisError:  # a user that may see no keys but ours
            return []

    def warn(self, server: Server) -> None:
        """Log the keys that are there, if any: a crawl does not read them."""
        if names := self.left_on(server):
            logger.warning(
                "scrapy-redis left %s on %s, which this crawl does not read. To take it over, once, before the first "
                "worker starts: scrapy bloom import redis://... %s",
                " and ".join(names),
                server.where,
                self.spider,
            )


def take_over(
    queue: Queue, left: ScrapyRedis, rewritten: Callable[[dict[str, Any]], tuple[QueueLane, bytes]]
) -> dict[str, Any]:
    """Begin *queue* with what scrapy-redis *left* there; its keys have other names afterwards. Return what was found.

    *rewritten* returns lane and entry of a request, given its fields. It may raise any exception; the request is left.
    Raises UnusableError if there is nothing, or the crawl does not make the fingerprints that the filter knows.
    """
    client: Any = queue.server.client
    names = left.left_on(queue.server)
    if not names:
        advice = "Its keys are read from SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY in the project's settings."
        raise UnusableError(queue.server.where, f"has nothing of scrapy-redis for {left.spider}", advice=advice)
    kinds = {name: client.type(name) for name in names}
    if b"set" in kinds.values() and not left.has_its_fingerprints:
        raise UnusableError(
            f"{' and '.join(names)} on {queue.server.where}",
            "hold fingerprints of scrapy-redis, which are not those of this project's settings",
            advice=f'Set REQUEST_FINGERPRINTER_CLASS = "{ScrapyRedisFingerprinter.PATH}" for the import and for all '
            "workers; or delete the filter, and pages are fetched again.",
        )
    queue.begin()
    summary: dict[str, Any] = {"requests": 0, "fingerprints": 0, "refused": [], "renamed": []}
    for name, kind in kinds.items():
        if kind == b"set":
            summary["fingerprints"] += _take_filter(queue, name)
        else:
            # The list of a FIFO queue begins with what came last.
            push = "RPUSH" if kind == b"list" and left.is_fifo else "LPUSH"
            count, read = (client.zcard, client.zrange) if kind == b"zset" else (client.llen, client.lrange)
            batches = (read(name, at, at + _BATCH - 1) for at in range(0, count(name), _BATCH))
            _take_requests(queue, batches, rewritten, summary, push=push)
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


def _take_requests(
    queue: Queue,
    batches: Iterable[list[bytes]],
    rewritten: Callable[[dict[str, Any]], tuple[QueueLane, bytes]],
    summary: dict[str, Any],
    *,
    push: str,
) -> None:
    """Enqueue the requests in *batches*, each of which has a fingerprint here by which it is taken over once."""
    times: Counter[bytes] = Counter()
    for batch in batches:
        links: list[Link] = []
        for body in batch:
            try:
                lane, entry = rewritten(_PlainUnpickler(io.BytesIO(body)).load())
            except Exception as error:  # whatever the entry makes the request raise
                summary["refused"].append(f"{body[:40]!r}...: {error}")
                continue
            times[body] += 1
            marker = hashlib.sha1(b"taken over %d " % times[body] + body, usedforsecurity=False).digest()
            links.append(Link(queue.shard_of(marker), marker, lane._replace(push=push), entry))
        summary["requests"] += queue.enqueue(links)


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain types only: what would run code has to name a class or a function first."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not a plain type")
