"""Reads what the queue of a fleet holds, for the commands, and makes their changes."""

from __future__ import annotations

import ast
import time
from collections import Counter
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgpack  # type: ignore[import-untyped]  # it has no types

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.entry import RETRIED, for_script, url_of
from scrapy_bloom.fleet.messages import Forget
from scrapy_bloom.fleet.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scrapy_bloom.fleet.server import Server

DEAD, FAILED = "dead", "failed"
"""Lists of requests that are not pending any more: in hand at crashes, or unreadable; failed for good."""
_AT_ONCE = 500  # requests of a call


class Listed(NamedTuple):
    """A request on a list of the server."""

    url: str
    """Its URL, or what stands for it."""
    host: str
    """The host of the URL, or the slot if the URL has none. Without queues by host, all requests have one slot."""
    reason: str
    time: float
    """Seconds since 1970."""
    key: str
    """Of the shard."""
    row: tuple[bytes, bytes, bytes, bytes]
    """What the script takes that requeues it."""


class SharedQueue(Queue):
    """The queue that is there under the Redis key *prefix* on *server*. Raises UnusableError if there is none."""

    def __init__(self, server: Server, prefix: str) -> None:
        super().__init__(server, prefix)
        self._client = server.client
        state: dict[bytes, bytes] = self._client.hgetall(self.key(0))
        if b"shards" not in state:
            advice = "Name BLOOM_REDIS_KEY, by default bloom: and the spider's name, after the server."
            raise UnusableError(f"The key {prefix} on {server.where}", "is not the queue of a fleet", advice=advice)
        self.shards, self._new["seed"] = int(state[b"shards"]), state[b"seed"]
        self._keys = [self.key(shard) for shard in range(self.shards)]
        self._chains = {shard: self._client.hget(key, "chain") for shard, key in enumerate(self._keys)}
        self._scripts["requeue"] = server.script("head", "requeue")
        self.key_space: Mapping[str, str] = dict(ast.literal_eval(state[b"key_space"].decode()))
        """The settings that the fingerprints depend on."""

    def info(self) -> dict[str, Any]:
        """Return what is there, in plain types."""
        client, counts, leased, alive = self._client, Counter[str](), Counter[str](), set[str]()
        now, paused = time.time(), set[bytes]()
        for key in self._keys:
            outstanding, seq = (int(value or 0) for value in client.hmget(key, "outstanding", "seq"))
            counts.update(enqueued=seq, outstanding=outstanding)
            pauses = client.hgetall(f"{key}:paused")  # a pause stays noted until its slot has a turn
            paused |= {slot for slot, until in pauses.items() if float(until) > 1000 * now}
            counts.update(dead=client.llen(f"{key}:{DEAD}"), failed=client.llen(f"{key}:{FAILED}"))
            for token, lease_ends in client.zrange(f"{key}:workers", 0, -1, withscores=True):
                name = (client.hget(f"{key}:worker:{token.decode()}", "name") or token).decode()
                leased[name] += client.hlen(f"{key}:held:{token.decode()}")
                if lease_ends / 1000 > now:
                    alive.add(name)
        in_hand = leased.total()
        return {
            "server": self.server.where,
            "key": self.prefix,
            "enqueued": counts["enqueued"],
            "done": counts["enqueued"] - counts["outstanding"],
            "pending": counts["outstanding"] - in_hand,
            "leased": in_hand,
            "hosts_paused": len(paused),
            "dead_lettered": counts["dead"],
            "failed": counts["failed"],
            "workers": [{"worker": name, "leased": count, "is_alive": name in alive} for name, count in leased.items()],
        }

    def estimates(self) -> list[bytes]:
        """Return what each process has noted for the estimate of pages left."""
        return list(self._client.hvals(f"{self._keys[0]}:estimates"))

    def of_full_hosts(self) -> int:
        """Return how many requests are pending of hosts that have had their pages."""
        client, total = self._client, 0
        for key in self._keys:
            for slot in client.smembers(f"{key}:full"):
                scores = client.zrange(f"{key}:lanes:".encode() + slot, 0, -1)
                total += sum(client.llen(f"{key}:lane:".encode() + score + b":" + slot) for score in scores)
        return total

    def listed(self, name: str) -> Iterator[Listed]:
        """Yield the requests on the list *name*, the oldest of each shard first."""
        for key in self._keys:
            for value in self._client.lrange(f"{key}:{name}", 0, -1):
                reason, slot, score, entry, moment, *_ = msgpack.unpackb(value, raw=True)
                url, host = url_of(entry), slot.decode(errors="replace")
                with suppress(ValueError):
                    host = urlsplit(url).hostname or host
                row = value, slot, score, RETRIED + entry
                yield Listed(url, host, reason.decode(errors="replace"), float(moment), key, row)

    def requeue(self, name: str, host: str | None) -> int:
        """Make the requests on the list *name*, of *host* if given, pending again; return how many."""
        requeued, chosen = 0, [listed for listed in self.listed(name) if host in (None, listed.host)]
        for shard, key in enumerate(self._keys):
            rows = [listed.row for listed in chosen if listed.key == key]
            for at in range(0, len(rows), _AT_ONCE):
                flat = for_script([*chain.from_iterable(rows[at : at + _AT_ONCE])])
                requeued += self._step("requeue", shard, "", name, flat)
        return requeued

    def end_lives(self, names: str) -> None:
        """Give back what workers whose names begin with *names* have in hand: they were killed on purpose."""
        for shard, key in enumerate(self._keys):
            for name, token in self._client.hgetall(f"{key}:names").items():
                if name.decode().startswith(names):
                    self._step("leave", shard, token.decode(), -1)

    def forget(self, fingerprints: Iterable[bytes]) -> None:
        """Take *fingerprints* back on the server. A running worker that knows one of them still drops its links."""
        for fingerprint in fingerprints:
            shard = self.shard_of(fingerprint)
            self.finish(shard, "", 0, [Forget(shard, fingerprint)])
