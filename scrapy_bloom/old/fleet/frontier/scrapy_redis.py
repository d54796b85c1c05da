"""Takes over what scrapy-redis left of a spider: its pending requests and its filter. See :func:`take_over`.

Knows the Redis keys of scrapy-redis. Does not know what an entry of its queue means: the caller turns it into a link.

The old keys are renamed first, so that nothing is added to them meanwhile, and stay under those names. Then the filter
is taken over, then the requests, in batches, each request once whatever happens in between. The state is on the queue's
server, so that any worker can go on with it:

    {bloom:books:0}:moving          number of the take-over, and the names that the old keys have now
    {bloom:books:0}:mover           token of the worker that does it; expires
    {bloom:books:0}:taken:<number>  marks of the requests that were taken over so far, in each shard
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.fleet.client import Command, ReplyError, Script, ServerError
from scrapy_bloom.old.fleet.frontier.entry import GarbledError
from scrapy_bloom.old.fleet.frontier.plain_pickle import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.old.fleet.client import Server
    from scrapy_bloom.old.fleet.frontier.queue import Link, Queue

logger = logging.getLogger(__name__)

MOVER_SECONDS = 30
"""Seconds of silence after which another worker goes on with the take-over. A batch takes less than a second."""

_BATCH = 200
_SAMPLE = 200
_FINGERPRINTS = 1000
_SHOWN = 20
_PROGRESS_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_HEX_DIGITS = 40
_QUEUE_TYPES = {"zset": "ZCARD", "list": "LLEN", "none": None}
"""What a queue of scrapy-redis can be, and what tells its length."""
_KEEP_MOVER = Script("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0")
_RELEASE_MOVER = Script("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0")


@dataclass(frozen=True)
class Source:
    """Where scrapy-redis kept the requests of the spider, and what they mean.

    Args:
        server: Its server; may be that of the queue.
        queue: Its ``SCHEDULER_QUEUE_KEY``, with the spider's name.
        dupefilter: Its ``SCHEDULER_DUPEFILTER_KEY``, with the spider's name.
        is_stack: If the queue is a list: whether what came last was first (``LifoQueue``).
        link_of: Turns the fields of a request into a link; raises :class:`GarbledError` if they make none.
        to_lifo: Whether links are last-in-first-out, so that the last of the queue has to come first.
        why_not: Why its filter cannot be used; "" if it can.

    """

    server: Server
    queue: str
    dupefilter: str
    is_stack: bool
    link_of: Callable[[Any], Link]
    to_lifo: bool
    why_not: str = ""


@dataclass
class Taken:
    """What was taken over."""

    requests: int = 0
    fingerprints: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Name of an entry, the beginning of its SHA1, and why it was refused."""


def has_filter(source: Source) -> bool:
    """Return whether there is a filter of scrapy-redis to take over; False if its server does not answer."""
    with suppress(ServerError):  # take_over() reports it
        return _exists(source, source.dupefilter)
    return False


def is_anything_left(queue: Queue, source: Source) -> bool:
    """Return whether there is something for :func:`take_over`; to be asked before the worker joins the queue.

    Raises:
        ServerError: A server does not answer.

    """
    # In this order: keys that another worker has just renamed are noted as under way since before that.
    return _exists(source, source.queue) or _exists(source, source.dupefilter) or _is_under_way(queue)


def take_over(queue: Queue, source: Source) -> Taken:
    """Take over what there is, or go on where that was interrupted; wait for another worker that does it.

    Raises:
        ServerError: A server does not answer, or refuses. Called again, it goes on where it was.
        GoneError: The filter beside the queue is not on the server any more.

    """
    taken = Taken()
    has_waited = False
    while _is_under_way(queue) if has_waited else is_anything_left(queue, source):
        mover = secrets.token_hex(8)
        if queue.server.call(_on_queue(queue, "mover", "SET", mover, "NX", "PX", 1000 * MOVER_SECONDS)) is None:
            if not has_waited:
                logger.info(
                    "Another worker takes over what scrapy-redis left on %s; waiting for it", queue.server.where
                )
            has_waited = True
            _renew_leases(queue)
            time.sleep(_LOOK_SECONDS)
            continue
        try:
            # Only once: while workers of scrapy-redis run, there is always more.
            if _is_under_way(queue) or not has_waited:
                _TakeOver(queue, source, mover, taken).run()
                break
        except _LostError:
            logger.warning("Another worker has gone on with the take-over from scrapy-redis")
            has_waited = True
        finally:
            key = queue.key(0, "mover")
            with suppress(ServerError):  # it expires
                queue.server.call(Command((1, key, mover), key, _RELEASE_MOVER))
    # Another worker may have done it since this one joined.
    queue.knows_scrapy_redis = bool(queue.server.call(_on_queue(queue, "queue", "HEXISTS", "scrapy_redis")))
    return taken


def _is_under_way(queue: Queue) -> bool:
    return bool(queue.server.call(_on_queue(queue, "moving", "EXISTS")))


def _exists(source: Source, key: str) -> bool:
    try:
        return bool(source.server.call(Command(("EXISTS", key), key)))
    except ReplyError as error:  # a user that may see no key but ours
        logger.debug("The keys of scrapy-redis on %s cannot be looked at: %s", source.server.where, error)
        return False


def _on_queue(queue: Queue, name: str, command: str, *arguments: Any) -> Command:
    key = queue.key(0, name)
    return Command((command, key, *arguments), key)


def _renew_leases(queue: Queue) -> None:
    queue.server.calls([queue.lease(shard, 0) for shard in range(queue.shards)])


class _LostError(Exception):
    """Another worker has gone on with the take-over, since this one was silent for too long."""


class _TakeOver:
    """One take-over, by the worker that holds *mover*."""

    def __init__(self, queue: Queue, source: Source, mover: str, taken: Taken) -> None:
        self._queue = queue
        self._source = source
        self._mover = mover
        self._taken = taken
        self._refused: list[tuple[bytes, float]] = []
        self._next_word = time.monotonic() + _PROGRESS_SECONDS

    def run(self) -> None:
        """Do it, or go on with it.

        Raises:
            _LostError: Another worker has gone on with it.

        """
        self._rename()
        kind = self._type(self._moved_queue)
        total = self._length(kind)
        logger.info(
            "Taking over from scrapy-redis on %s: %s of %s, now %s, and the filter %s, now %s. "
            "Workers of scrapy-redis that still run begin anew; stop them.",
            self._source.server.where,
            counted(total, "pending request"),
            self._source.queue,
            self._moved_queue,
            self._source.dupefilter,
            self._moved_filter,
        )
        if kind not in _QUEUE_TYPES:
            logger.error(
                "%s on %s is of type %s, and scrapy-redis keeps pending requests in a sorted set or a list: they are "
                "not taken over. If they are yours, fetch them with the queue class that wrote them.",
                self._moved_queue,
                self._source.server.where,
                kind,
            )
        self._take_filter(kind, total)
        self._take_requests(kind, total)
        self._end(kind)

    # -- names -------------------------------------------------------------------------------------------------------

    def _rename(self) -> None:
        """Give the old keys names that nobody else uses, and note these before."""
        found = self._queue.server.call(_on_queue(self._queue, "moving", "HGETALL"))
        state = {name.decode(): value.decode() for name, value in found.items()}
        if not state:
            state = {"number": secrets.token_hex(4), "suffix": self._free_suffix()}
            self._queue.server.call(
                _on_queue(self._queue, "moving", "HSET", *(item for pair in state.items() for item in pair))
            )
        self._number = state["number"]
        self._moved_queue = self._moved(self._source.queue, state["suffix"])
        self._moved_filter = self._moved(self._source.dupefilter, state["suffix"])
        for old, new in ((self._source.queue, self._moved_queue), (self._source.dupefilter, self._moved_filter)):
            if self._call("EXISTS", old) and not self._call("EXISTS", new):
                self._call("RENAMENX", old, new)

    def _free_suffix(self) -> str:
        for number in range(1, 1000):
            suffix = ":moved" + (str(number) if number > 1 else "")
            keys = (self._source.queue, self._source.dupefilter)
            if not any(self._call("EXISTS", self._moved(key, suffix)) for key in keys):
                return suffix
        return f":moved-{secrets.token_hex(4)}"

    def _moved(self, key: str, suffix: str) -> str:
        """Return the name that *key* gets, which a cluster has to keep on the same node."""
        is_tagged = "{" in key or not self._source.server.is_cluster
        return f"{key}{suffix}" if is_tagged else f"{{{key}}}{suffix}"

    def _call(self, command: str, key: str, *arguments: Any) -> Any:
        return self._source.server.call(Command((command, key, *arguments), key))

    def _type(self, key: str) -> str:
        found = self._call("TYPE", key)
        return str(found.decode() if isinstance(found, bytes) else found)

    def _keep(self) -> None:
        """Say that this worker is alive, to the others that wait and to the queue.

        Raises:
            _LostError: Another has gone on.

        """
        key = self._queue.key(0, "mover")
        if not self._queue.server.call(Command((1, key, self._mover, 1000 * MOVER_SECONDS), key, _KEEP_MOVER)):
            raise _LostError
        _renew_leases(self._queue)

    # -- the filter --------------------------------------------------------------------------------------------------

    def _take_filter(self, kind: str, total: int) -> None:
        found = self._type(self._moved_filter)
        if found == "none":
            return
        if found != "set":
            why_not = f"it is of type {found}, and scrapy-redis keeps a set there"
        elif kind not in _QUEUE_TYPES:
            why_not = f"the pending requests, of type {kind}, cannot be read, and would count as seen"
        else:
            why_not = self._source.why_not or self._foreign_fingerprints(kind, total)
        if why_not:
            logger.warning(
                "The filter of scrapy-redis, now %s on %s, is not taken over: %s. Pages that it knows and that are not "
                "pending are fetched again.",
                self._moved_filter,
                self._source.server.where,
                why_not,
            )
            return
        cursor = None
        while cursor != 0:
            found, members = self._call("SSCAN", self._moved_filter, cursor or 0, "COUNT", _FINGERPRINTS)
            cursor = int(found)
            fingerprints = [one for member in members if (one := _fingerprint(member)) is not None]
            self._queue.shared.add_everywhere(fingerprints)
            self._taken.fingerprints += len(fingerprints)
            self._keep()
            self._report(f"{self._taken.fingerprints:,} fingerprints")
        for shard in range(self._queue.shards):
            state = self._queue.key(shard, "queue")
            self._queue.server.call(Command(("HSET", state, "scrapy_redis", 1), state))

    def _foreign_fingerprints(self, kind: str, total: int) -> str:
        """Return what is wrong if the pending requests are not in the filter that scrapy-redis put them into."""
        expected = []
        for entry, _ in next(self._batches(kind, total, _SAMPLE), []):
            try:
                link = self._source.link_of(loads(entry))
            except GarbledError:
                continue
            if link.scrapy_redis is not None:
                expected.append(link.scrapy_redis.hex())
        if not expected or any(self._call("SISMEMBER", self._moved_filter, one) for one in expected):
            return ""
        return (
            f"none of {len(expected)} pending requests is in it, so its fingerprints are not those of scrapy-redis 0.9"
        )

    # -- the requests ------------------------------------------------------------------------------------------------

    def _length(self, kind: str) -> int:
        command = _QUEUE_TYPES.get(kind)
        return int(self._call(command, self._moved_queue)) if command else 0

    def _batches(self, kind: str, total: int, size: int) -> Iterator[list[tuple[bytes, float]]]:
        """Yield the entries with their scores, in the order in which they have to be enqueued."""
        # Whether they come in the order in which scrapy-redis would pop them, seen from the beginning of the key.
        pops_from_beginning = kind == "zset" or self._source.is_stack
        for done in range(0, total, size):
            count = min(size, total - done)
            first = total - done - count if pops_from_beginning == self._source.to_lifo else done
            last = first + count - 1
            if kind == "zset":
                flat = self._call("ZRANGE", self._moved_queue, first, last, "WITHSCORES")
                pairs = [(entry, float(score)) for entry, score in zip(flat[::2], flat[1::2], strict=True)]
            else:
                pairs = [(entry, 0.0) for entry in self._call("LRANGE", self._moved_queue, first, last)]
            yield pairs[::-1] if pops_from_beginning == self._source.to_lifo else pairs

    def _take_requests(self, kind: str, total: int) -> None:
        times: Counter[bytes] = Counter()
        for batch in self._batches(kind, total, _BATCH):
            by_shard: dict[int, tuple[list[Link], list[bytes]]] = {}
            for entry, score in batch:
                mark = hashlib.sha1(entry, usedforsecurity=False).digest()
                if kind == "list":  # which may hold equal ones; a sorted set does not
                    times[mark] += 1
                    mark += b"%d" % times[mark]
                try:
                    link = self._source.link_of(loads(entry))
                except GarbledError as error:
                    self._refused.append((entry, score))
                    self._taken.refused.append((mark.hex()[:12], str(error)))
                    continue
                links, marks = by_shard.setdefault(link.shard, ([], []))
                links.append(link)
                marks.append(mark)
            for shard, (links, marks) in by_shard.items():
                while links:
                    through = self._queue.move(shard, self._number, links, marks)
                    del links[:through], marks[:through]
                    self._taken.requests += through
            self._keep()
            self._report(f"{self._taken.requests:,} of {total:,} requests")

    def _report(self, so_far: str) -> None:
        if time.monotonic() >= self._next_word:
            self._next_word = time.monotonic() + _PROGRESS_SECONDS
            logger.info("Taken over from scrapy-redis so far: %s", so_far)

    def _end(self, kind: str) -> None:
        self._keep()
        where = self._source.server.where
        if self._refused:
            # Where they were, so that nobody overlooks them: the next start tries again, and says so again.
            add = {"zset": "ZADD", "list": "LPUSH"}[kind]
            for entry, score in self._refused:
                self._call(add, self._source.queue, *([score] if kind == "zset" else []), entry)
            shown = "; ".join(f"{name}: {why}" for name, why in self._taken.refused[:_SHOWN])
            logger.error(
                "%d pending requests of scrapy-redis cannot be read without running code that they name, or make no "
                "request of this spider, and stay under %s on %s: %s%s. Let scrapy-redis crawl them, or remove them.",
                len(self._refused),
                self._source.queue,
                where,
                shown,
                "; ..." if len(self._refused) > _SHOWN else "",
            )
        queue = self._queue
        queue.server.call(_on_queue(queue, "moving", "DEL"))
        for shard in range(queue.shards):
            marks = queue.key(shard, f"taken:{self._number}")
            queue.server.call(Command(("UNLINK", marks), marks))
        if self._refused and len(self._refused) == self._length(kind):
            self._call("UNLINK", self._moved_queue)  # all of it is back in its place
        logger.info(
            "Taken over from scrapy-redis on %s: %s and %s. What it left is kept under "
            "%s and %s, for the way back; remove it when you no longer need it.",
            where,
            counted(self._taken.requests, "pending request"),
            counted(self._taken.fingerprints, "fingerprint"),
            self._moved_queue,
            self._moved_filter,
        )


def _fingerprint(member: Any) -> bytes | None:
    text = member.decode("ascii", "replace") if isinstance(member, bytes) else str(member)
    try:
        return bytes.fromhex(text) if len(text) == _HEX_DIGITS else None
    except ValueError:
        return None
