"""What the two engines have in common: the Redis keys and the metadata of one chain on a server.

Does not send anything. The metadata is a hash, written once when the chain begins. The stored values are used, whatever
the settings say, so that all processes of a fleet agree. All keys of a chain share a hash tag, so that one node of a
cluster has them all:

    {bloom:books:0}:meta        the metadata of shard 0 of the filter with prefix bloom:books
    {bloom:books:0}:1f0c...     the bits, under names that hold the chain's id: bits of a chain whose metadata is gone
                                are never taken for those of another chain with another seed

Fields: ``format``, ``engine``, ``id``, ``seed``, ``shards``, ``capacity``, ``error_rate``, ``growth``, ``created``
(seconds since 1970), ``key:<ingredient>`` for what makes the fingerprints, and those of the engine.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scrapy_bloom.old.fleet.client import Command, Script, Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

FORMAT = 1
"""Version of the metadata. A chain with a newer one is refused."""

_KEY_SPACE = "key:"
_BEGIN = Script((Path(__file__).parent / "begin.lua").read_text(encoding="utf-8"))


class GoneError(Exception):
    """The chain, or a part of it, is not on the server any more."""


@dataclass(frozen=True)
class ChainFigures:
    """What a chain holds at one moment, and how well it answers."""

    urls: int
    """URLs accepted as new."""
    layers: int
    nbytes: int
    fill_ratio: float
    """Expected share of set bits in the newest layer, from its count."""
    error_rate: float
    """Chance that a new URL is taken for seen, from the counts."""
    room: int
    """URLs that the oldest layer was made for: the first one, unless that was too old and is gone."""
    forgotten: int = 0
    """URLs that were dropped for their age since this process opened the chain, as far as it knew of them."""


@dataclass(frozen=True)
class ChainParameters:
    """What a chain was begun with, as it is stored."""

    engine: str
    id: str
    seed: int
    """Of the hash, 32 bits, drawn at random so that nobody can prepare URLs that fill chosen places."""
    shards: int
    capacity: int
    """URLs that the first layer is made for."""
    error_rate: float
    """Bound for the whole chain."""
    growth: float
    key_space: Mapping[str, str]

    @classmethod
    def draw(
        cls,
        engine: str,
        *,
        shards: int,
        capacity: int,
        error_rate: float,
        growth: float,
        key_space: Mapping[str, str],
    ) -> Self:
        """Return parameters with a new id and seed."""
        # The upper half of the range: MurmurHash3 mixes few bytes badly under seeds near 0.
        seed = secrets.randbits(32) | 1 << 31
        return cls(engine, secrets.token_hex(4), seed, shards, capacity, error_rate, growth, key_space)

    def fields(self) -> dict[str, Any]:
        """Return the metadata that every engine writes."""
        return {
            "format": FORMAT,
            "engine": self.engine,
            "id": self.id,
            "seed": self.seed,
            "shards": self.shards,
            "capacity": self.capacity,
            "error_rate": repr(self.error_rate),
            "growth": repr(self.growth),
            "created": int(time.time()),
            **{f"{_KEY_SPACE}{name}": value for name, value in self.key_space.items()},
        }

    @classmethod
    def parse(cls, meta: Mapping[str, str]) -> Self:
        """Read the parameters from metadata.

        Raises:
            ValueError: It was not written by scrapy-bloom; the message says what it is.

        """
        if "format" not in meta:
            raise ValueError("its key is taken by a hash that is not scrapy-bloom's")
        return cls(
            engine=meta["engine"],
            id=meta["id"],
            seed=int(meta["seed"]),
            shards=int(meta["shards"]),
            capacity=int(meta["capacity"]),
            error_rate=float(meta["error_rate"]),
            growth=float(meta["growth"]),
            key_space={
                name.removeprefix(_KEY_SPACE): value for name, value in meta.items() if name.startswith(_KEY_SPACE)
            },
        )


class Chain(Protocol):
    """One chain on a server, of either engine. Makes commands and reads answers; sending is the caller's."""

    parameters: ChainParameters

    def command(self, digests: Sequence[bytes], *, adding: bool) -> Command:
        """Return the command that looks *digests* up, and adds those that are new if *adding*."""

    def answers(self, reply: Any, *, adding: bool) -> list[bool]:
        """Return for each digest in *reply* whether it was seen; the caller asks again about the rest.

        Raises:
            GoneError: The chain is not there any more.
            ReplyError: The server answered with an error.

        """

    def probe_arguments(self, to_add: int) -> tuple[list[str], list[Any]]:
        """Return keys and arguments of ``open_chain()`` for a script that adds up to *to_add* digests."""

    def learn(self, reply: Sequence[Any]) -> Sequence[Any]:
        """Update the chain from a script's *reply*, and return the rest of it: empty if nothing was done.

        Raises:
            GoneError: The chain is not there any more.

        """

    def all_keys(self) -> list[str]:
        """Return all Redis keys that the chain is known to have, the metadata first."""

    def figures(self, server: Server) -> ChainFigures:
        """Return the figures of the chain as it is now; engine bf asks *server* for them."""


def meta_key(tag: str) -> str:
    """Return the Redis key of the metadata of the chain with hash tag *tag*."""
    return f"{{{tag}}}:meta"


def data_key(tag: str, parameters: ChainParameters, suffix: str = "") -> str:
    """Return a Redis key for bits of the chain."""
    return f"{{{tag}}}:{parameters.id}{suffix}"


def begin(
    tag: str,
    parameters: ChainParameters,
    first_key: str,
    arguments: Sequence[Any],
    fields: Mapping[str, Any],
    ttl: int | None,
) -> Command:
    """Return the command that finds the chain of *tag* or begins it as *parameters*; it answers with the metadata.

    *arguments* are the three of the engine that ``begin.lua`` describes, *ttl* is in seconds.
    """
    flat = [item for pair in {**parameters.fields(), **fields}.items() for item in pair]
    key = meta_key(tag)
    lifetime = 1000 * (ttl or 0)
    return Command((2, key, first_key, parameters.engine, lifetime, *arguments, *flat), key, _BEGIN)


def as_mapping(reply: Any) -> dict[str, str]:
    """Return the fields and values of a hash that a script has returned."""
    texts = [item.decode() if isinstance(item, bytes) else str(item) for item in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
