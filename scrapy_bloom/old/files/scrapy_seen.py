"""Reads the ``requests.seen`` that Scrapy's own filter leaves in a job directory, in both of its formats.

Text up to Scrapy 2.18: a fingerprint in hexadecimal per line. Binary from 2.19: its length in two bytes, big-endian,
then the fingerprint. One file may hold both, if Scrapy was upgraded in the middle of a crawl. Scrapy appends in
blocks of 8 KiB, so a killed process leaves a torn record where the next run appends, not only at the end. The reader
skips torn records, finds the whole ones behind them, and does not know what becomes of them; a page whose record was
torn is fetched once more.
"""

from __future__ import annotations

import logging
import mmap
import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_LENGTH_BYTES = 2
# A length from 0x3000 on would begin with a digit of the text format.
_MAX_LENGTH = 0x2FFF
_LINE = re.compile(rb"([0-9a-fA-F]+)\r?\n")

_SURVEYED_RECORDS = 10_000
_LEAST_SHARE = 0.1


def read_fingerprints(path: Path, *, unreadable: Callable[[int, int], None] | None = None) -> Iterator[bytes]:
    """Yield the fingerprints in *path*, in order.

    If some bytes belong to none, *unreadable* is told at the end how many, and of how many; None: log it.

    One torn record in 65,536 takes the record behind it along by chance. A length that less than a tenth of the first
    10,000 fingerprints have is not recognised.
    """
    size = path.stat().st_size
    if not size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        lengths = _lengths(data)
        read = 0
        if lengths:
            for match in _records(lengths).finditer(data):
                record = match[0]
                read += len(record)
                yield bytes.fromhex(match[1].decode()) if match[1] else record[_LENGTH_BYTES:]
        if read < size and unreadable is not None:
            unreadable(size - read, size)
        elif read < size:
            logger.warning(
                "%s: %d of %d bytes belong to no whole fingerprint (a process was killed while it wrote). What they "
                "stood for may be fetched again.",
                path,
                size - read,
                size,
            )


def _lengths(data: mmap.mmap) -> list[int]:
    """Return the lengths in bytes of the fingerprints at the beginning of *data*, the most common first.

    A torn line and the whole line behind it look like one longer line. So rare lengths count only if none is common.
    """
    seen = Counter(islice(_survey(data), _SURVEYED_RECORDS))
    least = max(2.0, _LEAST_SHARE * seen.total())
    common = [length for length, times in seen.most_common() if times >= least]
    return common or [length for length, _ in seen.most_common(1)]


def _survey(data: mmap.mmap) -> Iterator[int]:
    """Yield the lengths of the records, up to the first that cannot be followed."""
    at, size = 0, len(data)
    while at < size:
        line = _LINE.match(data, at)
        if line:
            at = line.end()
            if len(line[1]) % 2 == 0:
                yield len(line[1]) // 2
            continue
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if 0 < length <= _MAX_LENGTH:
            at += _LENGTH_BYTES + length
            if at <= size:
                yield length
        else:
            at += 1


def _records(lengths: list[int]) -> re.Pattern[bytes]:
    """Return a pattern for whole records; group 1 is the hexadecimal text if the record is a line.

    A binary record is whole if another begins where it ends, or the file ends there. Zeros may lie between: a torn
    length leaves one, a power failure blocks of them. Searching on inside a torn record finds the next whole one.
    """
    headers = [length.to_bytes(_LENGTH_BYTES, "big") for length in lengths]
    texts = b"|".join(rb"[0-9a-fA-F]{%d}" % (2 * length) for length in lengths)
    begins = b"|".join(map(re.escape, headers))
    follows = rb"(?=\x00*(?:%s|\Z)|(?:%s)\r?\n)" % (begins, texts)
    binaries = b"|".join(
        rb"%s.{%d}" % (re.escape(header), length) for header, length in zip(headers, lengths, strict=True)
    )
    return re.compile(rb"(?:%s)%s|(%s)(?:\r?\n|\Z)" % (binaries, follows, texts), re.DOTALL)
