"""Adding fingerprints and asking for them, beside other bloom filters and a set.

Each filter is made for as many and the same error rate, in a process of its own, and filled to four fifths. Then new
fingerprints are added, equal ones once more (duplicates), and others asked for (absent). Ours promises the rate for a
chain of any length, and so spends more bits on its first layer than others on their only one.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Need(NamedTuple):
    """What a memory is made for."""

    capacity: int
    error_rate: float
    directory: str
    """Empty, for those that keep files."""


def _scrapy_bloom(need: Need) -> Memory:
    return _of_chain(import_module("scrapy_bloom").ScalableBloomFilter(need.capacity, need.error_rate))


def _scrapy_bloom_in_files(need: Need) -> Memory:
    return _of_chain(import_module("scrapy_bloom").open_filter(need.directory, need.capacity, need.error_rate))


def _of_chain(chain: Any) -> Memory:
    return Memory(chain.add, chain.__contains__, 8 * chain.nbytes)


def _rbloom(need: Need) -> Memory:
    # It does not say whether what it adds was new. The hash of Python's own would be faster, and cannot be saved.
    bloom = import_module("rbloom").Bloom(need.capacity, need.error_rate, import_module("mmh3").mmh3_x64_128_sintdigest)

    def add(fingerprint: bytes) -> bool:
        is_new = fingerprint not in bloom
        bloom.add(fingerprint)
        return is_new

    return Memory(add, bloom.__contains__, bloom.size_in_bits)


def _pybloomfiltermmap3(need: Need) -> Memory:
    bloom = import_module("pybloomfilter").BloomFilter(
        need.capacity, need.error_rate, str(Path(need.directory, "bloom"))
    )
    return Memory(bloom.add, bloom.__contains__, bloom.num_bits)


def _pybloom_live(need: Need) -> Memory:
    bloom = import_module("pybloom_live").BloomFilter(need.capacity, need.error_rate)
    return Memory(bloom.add, bloom.__contains__, bloom.num_bits)


def _set_of_bytes(_: Need) -> Memory:
    known: set[bytes] = set()
    return Memory(known.add, known.__contains__)


MEMORIES: dict[str, tuple[str, Callable[[Need], Memory]]] = {
    measure.OURS: ("bitarray", _scrapy_bloom),
    "scrapy-bloom, in files": ("bitarray", _scrapy_bloom_in_files),
    "rbloom with mmh3": ("rbloom", _rbloom),
    "pybloomfiltermmap3, on a file": ("pybloomfiltermmap3", _pybloomfiltermmap3),
    "pybloom_live": ("pybloom_live", _pybloom_live),
    "set of bytes": ("bitarray", _set_of_bytes),
}
"""By name: the package that it needs, and what makes one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--capacity", type=int, default=250_000, help="URLs; 1 MB of bits at the default %(default)s")
    parser.add_argument("--error-rate", type=float, default=1e-6, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table."""
    measure.print_environment(*dict.fromkeys(package for package, _ in MEMORIES.values()), "mmh3")
    given = {"capacity": options.capacity, "error_rate": options.error_rate}
    sides = {}
    for name, (package, _) in MEMORIES.items():
        if measure.installed(package) == "(not installed)":
            print(f"left out, since {package} is not installed: {name}\n")
        else:
            sides[name] = measure.Side(measured, {"name": name, **given})
    found = measure.side_by_side(measure.with_old(sides, options.old), options.rounds)
    columns = {key: (f"{key}, ns", ".0f") for key in ("new", "duplicate", "absent")}
    what = f"{options.capacity:,} URLs at {options.error_rate:g}"
    measure.print_figures(what, found, {**columns, "bits": ("bits per URL", ".1f")})


def measured(name: str, capacity: int, error_rate: float) -> measure.Figures:
    """Return the nanoseconds of CPU time that each kind of call takes, and the bits per URL."""
    filled, sample = capacity * 4 // 5, max(1, capacity // 25)
    with tempfile.TemporaryDirectory() as directory:
        memory = MEMORIES[name][1](Need(capacity, error_rate, directory))
        for fingerprint in _fingerprints(1, filled):
            memory.add(fingerprint)
        gc.collect()
        gc.disable()
        nanoseconds(memory.contains, _fingerprints(2, sample))  # the caches are its own again
        return {
            "new": nanoseconds(memory.add, _fingerprints(3, sample)),
            # Equal fingerprints, but not the same objects: those would know their hash already.
            "duplicate": nanoseconds(memory.add, _fingerprints(3, sample)),
            "absent": nanoseconds(memory.contains, _fingerprints(4, sample)),
            "bits": memory.size_bits / capacity,
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
