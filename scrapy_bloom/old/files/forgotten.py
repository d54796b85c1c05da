"""The fingerprints that a filter has taken back, in one append-only file.

A bloom filter cannot unset the bits of one fingerprint without touching others. Those taken back are few, so this file
lists them. It does not know when a fingerprint is taken back, or why.

A record is one byte (``-`` taken back, ``+`` accepted again), the length of the fingerprint in two bytes
(little-endian), the fingerprint, and the CRC32 of all three in four. Each record is one write, so a killed process
leaves whole records; one torn by a power failure is cut off at the end of the file.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING
from zlib import crc32

from scrapy_bloom.old.files.damage import damaged
from scrapy_bloom.old.filter.chain import MAX_FORGOTTEN_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = struct.Struct("<cH")
_CRC = struct.Struct("<I")
_TAKEN_BACK, _ACCEPTED = b"-", b"+"


class ForgottenFile:
    """The open file, and :attr:`fingerprints`, the set it stands for."""

    def __init__(self, path: Path) -> None:
        """Read the file at *path*, which need not exist, and drop records that later ones cancel.

        Raises:
            DamagedError: A record contradicts its checksum, or its length what follows it.
            OSError: The file cannot be read or written.

        """
        self.path = path
        self.fingerprints: set[bytes] = set()
        self._fd: int | None = None
        if path.exists():
            records, length = _read(path, self.fingerprints)
            if records > len(self.fingerprints) or length < path.stat().st_size:
                self._rewrite()

    def add(self, fingerprint: bytes) -> None:
        """Note that *fingerprint* is taken back.

        Raises:
            OSError: It could not be written. It is in :attr:`fingerprints` anyway.

        """
        self.fingerprints.add(fingerprint)
        self._append(_record(_TAKEN_BACK, fingerprint))

    def discard(self, fingerprint: bytes) -> None:
        """Note that *fingerprint*, which had been taken back, has been accepted again.

        Raises:
            OSError: It could not be written. It has left :attr:`fingerprints` anyway.

        """
        self.fingerprints.discard(fingerprint)
        self._append(_record(_ACCEPTED, fingerprint))

    def fsync(self) -> None:
        """Return once all records are on disk."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, record: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        if os.write(self._fd, record) < len(record):
            # The disk is full. Cut the half record off: in the middle of the file it would pass for damage.
            os.ftruncate(self._fd, _read(self.path, set())[1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rewrite(self) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            file.writelines(_record(_TAKEN_BACK, fingerprint) for fingerprint in sorted(self.fingerprints))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


def read_forgotten(path: Path) -> set[bytes]:
    """Return what the file at *path* says is taken back, without changing it; nothing if there is no file.

    Raises:
        DamagedError: A record in the middle contradicts its checksum.
        OSError: The file cannot be read.

    """
    fingerprints: set[bytes] = set()
    if path.exists():
        _read(path, fingerprints)
    return fingerprints


def _record(kind: bytes, fingerprint: bytes) -> bytes:
    body = _HEAD.pack(kind, len(fingerprint)) + fingerprint
    return body + _CRC.pack(crc32(body))


def _read(path: Path, fingerprints: set[bytes]) -> tuple[int, int]:
    """Replay the records of *path* into *fingerprints*; return how many are whole, and where they end."""
    data = path.read_bytes()
    at = records = 0
    while at + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end + _CRC.size > len(data):
            if _is_damaged(data, at):
                problem = f"the record says that its fingerprint has {length} bytes, which reach past the end"
                raise damaged(path, at, problem)
            break
        if kind not in (_TAKEN_BACK, _ACCEPTED) or _CRC.unpack_from(data, end)[0] != crc32(data[at:end]):
            if not any(data[at:]):  # a power failure can leave zeros in place of the last records
                break
            raise damaged(path, at, "the record contradicts its checksum")
        fingerprint = data[at + _HEAD.size : end]
        if kind == _TAKEN_BACK:
            fingerprints.add(fingerprint)
        else:
            fingerprints.discard(fingerprint)
        at = end + _CRC.size
        records += 1
    return records, at


def _is_damaged(data: bytes, at: int) -> bool:
    """Return whether the record at *at*, which reaches past the end, is not just the torn last one.

    A record that was torn is followed by nothing. One whose length is wrong is followed by whole ones, or is whole
    itself once the length is put right.
    """
    right_length = len(data) - at - _HEAD.size - _CRC.size
    if 0 <= right_length <= MAX_FORGOTTEN_BYTES:
        right = _record(data[at : at + 1], data[at + _HEAD.size : at + _HEAD.size + right_length])
        if data.endswith(right[_HEAD.size :]):
            return True
    for later in range(at + 1, len(data) - _HEAD.size - _CRC.size + 1):
        kind, length = _HEAD.unpack_from(data, later)
        end = later + _HEAD.size + length
        is_record = kind in (_TAKEN_BACK, _ACCEPTED) and end + _CRC.size <= len(data)
        if is_record and _CRC.unpack_from(data, end)[0] == crc32(data[later:end]):
            return True
    return False
