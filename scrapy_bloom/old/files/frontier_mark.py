"""How far the frontier was when the filter last got its fingerprints: two numbers that ``kill -9`` cannot undo.

A frontier older than its filter lacks requests whose pages the filter takes for seen. So the filter notes the number of
the last request whose fingerprint it got, and a frontier that ends before that number is refused. This module does not
know what a frontier is, nor when the filter gets fingerprints.

The file is mapped: noting is one store to memory, and the kernel keeps the page when the process dies.
``docs/format.md`` has its layout.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scrapy_bloom.old.files.layerfile import sync_directory

_MAGIC = b"\x89BLOOMF\n"
_LAYOUT = struct.Struct("<8s16s16sQQ")
_BOOT_AT, _NUMBERS_AT = 24, 40
_UNKNOWN_BOOT = bytes(16)
_LOST = 2**64 - 1  # instead of a number: the file was missing beside a filter that had one
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Noted:
    """What a filter says of the frontier that it was used with."""

    filter_id: str
    """Id of the chain, in hexadecimal; the same as long as the filter lives."""
    is_empty: bool
    """Whether the filter knows no fingerprint, as when it is new."""
    last_id: int
    """The filter may know the fingerprint of every request up to this number; 0 if it was never noted."""
    known: int
    """The filter certainly knows all of them up to this number. Below :attr:`last_id` after a power failure."""
    is_lost: bool = False
    """Whether the file was missing or of another chain, so that nobody can say how far the frontier was."""


class FrontierMark:
    """The two numbers, in the file at *path* from :meth:`open` to :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chain_id = b""
        self.noted = 0
        self.is_lost = False
        self.known = 0
        """What was certainly in the filter on opening: all that was noted if only the process died, what was synced if
        the machine went down or that is unknown."""
        self.contained = 0
        """The filter contains all fingerprints up to this number, on disk or not."""
        self._synced = 0
        self._boot = boot_id()
        self._boot_is_written = False
        self._map: mmap.mmap | None = None
        self._numbers: memoryview | None = None

    def open(self, chain_id: bytes, *, is_new: bool) -> None:
        """Read and map the file, which counts as missing unless it is of the chain *chain_id*.

        A chain that *is_new* has none yet. For any other, a missing file is lost, and stays so until the first note.

        Raises:
            OSError: It cannot be created or read.

        """
        self.chain_id = chain_id
        found = self.path.read_bytes() if self.path.exists() else b""
        boot = _UNKNOWN_BOOT
        self.is_lost = not is_new
        if len(found) == _LAYOUT.size and found.startswith(_MAGIC):
            _, of_chain, of_boot, noted, synced = _LAYOUT.unpack(found)
            if of_chain == chain_id:
                self.is_lost = noted == _LOST
                if not self.is_lost:
                    boot, self.noted, self._synced = of_boot, noted, min(noted, synced)
        same_boot = boot == self._boot != _UNKNOWN_BOOT
        self.known = self.contained = self.noted if same_boot else self._synced
        # The boot id stays until the first note: a kill before that must not turn doubt into certainty.
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            noted = _LOST if self.is_lost else self.noted
            file.write(_LAYOUT.pack(_MAGIC, chain_id, boot, noted, self._synced))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        sync_directory(self.path.parent)
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        # In the byte order of the machine, so that storing a number is one instruction.
        self._numbers = memoryview(self._map)[_NUMBERS_AT:].cast("Q")

    def note(self, last_id: int) -> None:
        """Note that the filter has got the fingerprints of all requests up to *last_id*."""
        if self._numbers is None or self._map is None:
            return
        if not self._boot_is_written:
            self._map[_BOOT_AT:_NUMBERS_AT] = self._boot
            self._boot_is_written = True
        self.noted = self.contained = self._numbers[0] = last_id

    def note_synced(self, contained: int) -> None:
        """Note that the bits of all requests up to *contained* are on disk. Any thread may call it."""
        if self._numbers is None or self._map is None:
            return
        self._numbers[1] = contained  # not synced itself: after an older number, more requests are shown again

    def close(self) -> None:
        """Unmap the file."""
        if self._numbers is not None:
            self._numbers.release()
            self._numbers = None
        if self._map is not None:
            with suppress(OSError):
                self._map.flush()
            self._map.close()
            self._map = None


def read_mark(path: Path) -> tuple[bytes, int | None] | None:
    """Return the id of the chain in the file at *path*, and the number of the last request that was noted.

    The number is None if it is lost. Return None if there is no such file, or it is none of this format.

    Raises:
        OSError: It cannot be read.

    """
    found = path.read_bytes() if path.exists() else b""
    if len(found) != _LAYOUT.size or not found.startswith(_MAGIC):
        return None
    _, of_chain, _, noted, _ = _LAYOUT.unpack(found)
    return of_chain, None if noted == _LOST else noted


def boot_id() -> bytes:
    """Return 16 bytes that change with every boot of the machine, or zeros where the system has no such id."""
    try:
        return uuid.UUID(_BOOT_ID.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return _UNKNOWN_BOOT
