"""Requests as bytes on a server: msgpack of plain types, which nobody can use to run code in a worker.

An entry begins with one byte that names its format:

    ``M``  msgpack of the fields of ``Request.to_dict()`` that are not the default
    ``T``  32 bytes of HMAC-SHA256 over the rest, then the same msgpack
    ``S``  the same, with a pickle in the place of msgpack
    ``U``  a start URL that somebody has pushed, as it was pushed
    ``R``  another entry, whose retries do not count

No entry makes a worker import anything. With a secret, all entries but pushed start URLs are signed.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgpack  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN, SIGNED_PLAIN, SIGNED, PUSHED, RETRIED = b"M", b"T", b"S", b"U", b"R"

_PICKLE_PROTOCOL = 4  # every supported Python reads it
_MAC_BYTES = 32
# Fields have numbers, which take one byte; append to the list, never change its order.
FIELDS = (
    *("url", "callback", "errback", "method", "headers", "body", "cookies", "meta", "encoding", "priority"),
    *("dont_filter", "flags", "cb_kwargs", "_class"),
)
_NUMBERS = {name: number for number, name in enumerate(FIELDS)}
_VALUES: dict[type, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (1, list, tuple),
    set: (2, list, set),
    frozenset: (3, list, frozenset),
    datetime: (16, datetime.isoformat, datetime.fromisoformat),
    date: (17, date.isoformat, date.fromisoformat),
    time: (18, time.isoformat, time.fromisoformat),
    timedelta: (19, lambda value: [value.days, value.seconds, value.microseconds], lambda parts: timedelta(*parts)),
    Decimal: (20, str, Decimal),
    UUID: (21, str, UUID),
    complex: (22, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
}
"""What msgpack does not know and people put into ``meta``: the number of the extension, how it is written and read."""
_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
}
"""A value of a subclass of these types is written as the type. The function converts it without the subclass's code."""
_READERS = {code: read for code, _, read in _VALUES.values()}


class Entries:
    """Writes the fields of requests as entries, and reads them again; with *secret*, entries are signed."""

    def __init__(self, secret: str | None = None) -> None:
        self._key = secret.encode() if secret else None
        self.are_signed = self._key is not None
        """Whether there is a secret. Only then may an entry be a pickle, and its request other than a web page's."""

    def write(self, fields: Mapping[str, Any]) -> bytes:
        """Return the entry of a request with these *fields* of ``Request.to_dict()``.

        Raises TypeError, ValueError or OverflowError if only a pickle can hold them, and there is no secret.
        """
        numbered = {_NUMBERS.get(name, name): value for name, value in fields.items()}
        if self._key is None:
            return PLAIN + packed(numbered)
        try:
            kind, body = SIGNED_PLAIN, packed(numbered)
        except (TypeError, ValueError, OverflowError):
            kind, body = SIGNED, pickle.dumps(numbered, _PICKLE_PROTOCOL)
        return kind + _mac(self._key, kind, body) + body

    def read(self, entry: bytes) -> dict[str, Any]:
        """Return the fields of *entry*. May raise any exception: the entry is damaged, or was made by somebody else."""
        kind, body = entry[:1], entry[1:]
        if kind not in (PLAIN, SIGNED, SIGNED_PLAIN):
            raise ValueError(f"it begins with {kind!r}, which is not a known format")
        if kind != PLAIN or self._key is not None:
            mac, body = body[:_MAC_BYTES], body[_MAC_BYTES:]
            if self._key is None or kind == PLAIN or not hmac.compare_digest(mac, _mac(self._key, kind, body)):
                raise ValueError("it is not signed with this worker's BLOOM_FLEET_SECRET")
        numbered = pickle.loads(body) if kind == SIGNED else unpacked(body)  # noqa: S301 - it is signed
        return {FIELDS[name] if isinstance(name, int) else name: value for name, value in numbered.items()}


def url_of(entry: bytes) -> str:
    """Return the URL of the request of *entry*, for people; the first bytes of a pushed or damaged entry."""
    kind, body = entry[:1], entry[1:]
    if kind == RETRIED:
        return url_of(body)
    if kind == SIGNED:
        return "(signed, and pickled)"
    if kind in (PLAIN, SIGNED_PLAIN):
        with suppress(Exception):  # msgpack raises many
            return str(unpacked(body[_MAC_BYTES * (kind == SIGNED_PLAIN) :])[_NUMBERS["url"]])
    return repr(entry[kind == PUSHED : 200])[2:-1]


def packed(value: Any) -> bytes:
    """Return *value*, made of plain types, as msgpack. Raises TypeError, ValueError or OverflowError for others."""
    data: bytes = msgpack.packb(value, strict_types=True, default=_extended, unicode_errors="surrogatepass")
    return data


def unpacked(data: bytes) -> Any:
    """Return what :func:`packed` was given. Raises ValueError if *data* is nothing that it returns."""
    return msgpack.unpackb(data, ext_hook=_restored, strict_map_key=False, unicode_errors="surrogatepass")


def for_script(value: Any) -> bytes:
    """Return *value* for the servers' ``cmsgpack``, which knows one kind of string."""
    data: bytes = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogatepass")
    return data


def _extended(value: Any) -> Any:
    if (known := _VALUES.get(type(value))) is not None:
        return msgpack.ExtType(known[0], packed(known[1](value)))
    if not isinstance(value, Enum):  # the text of a link is lxml's subclass of str; what it is beyond that, nobody asks
        for plain, convert in _PLAIN.items():
            if isinstance(value, plain):
                return convert(value)
    raise TypeError(f"it holds a value of type {type(value).__module__}.{type(value).__qualname__}")


def _restored(code: int, data: bytes) -> Any:
    return _READERS[code](unpacked(data))


def _mac(key: bytes, kind: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"scrapy-bloom request " + kind + b"\0" + body, hashlib.sha256)
