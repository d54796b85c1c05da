"""Reads the ``requests.seen`` that Scrapy's own filter leaves in a job directory, in both of its formats.

Text up to Scrapy 2.18: a fingerprint in hexadecimal per line. Binary from 2.19: its length in two bytes, big-endian,
then the fingerprint. Both may stand in one file, when Scrapy was upgraded in the middle of a crawl, and either may be
torn where a process was killed. A record that cannot be made out is skipped: its page is fetched once more.
"""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_LENGTH_BYTES = 2
# A length from 0x3000 on would begin with a hex digit of the text format; fingerprints are 20 bytes, rarely 16 to 64.
_MAX_LENGTH = 255


def read_fingerprints(path: Path) -> Iterator[bytes]:
    """Yield the fingerprints in *path*, in order, and log what could not be read."""
    size = path.stat().st_size
    if not size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = skipped = 0
        usual = 0
        while at < size:
            record = _text_record(data, at) or _binary_record(data, at, size, usual)
            if record is None:
                at += 1
                skipped += 1
                continue
            fingerprint, at = record
            usual = usual or len(fingerprint)
            yield fingerprint
        if skipped:
            logger.warning(
                "%s: %d of %d bytes belong to no whole fingerprint (a process was killed while it wrote). What they "
                "stood for may be fetched again.",
                path,
                skipped,
                size,
            )


def _text_record(data: mmap.mmap, at: int) -> tuple[bytes, int] | None:
    if data[at] not in _HEX_DIGITS:
        return None
    end = data.find(b"\n", at, at + 2 * _MAX_LENGTH + 1)
    if end < 0:
        return None
    try:
        return bytes.fromhex(data[at:end].decode("ascii")), end + 1
    except ValueError:
        return None


def _binary_record(data: mmap.mmap, at: int, size: int, usual: int) -> tuple[bytes, int] | None:
    """Return the record at *at* if it is whole and of the file's *usual* length (0: not known yet)."""
    length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
    end = at + _LENGTH_BYTES + length
    if not 0 < length <= _MAX_LENGTH or end > size or (usual and length != usual):
        return None
    return data[at + _LENGTH_BYTES : end], end
