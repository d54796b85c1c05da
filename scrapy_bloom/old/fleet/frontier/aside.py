"""Lists the requests that a queue has set aside, and puts them back. Needs no worker and no open filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_bloom.old.fleet.client import Command
from scrapy_bloom.old.fleet.frontier.entry import PUSHED, GarbledError, decode
from scrapy_bloom.old.fleet.frontier.scripts import ASIDE, command, key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.fleet.client import Server


@dataclass(frozen=True)
class SetAside:
    """One request that no worker gets."""

    id: str
    """Shard and number of the request, as ``0:17``."""
    reason: str
    """``crashes``: in hand at three crashes. ``garbled``: unreadable. ``size``: too large to be read."""
    url: str | None
    """Its URL, or what was pushed as a start URL. None: unreadable, at least without the secret of the workers."""


def listed(server: Server, prefix: str, shards: int) -> list[SetAside]:
    """Return the requests that were set aside.

    Raises:
        ServerError: The server does not answer, or refuses.

    """
    found = []
    for shard in range(shards):
        aside, requests = key(prefix, shard, "aside"), key(prefix, shard, "requests")
        for id_, place in server.call(Command(("HGETALL", aside), aside)).items():
            reason = place.split(b" ", 2)[1].decode()
            entry = None if reason == "size" else server.call(Command(("HGET", requests, id_), requests))
            found.append(SetAside(f"{shard}:{id_.decode()}", reason, _url_of(entry)))
    return sorted(found, key=lambda one: [int(number) for number in one.id.split(":")])


def urls_of(server: Server, requests: str, ids: Sequence[bytes]) -> list[str | None]:
    """Return the URLs of the requests *ids* in the hash *requests*; None for those that cannot be read.

    Raises:
        ServerError: The server does not answer, or refuses.

    """
    return [_url_of(entry) for entry in server.call(Command(("HMGET", requests, *ids), requests))] if ids else []


def put_back(server: Server, prefix: str, shards: int, ids: Sequence[str] = ()) -> int:
    """Make requests that were set aside pending again: *ids* as :func:`listed` names them, or all. Return how many.

    Raises:
        ServerError: The server does not answer, or refuses.

    """
    by_shard: dict[int, list[str]] = {} if ids else {shard: [] for shard in range(shards)}
    for one in ids:
        shard, _, id_ = one.partition(":")
        by_shard.setdefault(int(shard), []).append(id_)
    return sum(server.call(command(ASIDE, prefix, shard, ["back", *some])) for shard, some in by_shard.items())


def _url_of(entry: bytes | None) -> str | None:
    if entry is not None and entry[:1] == PUSHED:
        return entry[1:].decode(errors="replace")
    try:
        url = decode(entry or b"").get("url")
    except GarbledError:
        return None
    return url if isinstance(url, str) else None
