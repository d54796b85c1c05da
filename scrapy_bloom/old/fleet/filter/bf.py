"""Engine ``bf``: the server's own scalable bloom filter (Redis 8, Redis Stack, Valkey's bloom module).

One Redis key, ``BF.RESERVE`` to begin and ``BF.INSERT`` with ``NOCREATE`` to add. ``BF.ADD`` does the same, but on a
key that is gone it would begin a new filter at the server's default error rate, which loses one new page in a hundred.

*What the server does with an error rate.* RedisBloom gives its layer i the rate p / 2^(i+1), so the sum over all layers
stays below the p of ``BF.RESERVE`` (RedisBloom, ``src/sb.c``: the first layer is already tightened by 0.5). Valkey's
module begins at p itself and halves from there, so the sum stays below 2 p (valkey-bloom, ``src/bloom/utils.rs``);
it is told half of ours. The layers are then the same in both.

*Why layers have a least size.* The server's probes are double hashing, a + i b mod m. Two fingerprints with the
same stride mod m overlap in all but j places if they start j strides apart, which adds about 6 n / m^2 to the rate of a
layer. For p = 1e-6 that is 1 % at n = 1,000,000, but at n = 1,000 the measured rate was 8e-6 instead of 5e-7, at 100 it
was 2e-4 (RedisBloom 2.8; 1 to 6 million absent fingerprints each). So a layer is never smaller than
:func:`min_capacity`, where this is a tenth of the rate, and the server is told 1/1.1 of ours. As the layers' sizes grow
at least as fast as their rates shrink, the tenth holds for all of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.filter import sizing
from scrapy_bloom.old.fleet.client import Command, ReplyError, Server
from scrapy_bloom.old.fleet.filter import shared_chain
from scrapy_bloom.old.fleet.filter.shared_chain import ChainFigures, ChainParameters, GoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBES_LUA = (Path(__file__).parent / "bf.lua").read_text(encoding="utf-8")
"""The beginning of a script that looks up digests and adds them, like that of the other engine."""

_TIGHTENING = 0.5
_OVERLAP = 0.1


def min_capacity(error_rate: float) -> int:
    """Return the least capacity of a first layer for which a chain's *error_rate* is kept: 130,000 at 1e-6."""
    rate = _server_rate(error_rate) * _TIGHTENING
    return math.ceil(6 / (sizing.bits_per_fingerprint(rate, sizing.optimal_probes(rate)) ** 2 * _OVERLAP * rate))


def _server_rate(error_rate: float) -> float:
    return error_rate / (1 + _OVERLAP)


class BloomCommandChain:
    """A filter of the server's own, and the metadata beside it."""

    def __init__(self, tag: str, meta: Mapping[str, str]) -> None:
        """Take the metadata that the server has for hash tag *tag*.

        Raises:
            ValueError: It cannot be used; the message says why.

        """
        self.parameters = ChainParameters.parse(meta)
        self._tag = tag
        self._key = shared_chain.data_key(tag, self.parameters)

    @staticmethod
    def begin(tag: str, parameters: ChainParameters, ttl: int | None, *, is_valkey: bool) -> Command:
        """Return the command that finds the chain of *tag* or begins it."""
        rate = _server_rate(parameters.error_rate) * (_TIGHTENING if is_valkey else 1)
        arguments = (f"{rate:.12g}", parameters.capacity, round(parameters.growth))
        return shared_chain.begin(tag, parameters, shared_chain.data_key(tag, parameters), arguments, {}, ttl)

    def command(self, digests: Sequence[bytes], *, adding: bool) -> Command:
        """Return the command of the server's filter."""
        if adding:
            return Command(("BF.INSERT", self._key, "NOCREATE", "ITEMS", *digests), self._key)
        return Command(("BF.MEXISTS", self._key, *digests), self._key)

    def probe_arguments(self, to_add: int) -> tuple[list[str], list[Any]]:  # noqa: ARG002 - the other engine needs it
        """Return Redis keys and arguments of ``open_chain()`` in ``bf.lua``."""
        return self.all_keys(), [self.parameters.id]

    def learn(self, reply: Sequence[Any]) -> Sequence[Any]:
        """Return the rest of a script's *reply*, after what it says about the chain.

        Raises:
            GoneError: The filter is not there any more.

        """
        status, *rest = reply
        if status < 0:
            raise GoneError
        return rest[2:]

    def answers(self, reply: Any, *, adding: bool) -> list[bool]:
        """Read the answers, one per digest.

        Raises:
            GoneError: The filter is not there any more; only found out when adding.
            ReplyError: The server answered with an error, for all digests or for one.

        """
        if isinstance(reply, ReplyError):
            raise GoneError if "not found" in str(reply) else reply
        for answer in reply:
            if isinstance(answer, Exception):
                raise ReplyError(str(answer))
        return [bool(answer) != adding for answer in reply]

    def all_keys(self) -> list[str]:
        """Return the Redis keys of the metadata and of the filter."""
        return [shared_chain.meta_key(self._tag), self._key]

    def figures(self, server: Server) -> ChainFigures:
        """Ask the server for its counts; the rates follow from them.

        Raises:
            ServerError: The server does not tell.

        """
        reply = server.call(Command(("BF.INFO", self._key), self._key))
        fields = {_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
        try:
            urls, layers = int(fields["Number of items inserted"]), int(fields["Number of filters"])
            nbytes = int(fields["Size"])
        except (KeyError, TypeError) as error:
            raise ReplyError(f"BF.INFO does not tell {error}") from None
        growth, target = round(self.parameters.growth), _server_rate(self.parameters.error_rate)
        before, missed, fill = 0, 1.0, 0.0
        for i in range(layers):
            capacity = self.parameters.capacity * growth**i
            error_rate = sizing.layer_error_rate(i, target=target, tightening=_TIGHTENING)
            probes = max(1, math.ceil(-math.log2(error_rate)))
            size_bits = -capacity * math.log(error_rate) / math.log(2) ** 2
            count = max(0, min(capacity, urls - before))
            fill = sizing.fill_ratio(count, size_bits, probes)
            missed *= 1 - fill**probes - 6 * count / size_bits**2
            before += capacity
        return ChainFigures(urls, layers, nbytes, fill, 1 - missed, room=self.parameters.capacity)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
