"""A filter on a server, shared by any number of processes: :class:`SharedFilter`.

Spreads fingerprints over shards, chooses the engine, finds chains or begins them, and checks what it finds.
Says what went wrong; ``fleet_filter.py`` decides what a crawl does about it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mmh3 import mmh3_x64_128_digest

from scrapy_bloom.old.errors import UnknownFormatError
from scrapy_bloom.old.filter.key_space import check_key_space
from scrapy_bloom.old.fleet.client import Command, ReplyError, Script, unusable
from scrapy_bloom.old.fleet.filter import shared_chain
from scrapy_bloom.old.fleet.filter.bf import BloomCommandChain, min_capacity
from scrapy_bloom.old.fleet.filter.bitmap import BitmapChain
from scrapy_bloom.old.fleet.filter.shared_chain import ChainFigures, ChainParameters, GoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_bloom.old.fleet.client import Server
    from scrapy_bloom.old.fleet.filter.shared_chain import Chain

logger = logging.getLogger(__name__)

AUTO, BF, BITMAP = ENGINES = ("auto", "bf", "bitmap")

_BATCH_DIGESTS = 500
"""Per call of a shard: some 15 ms of the server's time, during which it answers nobody else."""

CONFIRM_SECONDS = 1.0
"""Seconds for which engine bf adds to a chain before it checks that the metadata still names that chain: its commands
do not read the metadata."""

LEAST_LIFETIME = 60
"""Least seconds that a filter lives after its last use, so that none expires under a busy worker."""

_BEGIN_ATTEMPTS = 5
_LIFETIME_REFRESHES = 4  # per lifetime
_REMOVE = Script((Path(__file__).parent / "remove.lua").read_text(encoding="utf-8"))


class SharedFilter:
    """Fingerprints on *server*: answers "seen before?" with a bounded error, atomically for all processes.

    Args:
        server: See :func:`scrapy_bloom.old.fleet.client.connect`.
        prefix: Prefix of the Redis keys, without braces, which delimit the hash tag.
        engine: ``"bf"``, ``"bitmap"``, or ``"auto"``: bf if the server has the commands and the capacity per shard is
            enough for them to keep the error rate. Engine bf raises a smaller capacity to that.
        shards: Number of chains that the fingerprints are spread over.
        capacity: Fingerprints that the first layers of all chains together are made for.
        error_rate: Bound on the false-positive probability, for every chain and so for the whole: each is
            looked up in one chain only.
        growth: How many times larger each next layer is. Engine bf rounds it to a whole number.
        key_space: What makes the fingerprints, by ingredient.
        max_age: Seconds after which the server forgets a fingerprint, less the time for which a process may answer by
            itself (:data:`~scrapy_bloom.old.fleet.filter.bitmap.LOCAL_AGE_SHARE`); None: never. Needs engine bitmap.
        ttl: Seconds after the last use at which the server removes the filter, at least :data:`LEAST_LIFETIME`; None
            for never.

    The numbers apply to a new filter; one that exists keeps its own.

    """

    def __init__(
        self,
        server: Server,
        prefix: str,
        *,
        engine: str = AUTO,
        shards: int = 1,
        capacity: int,
        error_rate: float,
        growth: float,
        key_space: Mapping[str, str],
        ttl: int | None = None,
        max_age: float | None = None,
    ) -> None:
        self.server = server
        self.where = f"{server.where}, key {prefix}"
        """Server and prefix of the Redis keys, for messages."""
        self._prefix = prefix
        self._engine = engine
        self._shards = shards
        self._capacity = capacity
        self._error_rate = error_rate
        self._growth = growth
        self._key_space = key_space
        self._ttl = None if ttl is None else max(ttl, LEAST_LIFETIME)
        self._max_age = max_age
        self._refresh_at = 0.0
        self._confirm_at: dict[str, float] = {}
        self._chains: list[Chain] = []
        self._warned: set[str] = set()

    @property
    def parameters(self) -> ChainParameters:
        """The stored parameters of the first chain; the others have the same but for id and seed."""
        return self._chains[0].parameters

    @property
    def chains(self) -> Sequence[Chain]:
        """The chains of the shards, in order, for scripts that look up, add and do more."""
        return self._chains

    @property
    def is_open(self) -> bool:
        """Whether the filter was opened, and not cleared since."""
        return bool(self._chains)

    def open(self) -> None:
        """Find the filter on the server, or begin it.

        Raises:
            UnusableError: What is there cannot be used.
            UnknownFormatError: It was begun by a newer scrapy-bloom.
            KeySpaceError: It was filled under another fingerprinter or other rules.
            ServerError: The server does not answer, or refuses.

        """
        left_behind = self._chains
        (first,) = self._begin([0], self._shards, self._chosen_engine())
        shards = first.parameters.shards
        self._chains = [first, *self._begin(range(1, shards), shards, first.parameters.engine)]
        ids = {chain.parameters.id for chain in self._chains}
        self._remove([chain for chain in left_behind if chain.parameters.id not in ids])
        for chain in self._chains:
            for warning in check_key_space(
                f"The filter on {self.where}",
                chain.parameters.key_space,
                self._key_space,
                advice="Put the setting back as it was, or use another BLOOM_REDIS_KEY, or remove the filter from the "
                "server.",
            ):
                self._warn(warning)
        if first.parameters.error_rate > self._error_rate * 1.000001:
            self._warn(
                f"The filter on {self.where} was begun with an error rate of {first.parameters.error_rate:g} and keeps "
                f"it; the settings ask for {self._error_rate:g}."
            )
        if shards != self._shards:
            self._warn(
                f"The filter on {self.where} was begun with {shards} shards and keeps them; the settings ask for "
                f"{self._shards}."
            )
        self._refresh_at = 0.0

    def add(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Remember *fingerprints*. Return for each whether it was new: true for one process only, whoever else adds it.

        Raises:
            GoneError: A chain is not on the server any more; :meth:`open` begins it anew.
            ServerError: The server does not answer, or refuses. What was carried out is not known.

        """
        self._refresh_lifetime()
        return [not seen for seen in self._exchange(fingerprints, adding=True)]

    def add_everywhere(self, fingerprints: Sequence[bytes]) -> None:
        """Remember *fingerprints* in every shard, for callers that do not know which one will be asked.

        Raises:
            GoneError: A chain is not on the server any more.
            ServerError: The server does not answer, or refuses.

        """
        for chain in self._chains:
            digests = [mmh3_x64_128_digest(one, chain.parameters.seed) for one in fingerprints]
            while digests:
                answers = chain.answers(
                    self.server.call(chain.command(digests[:_BATCH_DIGESTS], adding=True)), adding=True
                )
                digests = digests[len(answers) :]

    def seen_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added by anyone, in one round trip (per node of a cluster).

        Raises:
            GoneError: A chain is not on the server any more.
            ServerError: The server does not answer, or refuses.

        """
        return self._exchange(fingerprints, adding=False)

    def confirm(self) -> None:
        """Make sure that the server is there and has the filter, and keep it from expiring.

        Raises:
            GoneError: A chain is not on the server any more; :meth:`open` begins it anew.
            ServerError: The server does not answer, or refuses.

        """
        if not self._chains:
            raise GoneError
        self._refresh_lifetime()
        first = self._chains[0]
        self._check_confirmation(first, self.server.call(self._confirmation(first)))

    def figures(self) -> ChainFigures:
        """Return sums over the shards for counts and bytes, averages for rates, and the most layers.

        Raises:
            ServerError: The server does not tell.

        """
        shards = [chain.figures(self.server) for chain in self._chains]
        return ChainFigures(
            urls=sum(one.urls for one in shards),
            layers=max(one.layers for one in shards),
            nbytes=sum(one.nbytes for one in shards),
            fill_ratio=sum(one.fill_ratio for one in shards) / len(shards),
            error_rate=sum(one.error_rate for one in shards) / len(shards),
            room=sum(one.room for one in shards),
            forgotten=sum(one.forgotten for one in shards),
        )

    def clear(self) -> None:
        """Remove the filter from the server. Other processes find out at their next call, and begin it anew.

        Raises:
            ServerError: The server does not answer, or refuses.

        """
        self.open()  # read anew: layers that others have added go, too
        self._remove(self._chains)
        self._chains = []

    def _exchange(self, fingerprints: Sequence[bytes], *, adding: bool) -> list[bool]:
        chains = self._chains
        if not chains:
            raise GoneError
        seen = [False] * len(fingerprints)
        left: dict[int, list[int]] = {}
        for i, fingerprint in enumerate(fingerprints):
            left.setdefault(crc32(fingerprint) % len(chains), []).append(i)
        while left:
            commands = []
            for shard, indexes in left.items():
                seed = chains[shard].parameters.seed
                digests = [mmh3_x64_128_digest(fingerprints[i], seed) for i in indexes[:_BATCH_DIGESTS]]
                commands.append(chains[shard].command(digests, adding=adding))
            # Ask last: if the metadata still name the chain then, it was the right one before.
            to_confirm = [chains[shard] for shard in left if self._is_to_confirm(chains[shard])]
            replies = self.server.calls([*commands, *map(self._confirmation, to_confirm)])
            for chain, reply in zip(to_confirm, replies[len(commands) :], strict=True):
                self._check_confirmation(chain, reply)
            for (shard, indexes), reply in zip(list(left.items()), replies, strict=False):
                answers = chains[shard].answers(reply, adding=adding)
                for i, answer in zip(indexes, answers, strict=False):
                    seen[i] = answer
                left[shard] = indexes[len(answers) :]
                if not left[shard]:
                    del left[shard]
        return seen

    def _is_to_confirm(self, chain: Chain) -> bool:
        return chain.parameters.engine == BF and time.monotonic() >= self._confirm_at.get(chain.parameters.id, 0.0)

    def _confirmation(self, chain: Chain) -> Command:
        key = chain.all_keys()[0]
        return Command(("HGET", key, "id"), key)

    def _check_confirmation(self, chain: Chain, reply: Any) -> None:
        if isinstance(reply, ReplyError):
            raise reply
        if reply != chain.parameters.id.encode():
            raise GoneError
        self._confirm_at[chain.parameters.id] = time.monotonic() + CONFIRM_SECONDS

    def _tag(self, shard: int) -> str:
        return f"{self._prefix}:{shard}"

    def _begin(self, shards: Iterable[int], of: int, engine: str) -> list[Chain]:
        """Return the chains of *shards*, found or begun, with all their Redis keys there."""
        chains: dict[int, Chain | None] = dict.fromkeys(shards)
        for _ in range(_BEGIN_ATTEMPTS):
            missing = [shard for shard, chain in chains.items() if chain is None]
            if not missing:
                break
            for shard in missing:
                # One at a time: the server zeroes up to 512 MB for each, and together would not answer in time.
                (reply,) = self.server.calls([self._begin_command(shard, engine, of)])
                chains[shard] = self._found(shard, reply)
            self._drop_incomplete(chains, missing)
        found = [chain for chain in chains.values() if chain is not None]
        if len(found) < len(chains):
            raise unusable(
                self.where,
                "parts of it vanish as soon as they are created",
                "Look at the server's maxmemory-policy (noeviction is right), and at who else deletes keys there.",
            )
        return found

    def _begin_command(self, shard: int, engine: str, shards: int) -> Command:
        capacity = -(-self._capacity // shards)
        parameters = ChainParameters.draw(
            engine,
            shards=shards,
            capacity=max(capacity, min_capacity(self._error_rate)) if engine == BF else capacity,
            error_rate=self._error_rate,
            growth=self._growth,
            key_space=self._key_space,
        )
        tag = self._tag(shard)
        if engine == BF:
            return BloomCommandChain.begin(tag, parameters, self._ttl, is_valkey=self.server.is_valkey)
        return BitmapChain.begin(tag, parameters, self._ttl, self._max_age)

    def _found(self, shard: int, reply: object) -> Chain:
        advice = "Use another BLOOM_REDIS_KEY, or remove that key from the server."
        key = shared_chain.meta_key(self._tag(shard))
        if isinstance(reply, ReplyError):
            if "WRONGTYPE" in str(reply):
                raise unusable(self.where, f"the key {key} is taken by something else ({reply})", advice)
            raise reply
        meta = shared_chain.as_mapping(reply)
        version = int(meta.get("format", 0))
        if version > shared_chain.FORMAT:
            upgrade = "Upgrade scrapy-bloom, or use another BLOOM_REDIS_KEY."
            raise UnknownFormatError(
                f"The filter on {self.where}", "format", version, shared_chain.FORMAT, advice=upgrade
            )
        try:
            chain: Chain
            if meta.get("engine") == BF:
                chain = BloomCommandChain(self._tag(shard), meta)
            else:
                chain = BitmapChain(self._tag(shard), meta, self._max_age)
        except (ValueError, KeyError) as error:
            raise unusable(self.where, f"{key} cannot be used: {error}", advice) from None
        if self._max_age is not None and chain.parameters.engine == BF:
            raise unusable(
                self.where,
                "it was begun with engine bf, which cannot forget what is older than BLOOM_MAX_AGE",
                'Use another BLOOM_REDIS_KEY with BLOOM_REDIS_ENGINE = "bitmap", or take BLOOM_MAX_AGE out.',
            )
        if self._engine not in (AUTO, chain.parameters.engine):
            raise unusable(
                self.where,
                f"it was begun with engine {chain.parameters.engine}, and BLOOM_REDIS_ENGINE is {self._engine}",
                "Set the engine to what it was or to auto, or use another BLOOM_REDIS_KEY.",
            )
        return chain

    def _drop_incomplete(self, chains: dict[int, Chain | None], shards: Sequence[int]) -> None:
        """Remove chains of which the server has lost a part, so that they are begun anew."""
        found = [(shard, chain) for shard in shards if (chain := chains[shard]) is not None]
        commands = [Command(("EXISTS", *chain.all_keys()), chain.all_keys()[0]) for _, chain in found]
        for (shard, chain), count in zip(found, self.server.calls(commands), strict=True):
            if isinstance(count, ReplyError):
                raise count
            if count < len(chain.all_keys()):
                logger.warning(
                    "A part of the filter on %s is missing on the server: it was deleted, evicted or has expired. The "
                    "filter begins anew, and URLs seen before are fetched again.",
                    self.where,
                )
                self._remove([chain])
                chains[shard] = None

    def _chosen_engine(self) -> str:
        is_too_small = self._capacity / self._shards < min_capacity(self._error_rate)
        if self._engine == BITMAP or (self._engine == AUTO and (is_too_small or self._max_age is not None)):
            return BITMAP
        if self._max_age is not None:
            raise unusable(
                self.where,
                "BLOOM_REDIS_ENGINE is bf, which cannot forget what is older than BLOOM_MAX_AGE",
                'Set BLOOM_REDIS_ENGINE to "bitmap" or "auto", or take BLOOM_MAX_AGE out.',
            )
        key = shared_chain.meta_key(self._tag(0)).removesuffix("meta") + "none"
        (reply,) = self.server.calls([Command(("BF.MEXISTS", key, "x"), key)])
        if not isinstance(reply, ReplyError):
            return BF
        if self._engine == BF:
            raise unusable(
                self.where,
                f"the server has no bloom filter commands ({reply})",
                'Set BLOOM_REDIS_ENGINE to "bitmap", which any Redis or Valkey can do, or load the bloom module.',
            )
        return BITMAP

    def _remove(self, chains: Sequence[Chain]) -> None:
        commands = []
        for chain in chains:
            keys = chain.all_keys()
            commands.append(Command((len(keys), *keys, chain.parameters.id), keys[0], _REMOVE))
        for reply in self.server.calls(commands) if commands else ():
            if isinstance(reply, ReplyError):
                raise reply

    def _refresh_lifetime(self) -> None:
        if self._ttl is None or time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + self._ttl / _LIFETIME_REFRESHES
        keys = [key for chain in self._chains for key in chain.all_keys()]
        self.server.calls([Command(("EXPIRE", key, self._ttl), key) for key in keys])

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)


__all__ = ["AUTO", "BF", "BITMAP", "ENGINES", "GoneError", "SharedFilter"]
