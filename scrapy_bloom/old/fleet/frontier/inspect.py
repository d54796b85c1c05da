"""Looks up what the queue and the filter of a fleet hold.

Only reads, also while workers run. Does not know what the requests mean, nor how the figures are printed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.fleet.client import Command, ReplyError
from scrapy_bloom.old.fleet.filter import shared_chain
from scrapy_bloom.old.fleet.filter.bf import BloomCommandChain
from scrapy_bloom.old.fleet.filter.bitmap import BitmapChain
from scrapy_bloom.old.fleet.frontier.scripts import key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.fleet.client import Server

_BATCH = 1000
_OF_A_WORKER = ("name", "lease", "number")


@dataclass(frozen=True)
class Worker:
    """One worker of the queue."""

    name: str
    last_seen: float | None
    """Seconds since 1970 on the server's clock; None if it was joined by an earlier scrapy-bloom."""
    is_alive: bool
    """Whether its lease runs. If not, others get what it holds at their next look."""
    held: int
    """Requests in hand."""


@dataclass(frozen=True)
class FleetFigures:
    """What is on the server under one prefix."""

    where: str
    prefix: str
    spider: str
    engine: str
    shards: int
    urls: int
    layers: int
    nbytes: int
    """Of the filter."""
    fill_ratio: float
    """Expected share of set bits in the newest layer, the mean over the shards."""
    error_rate: float
    """Chance that a new URL is taken for seen now."""
    enqueued: int
    """Requests ever enqueued."""
    pending: int
    leased: int
    aside: int
    hosts: int
    """Download slots with pending requests."""
    pending_by_host: Sequence[tuple[str, int]]
    """Those with most of them."""
    workers: Sequence[Worker]
    is_moving: bool
    """Whether requests of scrapy-redis are being taken over, or that was interrupted."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is pending and nothing in hand anywhere."""
        return not (self.pending or self.leased or self.is_moving)


def prefixes(server: Server) -> dict[str, str]:
    """Return the prefixes of all queues on *server*, with their spiders. On a cluster that takes a known prefix.

    Raises:
        ServerError: The server does not answer, or refuses.

    """
    found: set[str] = set()
    cursor: Any = 0
    while True:
        cursor, keys = server.call(Command(("SCAN", cursor, "MATCH", "{*:0}:queue", "COUNT", _BATCH), ""))
        found.update(name.decode(errors="replace")[1:].removesuffix(":0}:queue") for name in keys)
        if int(cursor) == 0:
            return {prefix: _hash(server, key(prefix, 0, "queue")).get("spider", "") for prefix in sorted(found)}


def figures(server: Server, prefix: str, *, most_hosts: int = 10) -> FleetFigures:
    """Return what is on *server* under *prefix*, with the *most_hosts* hosts that have most pending requests.

    Raises:
        UnusableError: There is no queue, or no filter beside it that can be read.
        ServerError: The server does not answer, or refuses.

    """
    metas = [_hash(server, shared_chain.meta_key(f"{prefix}:0"))]
    state = _hash(server, key(prefix, 0, "queue"))
    if not state or not metas[0]:
        raise UnusableError(
            f"{server.where}, key {prefix},",
            "holds no queue of FleetScheduler's" if not state else "has a queue but no filter beside it",
            advice="Give the --spider, or the BLOOM_REDIS_KEY as --key.",
        )
    shards = int(metas[0].get("shards", 1))
    metas += [_hash(server, shared_chain.meta_key(f"{prefix}:{shard}")) for shard in range(1, shards)]
    try:
        chains = [
            (BloomCommandChain if meta["engine"] == "bf" else BitmapChain)(f"{prefix}:{shard}", meta)
            for shard, meta in enumerate(metas)
        ]
        seen = [chain.figures(server) for chain in chains]
    except (KeyError, ValueError) as error:
        raise UnusableError(
            f"The filter on {server.where}, key {prefix},", f"cannot be read: {error}", advice=""
        ) from None

    pending: dict[str, int] = {}
    workers: dict[str, Worker] = {}
    enqueued = outstanding = aside = 0
    for shard in range(shards):
        enqueued += int(_hash(server, key(prefix, shard, "queue")).get("seq", 0))
        in_shard = _call(server, "HLEN", key(prefix, shard, "aside"))
        aside += in_shard
        outstanding += _call(server, "HLEN", key(prefix, shard, "requests")) - in_shard
        pending.update(_pending(server, prefix, shard))
        for worker in _workers(server, prefix, shard):
            known = workers.get(worker.name)
            workers[worker.name] = worker if known is None else _together(known, worker)
    waiting = sum(pending.values())
    return FleetFigures(
        where=server.where,
        prefix=prefix,
        spider=state.get("spider", ""),
        engine=metas[0]["engine"],
        shards=shards,
        urls=sum(one.urls for one in seen),
        layers=max(one.layers for one in seen),
        nbytes=sum(one.nbytes for one in seen),
        fill_ratio=sum(one.fill_ratio for one in seen) / shards,
        error_rate=sum(one.error_rate for one in seen) / shards,
        enqueued=enqueued,
        pending=waiting,
        # Do not add up the workers' hashes: a request that moves between two look-ups would count twice, or not at all.
        leased=max(0, outstanding - waiting),
        aside=aside,
        hosts=len(pending),
        pending_by_host=nlargest(most_hosts, pending.items(), key=lambda item: item[1]),
        workers=sorted(workers.values(), key=lambda worker: worker.name),
        is_moving=bool(_call(server, "EXISTS", key(prefix, 0, "moving"))),
    )


def _pending(server: Server, prefix: str, shard: int) -> dict[str, int]:
    slots = key(prefix, shard, "slots")
    names = _call(server, "ZRANGE", slots, 0, -1)
    found = {}
    for at in range(0, len(names), _BATCH):
        some = names[at : at + _BATCH]
        lanes = [key(prefix, shard, f"slot:{name.decode(errors='surrogateescape')}") for name in some]
        for name, count in zip(some, server.calls([Command(("ZCARD", lane), lane) for lane in lanes]), strict=True):
            if isinstance(count, ReplyError):
                raise count
            if count:
                found[name.decode(errors="replace")] = count
    return found


def _workers(server: Server, prefix: str, shard: int) -> list[Worker]:
    first = key(prefix, shard, "workers")
    # A cluster has a clock per node, and redis-py asks any of them.
    seconds, microseconds = (time.time(), 0) if server.is_cluster else server.call(Command(("TIME",), first))
    now = 1000 * float(seconds) + float(microseconds) / 1000
    flat = _call(server, "ZRANGE", first, 0, -1, "WITHSCORES")
    found = []
    for token, ends in zip(flat[::2], flat[1::2], strict=True):
        held = key(prefix, shard, f"held:{token.decode()}")
        name, lease, number = _call(server, "HMGET", held, *_OF_A_WORKER)
        if name is None:  # it has just left
            continue
        count = _call(server, "HLEN", held) - sum(one is not None for one in (name, lease, number))
        found.append(
            Worker(
                name.decode(errors="replace"),
                last_seen=None if lease is None else (float(ends) - float(lease)) / 1000,
                is_alive=float(ends) > now,
                held=count,
            )
        )
    return found


def _together(one: Worker, other: Worker) -> Worker:
    seen = [worker.last_seen for worker in (one, other) if worker.last_seen is not None]
    return Worker(one.name, max(seen, default=None), one.is_alive or other.is_alive, one.held + other.held)


def _call(server: Server, name: str, redis_key: str, *arguments: Any) -> Any:
    return server.call(Command((name, redis_key, *arguments), redis_key))


def _hash(server: Server, redis_key: str) -> dict[str, str]:
    try:
        found = _call(server, "HGETALL", redis_key)
    except ReplyError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return {}
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in found.items()}
