"""What can happen to a file or a process, in words, and the filters to try it on."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from scrapy_bloom import open_filter
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom import ScalableBloomFilter

HEADER_BYTES = 4096
CONSTANT_CRC_AT = 4060
STATE_AT = 4064
FLAG_AT = 4072
FOLLOWED_AT = 4076
STATE_CRC_AT = 4092


def filled(directory: Path, count: int, **settings: object) -> Path:
    """Leave a cleanly closed filter with *count* fingerprints in *directory*, and return that."""
    with open_filter(directory, **settings) as chain:  # type: ignore[arg-type]  # tests pass what they want to test
        for each in fingerprints(count):
            chain.add(each)
    return directory


def knows(chain: ScalableBloomFilter, count: int) -> bool:
    return all(each in chain for each in fingerprints(count))


def layer(directory: Path, index: int = 0) -> Path:
    return directory / f"layer-{index:03d}.bloom"


def flip_bits(path: Path, offset: int, mask: int = 0xFF) -> None:
    overwrite(path, offset, bytes([read(path, offset, 1)[0] ^ mask]))


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


def extend(path: Path, content: bytes = b"\0") -> None:
    with path.open("ab") as file:
        file.write(content)


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def restamp(path: Path, offset: int, value: int) -> None:
    """Write *value* as 32 bits at *offset* of the header, and a checksum that fits: what a newer version would do."""
    overwrite(path, offset, struct.pack("<I", value))
    overwrite(path, CONSTANT_CRC_AT, struct.pack("<I", crc32(read(path, 0, CONSTANT_CRC_AT))))


def restate(path: Path, count: int, *, clean: bool) -> None:
    """Write a state record with a checksum that fits."""
    state = struct.pack("<QI16x", count, clean)
    overwrite(path, STATE_AT, state + struct.pack("<I", crc32(state)))


def restamp_state(path: Path) -> None:
    """Make the checksum of the state fit."""
    overwrite(path, STATE_CRC_AT, struct.pack("<I", crc32(read(path, STATE_AT, STATE_CRC_AT - STATE_AT))))


def read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def is_marked_clean(path: Path) -> bool:
    return read(path, FLAG_AT, 4) == b"\1\0\0\0"


@contextmanager
def restored(path: Path) -> Iterator[None]:
    """Put the bytes of *path* back at the end, so that a thousand damages need one filter."""
    before = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def running(job: str, directory: Path, *numbers: int) -> Iterator[subprocess.Popen[str]]:
    """Run a job of ``files_child.py``, and end it if it has not ended by itself."""
    command = [sys.executable, str(Path(__file__).with_name("files_child.py")), job, str(directory), *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL: no handler, no finally, no flush."""
    process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Return when *condition* holds; fail after a minute, or when *process* ends first."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.0005)
