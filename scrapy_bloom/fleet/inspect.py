"""What the queue of a fleet holds, for ``scrapy bloom info``. Changes nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]  # it has no types

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.entry import PLAIN, unpacked

if TYPE_CHECKING:
    from scrapy_bloom.fleet.server import Server

_MOST_DEAD = 100  # dead letters that are named


def inspect_queue(server: Server, prefix: str) -> dict[str, Any]:
    """Return what is under the Redis key *prefix*, in plain types. Raises UnusableError if that is no queue."""
    client = server.client
    if (shards := client.hget(f"{{{prefix}:0}}", "shards")) is None:
        advice = "Name BLOOM_REDIS_KEY, by default bloom: and the spider's name, after the server."
        raise UnusableError(f"The key {prefix} on {server.where}", "is no queue of a fleet", advice=advice)
    counts, leased, dead = Counter[str](), Counter[str](), list[dict[str, str]]()
    for shard in range(int(shards)):
        key = f"{{{prefix}:{shard}}}"
        outstanding, seq, left = (int(each or 0) for each in client.hmget(key, "outstanding", "seq", "left"))
        dead_letters = client.llen(f"{key}:dead")
        counts.update(enqueued=seq, outstanding=outstanding, left=left, dead_lettered=dead_letters)
        for token in client.zrange(f"{key}:workers", 0, -1):
            name = client.hget(f"{key}:worker:{token.decode()}", "name") or token
            leased[name.decode()] += client.hlen(f"{key}:held:{token.decode()}")
        for packed in client.lrange(f"{key}:dead", 0, _MOST_DEAD - 1):
            why, slot, _, entry = msgpack.unpackb(packed, raw=True)
            url = slot.decode(errors="replace")
            with suppress(Exception):  # an unreadable one may be anything
                url = str(unpacked(entry.removeprefix(PLAIN))[0])
            dead.append({"why": why.decode(), "url": url})
    in_hand = leased.total()
    return {
        "server": server.where,
        "key": prefix,
        "enqueued": counts["enqueued"],
        "pending": counts["outstanding"] - in_hand,
        "pending_of_full_hosts": counts["left"],
        "leased": in_hand,
        "dead_lettered": counts["dead_lettered"],
        "workers": [{"worker": name, "leased": count} for name, count in leased.items()],
        "dead_letters": dead[:_MOST_DEAD],
    }
