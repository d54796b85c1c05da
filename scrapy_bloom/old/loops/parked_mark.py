"""The number of the newest parked request, in a file of its own that ``kill -9`` cannot undo.

A parked request is nowhere but in the guard's file, and its page counts as seen. A file that was restored from an older
backup, or copied without its log, lacks what was parked since, and nothing in it tells. So the number is noted beside
it: after a request was parked, and before the newest one is deleted. A power failure or a full disk may leave another
number: the next run then warns once too often, or not of the last requests. Does not know how requests are parked.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MARK_NAME = "requests.parked"
"""In the job directory, not beside the guard's file: whoever restores that restores its whole directory."""

_MAGIC = b"\x89BLOOMP\n"
_LAYOUT = struct.Struct("<8sQ")
_NUMBER = struct.Struct("<Q")


def read_mark(path: Path) -> int:
    """Return the number in the file at *path*; 0 if there is none, or another program's.

    Raises:
        OSError: It cannot be read.

    """
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return 0
    return _LAYOUT.unpack(found)[1] if len(found) == _LAYOUT.size and found.startswith(_MAGIC) else 0


class ParkedMark:
    """The number in the file at *path*, which is begun anew with *number*, until :meth:`close`.

    Raises:
        OSError: It cannot be written.

    """

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            file.write(_LAYOUT.pack(_MAGIC, number))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._file = path.open("r+b", buffering=0)

    def note(self, number: int) -> None:
        """Note *number* as that of the newest request, unless the disk refuses."""
        if number != self.number:
            self.number = number
            with suppress(OSError):
                self._file.seek(len(_MAGIC))
                self._file.write(_NUMBER.pack(number))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
