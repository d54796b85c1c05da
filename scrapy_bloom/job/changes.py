"""Tables of a job with ``BLOOM_CHANGES``: what it keeps of pages and items, and the rows that commits write.

An item has a row for each page that gives it. The page is looked up when the cycle ends: a page that answered in full
without the item takes its row away, and an item whose last row goes like this is gone.
"""

from __future__ import annotations

import enum
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence


SCHEMA = """
CREATE TABLE IF NOT EXISTS page
    (id INTEGER PRIMARY KEY, cycle INTEGER, state INTEGER, size INTEGER, digest INTEGER, is_filtered INTEGER,
    request BLOB, validator TEXT);
CREATE TABLE IF NOT EXISTS item
    (key INTEGER, page INTEGER, digest INTEGER, cycle INTEGER, change INTEGER, label TEXT,
    PRIMARY KEY (key, page, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cycle
    (number INTEGER PRIMARY KEY, began REAL, ended REAL, new INTEGER, changed INTEGER, same INTEGER, gone INTEGER,
    unknown INTEGER, pages INTEGER, not_modified INTEGER, bytes_saved INTEGER)
"""
# Part of the format: what stored requests have in common, so that zlib leaves it out: 43 bytes instead of 135.
_USUAL = (
    b"\x8c\ncb_kwargs\x94}\x94\x8c\x07cookies\x94\x8c\x08priority\x94K\x01\x8c\x0bdont_filter\x94\x88\x8c\x04body\x94C\x00"
    b"\x8c\x06method\x94\x8c\x04POST\x94https://www.\x8c\x08callback\x94\x8c\x05parse\x94\x8c\nparse_item\x94"
    b"\x8c\x04meta\x94}\x94(\x8c\x05depth\x94K\x01\x8c\tlink_text\x94\x8c\x00\x94\x8c\x04rule\x94K\x00uu."
    b"}\x94(\x8c\x03url\x94\x8c/https://www.example.com/\x94\x8c\x07headers\x94}\x94C\x07Referer\x94]\x94"
    b"C\x19https://www.example.com/\x94as\x8c\x04meta\x94}\x94\x8c\x05depth\x94K\x01su."
)


class PageState(enum.IntEnum):
    """The outcome of a page in the last cycle that asked for it."""

    UNKNOWN = 0
    """It failed, was refused or was replaced by another request: nothing is known of its items."""
    ANSWERED = 1
    NOT_MODIFIED = 2
    GONE = 3
    """Its answer was 404 or 410."""


class Change(enum.IntEnum):
    """What was reported of an item."""

    NEW = 1
    CHANGED = 2
    GONE = 3


class PageRow(NamedTuple):
    """A page, as the last cycle that asked for it left it."""

    id: int
    """:func:`number_of` the fingerprint of its request."""
    cycle: int
    state: int
    size: int
    """Bytes of its last body; of a page that is gone, the first cycle in which it was."""
    digest: int
    """Of its request and the code that processes it."""
    is_filtered: bool
    """Whether a later cycle makes the request by itself if nothing else does."""
    request: bytes
    """The stored request, by :func:`packed`."""
    validator: str
    """``E`` and its ETag, or ``M`` and its Last-Modified; "" if it must be answered in full."""


class ItemRow(NamedTuple):
    """An item that a page gave."""

    key: int
    """:func:`number_of` its key."""
    page: int
    """:attr:`PageRow.id` of the page."""
    digest: int
    """0: another page has given a later version of the item."""
    cycle: int
    """The last cycle in which the page gave it. A page that is not modified leaves that as it is."""
    change: int
    """The cycle in which the item was last reported, times four, plus the :class:`Change`."""
    label: str
    """The key for people, beside the URL of the page."""

    def is_of_before(self, cycle: int) -> bool:
        """Return whether an earlier cycle than *cycle* left the row, and the item was not gone then."""
        return self.change // 4 < cycle and self.change % 4 != Change.GONE


def number_of(key: bytes) -> int:
    """Return the number under which *key* is stored, a hash of 64 bits: with 10 million, two meet in 1 of 370,000."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True)


def packed(request: bytes) -> bytes:
    """Return the stored *request* in fewer bytes."""
    compressor = zlib.compressobj(9, wbits=-15, zdict=_USUAL)
    return compressor.compress(request) + compressor.flush()


def unpacked(request: bytes) -> bytes:
    """Return the stored request that was :func:`packed`. Raises zlib.error if it is damaged."""
    return zlib.decompressobj(wbits=-15, zdict=_USUAL).decompress(request)


def write_rows(writer: sqlite3.Connection, pages: Sequence[PageRow], items: Sequence[ItemRow]) -> None:
    """Write rows within a transaction. A page keeps the request of the cycle in which it was filtered."""
    writer.executemany(
        "INSERT INTO page VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET cycle = excluded.cycle, "
        "state = excluded.state, size = excluded.size, digest = excluded.digest, validator = excluded.validator, "
        "request = iif(is_filtered > excluded.is_filtered, request, excluded.request), "
        "is_filtered = max(is_filtered, excluded.is_filtered)",  # a retry is not filtered, and its first request was
        pages,
    )
    writer.executemany("REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?)", items)
