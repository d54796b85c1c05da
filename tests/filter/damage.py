"""What can happen to a filter's files, in words, and the processes that it happens to.

Run as ``python -m tests.filter.damage DIRECTORY``, this module is such a process.
"""

import mmap
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from pathlib import Path
from zlib import crc32

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter

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


@contextmanager
def adding(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run :func:`add` in a process, and kill it at the end: no handler, no finally, no flush."""
    command = [sys.executable, "-m", "tests.filter.damage", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Done:
    """A counter that outlives its process as the bits of a filter do, and costs no system call."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def count(self) -> int:
        return int.from_bytes(self._map[:], "little")

    @count.setter
    def count(self, number: int) -> None:
        self._map[:] = number.to_bytes(8, "little")


CAPACITY, STEP = 1_000, 100


def add(directory: Path) -> None:
    """Add fingerprints for ever, from the first that is not done yet, and tell of each step; take every tenth back."""
    done = Done(directory.with_name("done"))
    chain = open_filter(directory, CAPACITY)
    number = done.count
    while True:
        chain.add(fingerprint(number))
        if number % 10 == 0:
            chain.forget(fingerprint(number))
        number += 1
        chain.watermark = number
        done.count = number
        if number % STEP == 0:
            sys.stdout.write(".")
            sys.stdout.flush()


if __name__ == "__main__":
    add(Path(sys.argv[1]))
