"""Other ways to remember fingerprints, each with the two calls that ``add`` times.

Where a library can be called in several ways, the fastest is taken, so that it is the library that is measured. Knows
no clock.
"""

from __future__ import annotations

import mmap
import random
import sqlite3
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from mmh3 import mmh3_x64_128_sintdigest

from scrapy_bloom import ScalableBloomFilter, open_filter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Memory(NamedTuple):
    """A memory for fingerprints."""

    add: Callable[[bytes], object]
    contains: Callable[[bytes], object]
    size_bits: int | None = None
    """Length of the bit array; None for what has none."""
    keeps: Any = None
    """What must live as long as the two functions, and the files below it."""


class Need(NamedTuple):
    """What a memory is made for."""

    capacity: int
    error_rate: float
    directory: Path
    """Empty, for those that keep files."""
    preset: bool
    """Begin with 7 of 16 bits set at random: a filter at about four fifths of its capacity, without filling it."""


_BLOCK_BYTES = 1 << 20


def _random_bits(nbytes: int) -> bytes:
    """Return bits of which 7 in 16 are set: a and (b or c or d). They repeat after a MiB, which nothing notices."""
    a, b, c, d = (int.from_bytes(random.Random(seed).randbytes(_BLOCK_BYTES), "little") for seed in range(4))
    block = (a & (b | c | d)).to_bytes(_BLOCK_BYTES, "little")
    return (block * (nbytes // _BLOCK_BYTES + 1))[:nbytes]


def _preset(bits: Any) -> None:
    with memoryview(bits) as view:
        view[:] = _random_bits(len(view))


def _scrapy_bloom(need: Need) -> Memory:
    return _of_chain(ScalableBloomFilter(need.capacity, need.error_rate), need)


def _scrapy_bloom_in_directory(need: Need) -> Memory:
    return _of_chain(open_filter(need.directory, need.capacity, need.error_rate), need)


def _of_chain(chain: ScalableBloomFilter, need: Need) -> Memory:
    layer = chain.layers[0]
    if need.preset:
        _preset(layer.bits)
    return Memory(chain.add, chain.__contains__, layer.spec.array_bits, chain)


def _rbloom(need: Need, hash_function: Callable[[Any], int]) -> Any:
    rbloom = import_module("rbloom")
    bloom = rbloom.Bloom(need.capacity, need.error_rate, hash_function)
    if need.preset:
        saved = bloom.save_bytes()  # 8 bytes with the number of probes, then the bits
        bloom = rbloom.Bloom.load_bytes(saved[:8] + _random_bits(len(saved) - 8), hash_function)
    return bloom


def _rbloom_mmh3(need: Need) -> Memory:
    bloom = _rbloom(need, mmh3_x64_128_sintdigest)
    return Memory(bloom.add, bloom.__contains__, bloom.size_in_bits)


def _rbloom_seeded_mmh3(need: Need) -> Memory:
    # rbloom passes its hash function the fingerprint alone. A seed, such as each chain of ours has, takes Python.
    bloom = _rbloom(need, lambda fingerprint: mmh3_x64_128_sintdigest(fingerprint, 0x9E3779B9))
    return Memory(bloom.add, bloom.__contains__, bloom.size_in_bits)


def _rbloom_mmh3_asked_first(need: Need) -> Memory:
    bloom = _rbloom(need, mmh3_x64_128_sintdigest)

    def add(fingerprint: bytes) -> bool:
        if fingerprint in bloom:
            return False
        bloom.add(fingerprint)
        return True

    return Memory(add, bloom.__contains__, bloom.size_in_bits)


def _rbloom_builtin_hash(need: Need) -> Memory:
    if need.preset:
        raise NoPresetError("it neither saves nor loads bits with this hash function")
    bloom = _rbloom(need, hash)
    return Memory(bloom.add, bloom.__contains__, bloom.size_in_bits)


def _fastbloom(need: Need) -> Memory:
    fastbloom = import_module("fastbloom_rs")
    builder = fastbloom.PyFilterBuilder(need.capacity, need.error_rate)
    bloom = builder.build_bloom_filter()  # only now the builder knows size and hashes
    if need.preset:
        bloom = fastbloom.PyBloomFilter.from_bytes(_random_bits(builder.size() // 8), builder.hashes())
    return Memory(bloom.add_bytes_if_not_contains, bloom.contains_bytes, builder.size())


def _pybloomfiltermmap3(need: Need) -> Memory:
    path = need.directory / "pybloomfilter"
    bloom = import_module("pybloomfilter").BloomFilter(need.capacity, need.error_rate, str(path))
    if need.preset:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            nbytes = bloom.num_bits // 8
            mapped[-nbytes:] = _random_bits(nbytes)  # behind the header
    return Memory(bloom.add, bloom.__contains__, bloom.num_bits, bloom)


def _pybloom_live(need: Need) -> Memory:
    bloom = import_module("pybloom_live").BloomFilter(need.capacity, need.error_rate)
    if need.preset:
        _preset(bloom.bitarray)
    return Memory(bloom.add, bloom.__contains__, bloom.num_bits)


def _pybloom_live_scalable(need: Need) -> Memory:
    chain = import_module("pybloom_live").ScalableBloomFilter(need.capacity, need.error_rate)
    chain.add(b"the first fingerprint makes the first filter")
    if need.preset:
        _preset(chain.filters[0].bitarray)
    return Memory(chain.add, chain.__contains__, chain.filters[0].num_bits)


def _set_of_bytes(need: Need) -> Memory:
    _refuse_preset(need)
    known: set[bytes] = set()
    return Memory(known.add, known.__contains__)


def _sqlite(need: Need) -> Memory:
    _refuse_preset(need)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
    connection.execute("BEGIN")
    execute = connection.execute

    def add(fingerprint: bytes) -> bool:
        return execute("INSERT OR IGNORE INTO seen VALUES (?)", (fingerprint,)).rowcount == 1

    def contains(fingerprint: bytes) -> bool:
        return execute("SELECT 1 FROM seen WHERE key = ?", (fingerprint,)).fetchone() is not None

    weakref.finalize(add, connection.close)  # Python 3.13 warns of connections that are merely dropped
    return Memory(add, contains)


class NoPresetError(Exception):
    """The bits of the memory cannot be preset."""


def _refuse_preset(need: Need) -> None:
    if need.preset:
        raise NoPresetError(f"{need.capacity:,} URLs would have to be added, and take tens of gigabytes")


OURS = "scrapy-bloom"
RBLOOM = "rbloom, mmh3"
SEEDED_RBLOOM = "rbloom, mmh3 with a seed"
PYBLOOM = "pybloom_live, fixed"

MEMORIES: dict[str, Callable[[Need], Memory]] = {
    OURS: _scrapy_bloom,
    "scrapy-bloom, in a directory": _scrapy_bloom_in_directory,
    RBLOOM: _rbloom_mmh3,
    SEEDED_RBLOOM: _rbloom_seeded_mmh3,
    "rbloom, mmh3, `in` and then add": _rbloom_mmh3_asked_first,
    "rbloom, Python's hash()": _rbloom_builtin_hash,
    "fastbloom-rs": _fastbloom,
    "pybloomfiltermmap3, on a file": _pybloomfiltermmap3,
    PYBLOOM: _pybloom_live,
    "pybloom_live, scalable": _pybloom_live_scalable,
    "set of bytes": _set_of_bytes,
    "SQLite in memory": _sqlite,
}

PACKAGES = ("bitarray", "mmh3", "rbloom", "fastbloom-rs", "pybloomfiltermmap3", "pybloom_live")
