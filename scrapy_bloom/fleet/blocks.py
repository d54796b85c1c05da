"""The blocked bloom filter that is kept on a server: which bits stand for a fingerprint, and how many bits it takes.

A layer is an array of blocks of 1,152 bits, 36 words of 32 bits. A fingerprint belongs to one block, so a server reads
144 bytes and writes 144 bytes for it, whatever the error rate. The words of a block form nine sections of four. In
each section the fingerprint chooses a word, and in that word two bits: 18 bits, in nine operations on words.

What the choice costs is in :func:`block_error_rate`. At the rate of a first layer, 2e-7, a key takes 39 bits, where
bits anywhere in the array would take 33.
"""

from __future__ import annotations

import struct
from functools import cache
from hashlib import blake2b
from itertools import permutations
from math import ceil, exp, sqrt
from typing import NamedTuple

from scrapy_bloom.filter.plan import GROWTH, TIGHTENING
from scrapy_bloom.filter.sizing import layer_error_rate

SCHEME = 1  # number of this layout, kept with every filter; another layout takes another number
SECTIONS, WORDS = 9, 4  # sections of a block, and words of a section; the scripts know them, too
BLOCK_BITS = SECTIONS * WORDS * 32
MAX_LAYERS = 20  # of a chain; the last of so many alone holds half a million times as many keys as the first

_PAIRS = [1 << a | 1 << b for a, b in permutations(range(32), 2)]
_PAIR_OF = [_PAIRS[drawn % len(_PAIRS)] for drawn in range(1 << 16)]
_DRAW = struct.Struct("<9H9sQ")
_MASKS = struct.Struct("<9I")
# A byte for each section.
_IN_SECTION = int.from_bytes([WORDS - 1] * SECTIONS, "big")
_FIRST_WORDS = int.from_bytes(range(1, SECTIONS * WORDS, WORDS), "big")


class Probe(NamedTuple):
    """Where the bits of a fingerprint are, in a filter of any size.

    *place*, modulo the number of blocks, is its block; it is below 2**52, which a number of Lua can hold. *bits* has
    for each section the number of a word in the block, counted from 1, as one byte; then for each the two bits in that
    word, as a little-endian word.
    """

    place: int
    bits: bytes


def probe_of(fingerprint: bytes, seed: bytes) -> Probe:
    """Return the probe of *fingerprint* in the chains with *seed*, 16 random bytes that nobody else should know."""
    *pairs, words, place = _DRAW.unpack(blake2b(fingerprint, digest_size=_DRAW.size, key=seed).digest())
    chosen = (int.from_bytes(words, "big") & _IN_SECTION) + _FIRST_WORDS
    return Probe(place >> 12, chosen.to_bytes(SECTIONS, "big") + _MASKS.pack(*map(_PAIR_OF.__getitem__, pairs)))


def block_error_rate(keys: int) -> float:
    """Return the chance that a key which was never added finds all its bits set in a block with *keys* keys.

    A key chooses a given word with probability 1/4, and there two of 32 bits. A pair of bits of a word is unset in
    part or as a whole; by inclusion and exclusion over its bits a and b

        P(a and b are set) = 1 - 2 P(a is unset) + P(a and b are unset)
                           = 1 - 2 (1 - 1/4 * 2/32)^j + (1 - 1/4 (1 - 30*29 / (32*31)))^j

    with j = *keys*. Keys choose in each section independently, so the rate is the ninth power of that. Exact, given
    that the hash is random. Blocks: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.
    """
    one_unset = 1 - 2 / 32 / WORDS
    both_unset = 1 - (1 - 30 * 29 / (32 * 31)) / WORDS
    return float((1 - 2 * one_unset**keys + both_unset**keys) ** SECTIONS)


def error_rate(load: float) -> float:
    """Return the false-positive rate of a layer whose blocks hold *load* keys on average.

    Keys fall into blocks at random, so a block holds a Poisson-distributed number j of them:

        p = sum over j of  e^-load load^j / j!  *  p_j        with p_j = block_error_rate(j)
    """
    chance, total = exp(-load), 0.0
    for keys in range(int(load + 20 * sqrt(load) + 50)):
        if keys:
            chance *= load / keys
        total += chance * block_error_rate(keys)
    return total


@cache
def load_for(rate: float) -> float:
    """Return how many keys a block may hold on average at the error rate *rate*, in (0, 1)."""
    low, high = 1e-3, 500.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if error_rate(middle) < rate else (low, middle)
    return low


def layer_sizes(capacity: int, rate: float) -> list[tuple[int, int]]:
    """Return for each layer that a chain may come to have its blocks and its capacity in keys.

    Capacities and error rates of the layers are those of the filter in a process, so the chain stays below *rate*.
    """
    loads = [load_for(layer_error_rate(i, rate, TIGHTENING)) for i in range(MAX_LAYERS)]
    return [(ceil(capacity * GROWTH**i / load), capacity * GROWTH**i) for i, load in enumerate(loads)]
