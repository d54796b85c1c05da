"""Engine ``bitmap``: a chain of bitmaps on any Redis or Valkey, looked up and grown by one atomic script.

Decides the size of the layers, as ``filter/chain.py`` does for one machine, and where a fingerprint's bits are. The
script, ``bitmap.lua``, does the rest.

Scheme 2, *cubic*
-----------------

(Numbers are shared with ``filter/probes.py``, so that no number means two things.) A server is asked per bit or per
list of bits, so runs save nothing here. What counts is the number of calls, and that Lua's doubles compute a position
cheaply. A digest, 16 bytes, is the 128-bit MurmurHash3 of the fingerprint. Its little-endian 32-bit words a, b, c, d
make three 42-bit numbers

    x = 1024 a + (d mod 1024)    y = 1024 b + (d >> 10 mod 1024)    z = 1024 c + (d >> 20 mod 1024)

and from these, modulo m, come k positions by adding: x_0 = x, then x += y, y += z, z += 1. That is a cubic in i,

    x_i = x + i y + C(i,2) z + C(i,3)    mod m

*Why the rate is that of k independent probes.* Double hashing, x + i y, falls short of it in small filters: two
fingerprints with the same stride overlap in k - j places when they start j strides apart, which adds about 6 n / m^2,
or 3 % of p = 2e-7 at n = 1,000,000 and all of it at 30,000. Here two of them must agree in three numbers to share more
than chance has them share, n / m^3. The constant third difference keeps a progression from running back over itself,
as parabolas do. Source: Dillinger, Manolios, "Bloom Filters in Probabilistic Verification", FMCAD 2004 (enhanced double
and triple hashing). m is at least 65,536, so that overlaps within one progression stay rare.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.old.filter import ageing, sizing
from scrapy_bloom.old.filter.chain import TIGHTENING
from scrapy_bloom.old.fleet.client import Command, ReplyError, Script, Server
from scrapy_bloom.old.fleet.filter import shared_chain
from scrapy_bloom.old.fleet.filter.shared_chain import ChainFigures, ChainParameters, GoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUBIC_SCHEME = 2

MIN_LAYER_BITS = 1 << 16

MAX_LAYER_BITS = (1 << 32) - (1 << 15)
"""4 KiB below the 512 MB that a Redis string may have. Layers that would be larger are of this size."""

PROBES_LUA = (Path(__file__).parent / "probes.lua").read_text(encoding="utf-8")
"""The beginning of a script that looks up digests and adds them."""

PROBES_SHARE = 0.8
"""Share of the number of probes that needs the fewest bits. The minimum is flat: at 1e-6, 18 probes instead of 23 take
only 2 % more bits, and each probe costs the server a call of 0.7 to 0.9 microseconds."""

_PERIODS = 9
"""Parts of the age after which the server drops a layer for which one takes fingerprints."""

LOCAL_AGE_SHARE = 1 / 64
"""Share of the maximum age for which a process may answer "seen" from its local filter.

The server drops a layer after the rest of the age, 63/64, and closes it after a ninth of that: what was added last is
then 63/64 * 8/9 = 7/8 of the age old, what was added first is seen for 63/64 + 1/64 of it at most.
"""

_SCRIPT = Script(PROBES_LUA + (Path(__file__).parent / "bitmap.lua").read_text(encoding="utf-8"))


class BitmapLayer(NamedTuple):
    """The size of one bitmap, and what it was made for."""

    size_bits: int
    """m."""
    probes: int
    """k."""
    capacity: int
    """n, fingerprints that it is made for."""
    error_rate: float
    """p_i at capacity."""

    def __str__(self) -> str:
        """Return the value of its field in the metadata."""
        return f"{self.size_bits} {self.probes} {self.capacity} {self.error_rate!r}"

    @classmethod
    def parse(cls, text: str) -> BitmapLayer:
        """Read the value of a field in the metadata."""
        size_bits, probes, capacity, error_rate = text.split()
        return cls(int(size_bits), int(probes), int(capacity), float(error_rate))

    def fill_ratio(self, count: float) -> float:
        """Return the expected share of set bits after *count* fingerprints."""
        return sizing.fill_ratio(count, self.size_bits, self.probes)

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints."""
        return self.fill_ratio(count) ** self.probes

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap."""
        return -(-self.size_bits // 8)


def layer(index: int, *, capacity: int, target: float) -> BitmapLayer:
    """Return layer *index* of a chain of error rate *target*, for *capacity* fingerprints or what fits a string."""
    error_rate = sizing.layer_error_rate(index, target=target, tightening=TIGHTENING)
    error_rate = max(error_rate, sys.float_info.min)  # which it passes after 3,000 layers
    probes = max(1, round(PROBES_SHARE * sizing.optimal_probes(error_rate)))
    bits_per_fingerprint = sizing.bits_per_fingerprint(error_rate, probes)
    capacity = min(capacity, math.floor(MAX_LAYER_BITS / bits_per_fingerprint))
    return BitmapLayer(max(MIN_LAYER_BITS, math.ceil(capacity * bits_per_fingerprint)), probes, capacity, error_rate)


def next_layer(layers: Sequence[BitmapLayer], *, capacity: int, error_rate: float, growth: float) -> BitmapLayer:
    """Return the layer that follows *layers* in a chain with these parameters."""
    wanted = max(round(layers[-1].capacity * growth), capacity) if layers else capacity
    return layer(len(layers), capacity=wanted, target=error_rate)


def planned_layers(count: int, *, capacity: int, error_rate: float, growth: float) -> list[tuple[BitmapLayer, int]]:
    """Return the layers of a chain that holds *count* fingerprints, each with its own count."""
    layers: list[BitmapLayer] = []
    counts: list[int] = []
    while count or not layers:
        layers.append(next_layer(layers, capacity=capacity, error_rate=error_rate, growth=growth))
        counts.append(min(count, layers[-1].capacity))
        count -= counts[-1]
    return list(zip(layers, counts, strict=True))


def planned_ageing_layers(count: int, *, capacity: int, error_rate: float) -> list[tuple[BitmapLayer, int]]:
    """Return the most layers of a chain that forgets by age and gets *count* fingerprints in each age."""
    share = -(-count // _PERIODS)
    one = layer(0, capacity=max(share, -(-capacity // _PERIODS)), target=error_rate / (_PERIODS + 1))
    return [(one, share)] * _PERIODS + [(one, 0)]


def positions(digest: bytes, size_bits: int, probes: int) -> list[int]:
    """Return where the bits of *digest* are in a bitmap of m = *size_bits*: what the script does, for reference."""
    a, b, c, d = (int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4))
    x, y, z = a << 10 | d & 1023, b << 10 | d >> 10 & 1023, c << 10 | d >> 20 & 1023
    found = []
    for _ in range(probes):
        found.append(x % size_bits)
        x, y, z = x + y, y + z, z + 1
    return found


class BitmapChain:
    """A chain of bitmaps, as this process knows it; if others have grown it, the script says so."""

    def __init__(self, tag: str, meta: Mapping[str, str], max_age: float | None = None) -> None:
        """Take the metadata that the server has for hash tag *tag*, and the seconds after which it is to forget.

        Raises:
            ValueError: It cannot be used; the message says why.

        """
        self.parameters = ChainParameters.parse(meta)
        if int(meta["scheme"]) != CUBIC_SCHEME:
            raise ValueError(f"it has probe scheme {meta['scheme']}, and this scrapy-bloom knows {CUBIC_SCHEME}")
        self._tag = tag
        self._dropped_after = 0.0 if max_age is None else max_age * (1 - LOCAL_AGE_SHARE)
        self._oldest = self._count = self._forgotten = 0
        self._counts: list[int] = []
        self._learn(meta)

    @staticmethod
    def begin(tag: str, parameters: ChainParameters, ttl: int | None, max_age: float | None = None) -> Command:
        """Return the command that finds the chain of *tag* or begins it."""
        if max_age is None:
            first = layer(0, capacity=parameters.capacity, target=parameters.error_rate)
        else:
            first = _first_of_period(parameters, came=0)
        fields = {"scheme": CUBIC_SCHEME, "layers": 1, "count": 0, "layer:0": first}
        return shared_chain.begin(
            tag,
            parameters,
            shared_chain.data_key(tag, parameters, ":0"),
            (first.size_bits, 0, 0),
            {name: str(value) for name, value in fields.items()},
            ttl,
        )

    def command(self, digests: Sequence[bytes], *, adding: bool) -> Command:
        """Return the call of the script."""
        keys, arguments = self.probe_arguments(len(digests) if adding else 0)
        mode = "add" if adding else "check"
        return Command((len(keys), *keys, mode, b"".join(digests), *arguments), keys[0], _SCRIPT)

    def probe_arguments(self, to_add: int) -> tuple[list[str], list[Any]]:
        """Return keys and arguments of ``open_chain()`` (``probes.lua``) for a script that adds up to *to_add* digests.

        The Redis key of the next layer is passed only when the newest may be full: while a cluster moves the slot to
        another node, it refuses commands with a key that does not exist.
        """
        layers = self._layers
        if to_add and self._count + to_add > layers[-1].capacity:
            layers = [*layers, self._next]
        numbers = [number for one in layers for number in one[:3]]
        arguments = [
            self.parameters.id,
            self._oldest + len(self._layers),
            str(self._next),
            self._oldest,
            self._dropped_after,
            self._dropped_after / _PERIODS,
            str(self._next_period),
        ]
        return self._keys(len(layers)), [*arguments, *numbers]

    def answers(self, reply: Any, *, adding: bool) -> list[bool]:  # noqa: ARG002 - the other engine needs it
        """Read the script's answer. It is empty if another process has grown the chain: then the command has changed.

        Raises:
            GoneError: The metadata is gone or another chain's.
            ReplyError: The script failed.

        """
        if isinstance(reply, ReplyError):
            raise reply
        seen = self.learn(reply)
        return [answer == ord("1") for answer in seen[0]] if seen else []

    def learn(self, reply: Sequence[Any]) -> Sequence[Any]:
        """Update the chain from a script's *reply*, and return the rest of it: empty if nothing was done.

        Raises:
            GoneError: The metadata is gone or another chain's.

        """
        status, *rest = reply
        if status < 0:
            raise GoneError
        if status == 0:
            self._learn(shared_chain.as_mapping(rest[0]))
            return []
        layers, self._count, *rest = rest
        if layers > len(self._layers):
            self._layers.append(self._next)
            self._counts.append(self._layers[-2].capacity)
            self._born.append(time.time())
            self._plan()
        return rest

    def all_keys(self) -> list[str]:
        """Return the Redis keys of the metadata and of the layers."""
        return self._keys(len(self._layers))

    def figures(self, server: Server) -> ChainFigures:  # noqa: ARG002 - the other engine asks
        """Return what follows from the last answer."""
        *closed, newest = self._layers
        missed = math.prod(1 - one.error_rate_at(count) for one, count in zip(closed, self._counts, strict=True))
        fill = newest.fill_ratio(self._count)
        return ChainFigures(
            urls=sum(self._counts) + self._count,
            layers=len(self._layers),
            nbytes=sum(one.nbytes for one in self._layers),
            fill_ratio=fill,
            error_rate=1 - missed * (1 - fill**newest.probes),
            room=self._layers[0].capacity,
            forgotten=self._forgotten,
        )

    def _keys(self, layers: int) -> list[str]:
        indexes = range(self._oldest, self._oldest + layers)
        names = (shared_chain.data_key(self._tag, self.parameters, f":{i}") for i in indexes)
        return [shared_chain.meta_key(self._tag), *names]

    def _learn(self, meta: Mapping[str, str]) -> None:
        known, was_oldest = [*self._counts, self._count], self._oldest
        self._oldest = int(meta.get("oldest", 0))
        self._forgotten += sum(known[: self._oldest - was_oldest])
        indexes = range(self._oldest, int(meta["layers"]))
        self._layers = [BitmapLayer.parse(meta[f"layer:{i}"]) for i in indexes]
        self._count = int(meta["count"])
        # Counts of all but the newest. A layer that was closed because it was full has none.
        self._counts = [
            int(meta.get(f"count:{i}", one.capacity)) for i, one in zip(indexes[:-1], self._layers, strict=False)
        ]
        self._born = [float(meta.get(f"born:{i}", meta["created"])) for i in indexes]
        self._plan()

    def _plan(self) -> None:
        """Size the layers that the script creates when the newest is full, and when it is too old."""
        parameters = self.parameters
        if not self._dropped_after:
            self._next = self._next_period = next_layer(
                self._layers, capacity=parameters.capacity, error_rate=parameters.error_rate, growth=parameters.growth
            )
            return
        position = ageing.position(self._born, max_age=self._dropped_after / _PERIODS * ageing.PERIODS)
        self._next = layer(
            position + 1,
            capacity=max(round(self._layers[-1].capacity * parameters.growth), 1),
            target=parameters.error_rate / (_PERIODS + 1),
        )
        self._next_period = _first_of_period(
            parameters, came=sum(self._counts[-position:] if position else []) + self._count
        )


def _first_of_period(parameters: ChainParameters, *, came: int) -> BitmapLayer:
    """Return the layer that a new part of the age begins with, after *came* fingerprints in the last one."""
    share = -(-parameters.capacity // _PERIODS)
    return layer(0, capacity=max(share, came), target=parameters.error_rate / (_PERIODS + 1))
