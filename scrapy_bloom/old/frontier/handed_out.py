"""Counts the requests handed out since the last commit, in a file of its own that survives ``kill -9``.

The database says what was in flight at the last commit. What is handed out later is fetched again as well, and only
this number says how much that is. The file is mapped: counting is a store to memory (0.1 microseconds), and the kernel
keeps the page when the process dies. A power failure may leave an older number.

Only a log line of the next run depends on the number. So nothing here raises: a missing file, or one of another size,
counts as no number, and if no file can be made the crawl goes on without. Does not know what a commit or a request is.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_SIZE = 8


class HandedOut:
    """The count of this run, 0 at first, in the file at *path* from :meth:`begin` to :meth:`end`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count = self._sealed = 0
        self._map: mmap.mmap | None = None
        self._number = memoryview(bytearray(_SIZE)).cast("Q")

    def previous(self) -> int | None:
        """Return the number in the file, or None if there is none. Call it before :meth:`begin`."""
        try:
            stored = self.path.read_bytes()
        except OSError:
            return None
        return int.from_bytes(stored, sys.byteorder) if len(stored) == _SIZE else None

    def begin(self) -> None:
        """Reset the number to 0; on failure, delete the stale file."""
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with new.open("wb") as file:
                # Not just truncated to this length: storing to a mapped hole on a full disk is SIGBUS.
                file.write(bytes(_SIZE))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            with self.path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE)
            # In the byte order of this machine, so that one instruction stores it. Struct writes a fixed order byte by
            # byte, and a kill between two bytes could leave a smaller number.
            self._number = memoryview(self._map).cast("Q")
        except (OSError, ValueError) as error:  # ValueError: the file was cut short meanwhile
            for path in (new, self.path):
                with suppress(OSError):
                    path.unlink()
            logger.warning(
                "%s cannot be created: %s. The crawl goes on; if it is killed, the next run cannot say how many pages "
                "are fetched again.",
                self.path,
                error,
            )

    def count(self) -> None:
        """Count one more."""
        self._count += 1
        self._number[0] = self._count

    def seal(self) -> None:
        """Remember the count, as a commit begins."""
        self._sealed = self._count

    def reset(self) -> None:
        """Subtract what was counted before :meth:`seal`, as that commit is complete."""
        self._count -= self._sealed
        self._sealed = 0
        self._number[0] = self._count

    def end(self) -> None:
        """Unmap the file."""
        self._number.release()
        if self._map is not None:
            self._map.close()
