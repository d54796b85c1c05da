"""Adding fingerprints and asking for them, beside other bloom filters and a set.

Each filter is made for as many and the same error rate, in a process of its own, and filled to four fifths. Then new
fingerprints are added, equal ones once more (duplicates), and others asked for (absent). Ours promises the rate for a
chain of any length, and so spends more bits on its first layer than others on their only one.
"""

from __future__ import annotations

import gc
import random
import time
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import measure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


class Memory(NamedTuple):
    """What remembers fingerprints."""

    add: Callable[[bytes], object]
    contains: Callable[[bytes], object]
    size_bits: int = 0
    """Length of the bit array; 0 for what has none."""


def _scrapy_bloom(capacity: int, error_rate: float) -> Memory:
    chain = import_module("scrapy_bloom").ScalableBloomFilter(capacity, error_rate)
    return Memory(chain.add, chain.__contains__, 8 * chain.nbytes)


def _rbloom(capacity: int, error_rate: float) -> Memory:
    # It does not say whether what it adds was new. The hash of Python's own would be faster, and cannot be saved.
    bloom = import_module("rbloom").Bloom(capacity, error_rate, import_module("mmh3").mmh3_x64_128_sintdigest)

    def add(fingerprint: bytes) -> bool:
        is_new = fingerprint not in bloom
        bloom.add(fingerprint)
        return is_new

    return Memory(add, bloom.__contains__, bloom.size_in_bits)


def _pybloom_live(capacity: int, error_rate: float) -> Memory:
    bloom = import_module("pybloom_live").BloomFilter(capacity, error_rate)
    return Memory(bloom.add, bloom.__contains__, bloom.num_bits)


def _set_of_bytes(_capacity: int, _error_rate: float) -> Memory:
    known: set[bytes] = set()
    return Memory(known.add, known.__contains__)


SET = "set of bytes"
MEMORIES = {measure.OURS: _scrapy_bloom, "rbloom": _rbloom, "pybloom_live": _pybloom_live, SET: _set_of_bytes}
"""What makes each, by its package."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--capacity", type=int, default=250_000, help="URLs; 1 MB of bits at the default %(default)s")
    parser.add_argument("--error-rate", type=float, default=1e-6, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table."""
    measure.print_environment("bitarray", "rbloom", "pybloom_live", "mmh3")
    names = [name for name in MEMORIES if name == SET or measure.installed(name) != measure.MISSING]
    sides = measure.of_each(measured, names, capacity=options.capacity, error_rate=options.error_rate)
    what = f"{options.capacity:,} URLs at {options.error_rate:g}"
    measure.print_side_by_side(what, sides, options.old, options.rounds)


def measured(name: str, capacity: int, error_rate: float) -> measure.Figures:
    """Return the nanoseconds of CPU time that each kind of call takes, and the bits per URL."""
    filled, sample = capacity * 4 // 5, max(1, capacity // 25)
    memory = MEMORIES[name](capacity, error_rate)
    for fingerprint in _fingerprints(1, filled):
        memory.add(fingerprint)
    gc.collect()
    gc.disable()
    nanoseconds(memory.contains, _fingerprints(2, sample))  # the caches are its own again
    return {
        "new, ns": nanoseconds(memory.add, _fingerprints(3, sample)),
        # Equal fingerprints, but not the same objects: those would know their hash already.
        "duplicate, ns": nanoseconds(memory.add, _fingerprints(3, sample)),
        "absent, ns": nanoseconds(memory.contains, _fingerprints(4, sample)),
        "bits per URL": memory.size_bits / capacity,
    }


def nanoseconds(function: Callable[[bytes], object], arguments: Sequence[bytes]) -> float:
    """Return the CPU time of one call; the loop, about 20 ns, is in it."""
    start = time.process_time_ns()
    for argument in arguments:
        function(argument)
    return (time.process_time_ns() - start) / len(arguments)


def _fingerprints(seed: int, count: int, length: int = 20) -> list[bytes]:
    """Return *count* new objects, different ones for each *seed*."""
    blob = random.Random(seed).randbytes(count * length)
    return [blob[at : at + length] for at in range(0, len(blob), length)]
