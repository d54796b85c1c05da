"""The fingerprints that a filter has taken back, in one append-only file, which is there once there was one.

A bloom filter cannot unset the bits of one fingerprint without touching others. A line is ``-`` (taken back) or ``+``
(accepted again), the fingerprint in hexadecimal, a space, and the CRC32 of what is before in eight digits. A line that
a kill or a power failure has torn is the last one.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING
from zlib import crc32

from scrapy_bloom.filter.layerfile import damaged

if TYPE_CHECKING:
    from pathlib import Path

_LINE = re.compile(rb"([-+])((?:[0-9a-f]{2})*) ([0-9a-f]{8})\n")
_TORN = re.compile(rb"[-+][0-9a-f]*( [0-9a-f]{0,7})?")


def read_forgotten(path: Path) -> tuple[set[bytes], int]:
    """Return what the file at *path* says is taken back, and where its whole lines end; nothing if there is no file.

    Raises:
        DamagedError: A line contradicts its checksum.
        OSError: The file cannot be read.

    """
    fingerprints: set[bytes] = set()
    data = path.read_bytes().rstrip(b"\0") if path.exists() else b""  # a power failure can leave zeros at the end
    at = 0
    while at < len(data) and not _TORN.fullmatch(data, at):
        line = _LINE.match(data, at)
        if line is None or int(line[3], 16) != crc32(line[1] + line[2]):
            raise damaged(path, "the line contradicts its checksum", at)
        change = fingerprints.add if line[1] == b"-" else fingerprints.discard
        change(bytes.fromhex(line[2].decode()))
        at = line.end()
    return fingerprints, at


def note_forgotten(path: Path, fingerprint: bytes, *, forgotten: bool, length: int) -> int:
    """Write a line at *length*, the end of the whole lines, and return the new end. Raises OSError."""
    body = (b"-" if forgotten else b"+") + fingerprint.hex().encode()
    line = b"%s %08x\n" % (body, crc32(body))
    with path.open("r+b" if length else "wb", buffering=0) as file:
        file.seek(length)
        file.truncate()  # cuts off a torn line
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return length + len(line)
