"""The fingerprints that a filter has taken back, in one append-only file, which is there once there was one.

A bloom filter cannot unset the bits of one fingerprint without touching others. A line is ``-`` (taken back) or ``+``
(accepted again), the fingerprint in hexadecimal, a space, and the CRC32 of what is before in eight digits. A line that
a kill or a power failure has torn is the last one, and is cut off.
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

_LINE = re.compile(rb"([-+])((?:[0-9a-f]{2})*) ([0-9a-f]{8})")


class ForgottenFile:
    """The open file, and :attr:`fingerprints`, what it held on opening."""

    def __init__(self, path: Path) -> None:
        """Read the file at *path*, which need not exist, and drop lines that later ones cancel.

        Raises:
            DamagedError: A line contradicts its checksum.
            OSError: The file cannot be read or written.

        """
        self.path = path
        self.fingerprints = read_forgotten(path)
        self._fd: int | None = None
        lines = b"".join(_line(fingerprint, forgotten=True) for fingerprint in sorted(self.fingerprints))
        if path.exists() and path.read_bytes() != lines:
            temporary = path.with_name(path.name + ".tmp")
            with temporary.open("wb") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)

    def note(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Note that *fingerprint* is taken back, or accepted again. Raise OSError if it could not be written."""
        if self._fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._fd = os.open(self.path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)
        length = os.fstat(self._fd).st_size
        line = _line(fingerprint, forgotten=forgotten)
        if os.write(self._fd, line) < len(line):  # the disk is full; half a line in the middle would be damage
            os.ftruncate(self._fd, length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(self) -> None:
        """Return once all lines are on disk."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_forgotten(path: Path) -> set[bytes]:
    """Return what the file at *path* says is taken back, without changing it; nothing if there is no file.

    Raises:
        DamagedError: A line contradicts its checksum.
        OSError: The file cannot be read.

    """
    fingerprints: set[bytes] = set()
    if not path.exists():
        return fingerprints
    data = path.read_bytes().rstrip(b"\0")  # a power failure can leave zeros in place of the last lines
    *lines, torn = data.split(b"\n")
    whole = _LINE.match(torn)  # only its end of line is missing or changed
    at = 0
    for line in [*lines, torn[: whole.end()]] if whole else lines:
        found = _LINE.fullmatch(line)
        if found is None or int(found[3], 16) != crc32(line[: -len(found[3]) - 1]):
            raise damaged(path, "the line contradicts its checksum", offset=at)
        fingerprint = bytes.fromhex(found[2].decode())
        if found[1] == b"-":
            fingerprints.add(fingerprint)
        else:
            fingerprints.discard(fingerprint)
        at += len(line) + 1
    return fingerprints


def _line(fingerprint: bytes, *, forgotten: bool) -> bytes:
    line = b"%c%s" % (b"-" if forgotten else b"+", fingerprint.hex().encode())
    return b"%s %08x\n" % (line, crc32(line))
