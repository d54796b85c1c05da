"""What can happen to a filter's files, in words, and the processes that it happens to."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from pathlib import Path
from typing import Any
from zlib import crc32

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from tests.support.processes import PROCESSES

HEADER_BYTES = 4096
CHECKSUM_AT, STATE_AT = 4068, 4072


def fingerprint(number: int) -> bytes:
    """Return what looks like one of Scrapy's, another for each number."""
    return sha1(b"%d" % number).digest()


def filled(directory: Path, count: int, capacity: int, error_rate: float = 1e-3) -> Path:
    """Leave a cleanly closed filter with *count* fingerprints and watermark in *directory*, and return that."""
    with open_filter(directory, capacity, error_rate) as chain:
        for number in range(count):
            chain.add(fingerprint(number))
        chain.watermark = count
    return directory


def knows(chain: ScalableBloomFilter, count: int) -> bool:
    return all(fingerprint(number) in chain for number in range(count))


def layer(directory: Path, index: int = 0) -> Path:
    return directory / f"layer-{index:03d}.bloom"


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip_bits(path: Path, offset: int, mask: int = 0xFF) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        flipped = bytes([file.read(1)[0] ^ mask])
        file.seek(offset)
        file.write(flipped)


def restate(path: Path, count: int, *, clean: bool, watermark: int = 0) -> None:
    """Write a state with a checksum that fits."""
    state = struct.pack("<QQI", watermark, count, clean)
    overwrite(path, STATE_AT, state + struct.pack("<I", crc32(state)))


CAPACITY, STEP = 1_000, 100


@contextmanager
def adding(directory: Path, done: Any) -> Iterator[Any]:
    """Run :func:`add` in a process, and kill it at the end: no handler, no finally, no flush."""
    process = PROCESSES.Process(target=add, args=(directory, done), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def add(directory: Path, done: Any) -> None:
    """Add fingerprints for ever, from the first that is not *done* yet; take every tenth back.

    *done* is shared memory, which outlives its process as the bits of a filter do, and costs no system call.
    """
    chain = open_filter(directory, CAPACITY)
    number = done.value
    while True:
        chain.add(fingerprint(number))
        if number % 10 == 0:
            chain.forget(fingerprint(number))
        number += 1
        chain.watermark = done.value = number
