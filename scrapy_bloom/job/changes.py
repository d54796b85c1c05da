"""Tables of a job with ``BLOOM_CHANGES``: what it keeps of pages and items, and the rows that commits write."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS page
    (id INTEGER PRIMARY KEY, cycle INTEGER, state INTEGER, size INTEGER, digest INTEGER, is_filtered INTEGER,
    request BLOB, validator TEXT);
CREATE TABLE IF NOT EXISTS item
    (id INTEGER PRIMARY KEY, page INTEGER, cycle INTEGER, change INTEGER, digests BLOB, earlier BLOB, label TEXT,
    other INTEGER);
CREATE TABLE IF NOT EXISTS cycle
    (number INTEGER PRIMARY KEY, began REAL, ended REAL, new INTEGER, changed INTEGER, same INTEGER, gone INTEGER,
    unknown INTEGER, pages INTEGER, not_modified INTEGER, bytes_saved INTEGER)
"""
SEVERAL_PAGES = 0
"""In the place of a page's id: several pages gave the item in one cycle."""
DIGEST_BYTES = 8
SWEPT_AT_ONCE = 500
"""Requests of earlier cycles that are read at a time."""

# Part of the format: what stored requests have in common, so that zlib leaves it out: 43 bytes instead of 135.
_USUAL = (
    b"\x8c\ncb_kwargs\x94}\x94\x8c\x07cookies\x94\x8c\x08priority\x94K\x01\x8c\x0bdont_filter\x94\x88\x8c\x04body\x94C\x00"
    b"\x8c\x06method\x94\x8c\x04POST\x94https://www.\x8c\x08callback\x94\x8c\x05parse\x94\x8c\nparse_item\x94"
    b"\x8c\x04meta\x94}\x94(\x8c\x05depth\x94K\x01\x8c\tlink_text\x94\x8c\x00\x94\x8c\x04rule\x94K\x00uu."
    b"}\x94(\x8c\x03url\x94\x8c/https://www.example.com/\x94\x8c\x07headers\x94}\x94C\x07Referer\x94]\x94"
    b"C\x19https://www.example.com/\x94as\x8c\x04meta\x94}\x94\x8c\x05depth\x94K\x01su."
)


class PageState(enum.IntEnum):
    """What became of a page in the last cycle that asked for it."""

    UNKNOWN = 0
    """It failed, was refused or was replaced by another request: nothing is known of its items."""
    ANSWERED = 1
    NOT_MODIFIED = 2
    GONE = 3
    """Its answer was 404 or 410."""


class Change(enum.IntEnum):
    """What was told of an item."""

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
    """An item, as the last cycle that was given it left it."""

    id: int
    """:func:`number_of` its key."""
    page: int
    """The page that gave it, or :data:`SEVERAL_PAGES`."""
    cycle: int
    """The last cycle in which a page gave it. A page that is not modified leaves that as it is."""
    change: int
    """The cycle in which something was told of it last, times four, plus the :class:`Change`."""
    digests: bytes
    """Of the items that had this key in :attr:`cycle`, one after the other; usually one."""
    earlier: bytes | None
    """Digests of the cycle before; None if they were the same."""
    label: str
    """The key for people, beside the URL of the page."""
    other: int | None
    """The page that gave the item in an earlier cycle, and perhaps still does. None: :attr:`page` itself, or none."""

    def before(self, cycle: int) -> bytes:
        """Return the digests that earlier cycles than *cycle* left; b"" if there are none."""
        return self.digests if self.cycle < cycle or self.earlier is None else self.earlier


def number_of(key: bytes) -> int:
    """Return the number under which *key* is stored, a hash of 64 bits: with 10 million, two meet in 1 of 370,000."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True)


def packed(request: bytes) -> bytes:
    """Return the stored *request* in fewer bytes."""
    compressor = zlib.compressobj(9, wbits=-15, zdict=_USUAL)
    return compressor.compress(request) + compressor.flush()


def unpacked(request: bytes) -> bytes:
    """Return what was :func:`packed`. Raises zlib.error if it is damaged."""
    return zlib.decompressobj(wbits=-15, zdict=_USUAL).decompress(request)


def holds(digests: bytes, digest: bytes) -> bool:
    """Return whether *digest* is one of *digests*."""
    return any(digests[at : at + DIGEST_BYTES] == digest for at in range(0, len(digests), DIGEST_BYTES))


@dataclass
class Rows:
    """What one commit writes of pages and items."""

    pages: list[PageRow] = field(default_factory=list)
    items: list[ItemRow] = field(default_factory=list)
    in_full: list[int] = field(default_factory=list)
    """Pages of earlier commits that the next cycle asks for in full."""


def write_rows(writer: sqlite3.Connection, rows: Rows) -> None:
    """Write *rows* within a transaction. A page keeps the request of the cycle in which it was filtered."""
    writer.executemany(
        "INSERT INTO page VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET cycle = excluded.cycle, "
        "state = excluded.state, size = excluded.size, digest = excluded.digest, validator = excluded.validator, "
        "request = iif(is_filtered > excluded.is_filtered, request, excluded.request), "
        "is_filtered = max(is_filtered, excluded.is_filtered)",  # a retry is not filtered, and its first request was
        rows.pages,
    )
    writer.executemany("REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows.items)
    writer.executemany("UPDATE page SET validator = '' WHERE id = ?", [(id_,) for id_ in rows.in_full])
