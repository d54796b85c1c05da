"""Requests as bytes on a server: msgpack of plain types, which nobody can use to run code in a worker.

An entry begins with one byte that names its format:

    ``M``  msgpack of the fields of ``Request.to_dict()`` that are not the default
    ``T``  32 bytes of HMAC-SHA256 over the rest, then the same msgpack
    ``S``  the same, with a pickle in the place of msgpack
    ``U``  a start URL that somebody has pushed, as it was pushed
    ``R``  another entry, whose retries do not count

Entries are not trusted: an odd one raises :class:`ValueError`, and no entry makes a worker import anything. Without a
signature, a request has an http or https URL, and no key in ``meta`` that makes a download handler touch files or run
scripts. With a secret, all entries but pushed start URLs are signed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import sys
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import msgpack  # type: ignore[import-untyped]  # it has no types
from scrapy import FormRequest, Request
from scrapy.utils.request import request_from_dict

from scrapy_bloom.frontier.round_trip import PICKLE_PROTOCOL, attributes_of, check_values
from scrapy_bloom.frontier.serialize import DEFAULTS, OF_THE_LAST_TRY

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider

PLAIN, SIGNED_PLAIN, SIGNED, PUSHED, RETRIED = b"M", b"T", b"S", b"U", b"R"

_ACTING_KEYS = ("ftp_", "playwright", "splash", "selenium", "puppeteer", "nodriver", "camoufox", "zyte_api")
"""Keys of ``meta`` begin so if they make a download handler, Scrapy's or a known one, write files or run scripts."""

_MAC_BYTES = 32
# Fields have numbers, which take one byte; append to the list, never change its order.
_FIELDS = (
    *("url", "callback", "errback", "method", "headers", "body", "cookies", "meta", "encoding", "priority"),
    *("dont_filter", "flags", "cb_kwargs", "_class"),
)
_NUMBERS = {name: number for number, name in enumerate(_FIELDS)}
_ARGUMENTS = {*_FIELDS[:-1]}
"""Of ``Request``."""
_TYPES: list[type] = [list, tuple, set, frozenset]
"""Types of collections. The index is the number of the msgpack extension; msgpack itself knows the first type, list."""
_VALUES: dict[type, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    datetime: (16, datetime.isoformat, datetime.fromisoformat),
    date: (17, date.isoformat, date.fromisoformat),
    time: (18, time.isoformat, time.fromisoformat),
    timedelta: (19, lambda value: [value.days, value.seconds, value.microseconds], lambda parts: timedelta(*parts)),
    Decimal: (20, str, Decimal),
    UUID: (21, str, UUID),
    complex: (22, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
}
"""Others that people put into ``meta``: the number of the extension, and how they are written and read."""
_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
}
"""A value of a subclass of these types is written as the type. The function converts it without the subclass's code."""
_READERS = {code: read for code, _, read in _VALUES.values()}


class Entries:
    """Reads and writes the requests of *spider*; with *secret*, also requests that only a pickle can hold."""

    def __init__(self, spider: Spider | None, secret: str | None = None) -> None:
        self.spider = spider
        self._key = secret.encode() if secret else None

    def write(self, request: Request) -> bytes:
        """Return the entry of *request*.

        Raises:
            ValueError: Only a signed entry may hold it, and there is no secret.

        """
        try:
            kept = self._kept(request)
            if self._key is None:
                check_address(request)
                return PLAIN + packed(kept)
            try:
                kind, body = SIGNED_PLAIN, packed(kept)
            except (TypeError, ValueError, OverflowError):
                kind, body = SIGNED, pickle.dumps(kept, PICKLE_PROTOCOL)
                check_values(kept)
        except Exception as error:  # whatever an object of the user's raises
            raise ValueError(str(error)) from None
        return kind + _mac(self._key, kind, body) + body

    def _kept(self, request: Request) -> dict[Any, Any]:
        """Return what of *request* does not have its default value."""
        fields = attributes_of(request, self.spider)
        is_plain = "_class" not in fields  # another class may have other defaults
        return {
            _NUMBERS.get(name, name): value
            for name, value in fields.items()
            if not (is_plain and name in DEFAULTS and value == DEFAULTS[name])
        }

    def read(self, entry: bytes) -> Request:
        """Return the request of *entry*.

        Raises:
            ValueError: It is not an entry, or one that may not be read.

        """
        try:
            fields = self._fields(entry)
            named_fields = {_FIELDS[name] if isinstance(name, int) else name: value for name, value in fields.items()}
            _check_class(named_fields.get("_class"))
            request = request_from_dict(named_fields, spider=self.spider)
            if self._key is None:
                check_address(request)
        except Exception as error:  # msgpack, requests and callbacks raise many
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return request

    def _fields(self, entry: bytes) -> Any:
        kind, body = entry[:1], entry[1:]
        if kind == RETRIED:
            fields = self._fields(body)
            for name in OF_THE_LAST_TRY:
                fields.get(_NUMBERS["meta"], {}).pop(name, None)
            return fields
        if kind == PLAIN and self._key is None:
            return unpacked(body)
        if kind not in (PLAIN, SIGNED, SIGNED_PLAIN):
            raise ValueError(f"it begins with {kind!r}, which is not a known format")
        mac, body = body[:_MAC_BYTES], body[_MAC_BYTES:]
        if self._key is None or kind == PLAIN or not hmac.compare_digest(mac, _mac(self._key, kind, body)):
            raise ValueError("it is not signed with this worker's BLOOM_FLEET_SECRET")
        return unpacked(body) if kind == SIGNED_PLAIN else pickle.loads(body)  # noqa: S301 - it is signed

    def requests_of(self, pushed: bytes) -> list[Request]:
        """Return the requests that a pushed start URL stands for.

        A spider of scrapy-redis makes them itself. Otherwise *pushed* is a URL, or JSON with ``url`` and other
        arguments of ``Request``; what is none of these is form data, as for scrapy-redis.

        Raises:
            ValueError: It is neither.

        """
        try:
            if (make := getattr(self.spider, "make_request_from_data", None)) is not None:
                made = make(pushed)
                return [] if made is None else [made] if isinstance(made, Request) else list(made)
            text = pushed.decode().strip()
            fields = json.loads(text) if text.startswith("{") else {"url": text}
            form = {name: value for name, value in fields.items() if name not in _ARGUMENTS}
            known = {name: value for name, value in fields.items() if name in _ARGUMENTS}
            arguments: dict[str, Any] = {"dont_filter": True, "method": "GET", **known}
            request = FormRequest(**arguments, formdata=form) if form else Request(**arguments)
            check_address(request)
        except Exception as error:  # a spider's method raises anything
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return [request]


def check_address(request: Request) -> None:
    """Raise ValueError if *request* does more than to ask a web server for a page."""
    scheme = urlsplit(request.url).scheme
    if scheme not in ("http", "https"):
        raise ValueError(f"{request.url:.200} is not an http or https URL, and not signed; set BLOOM_FLEET_SECRET")
    for key in request.meta:
        if isinstance(key, str) and key.startswith(_ACTING_KEYS):
            raise ValueError(f"its meta has {key!r}, by which a download handler acts, and is not signed")


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
    if type(value) in _TYPES:
        return msgpack.ExtType(_TYPES.index(type(value)), packed([*value]))
    if (known := _VALUES.get(type(value))) is not None:
        return msgpack.ExtType(known[0], packed(known[1](value)))
    if not isinstance(value, Enum):  # the text of a link is lxml's subclass of str; what it is beyond that, nobody asks
        for plain, convert in _PLAIN.items():
            if isinstance(value, plain):
                return convert(value)
    raise TypeError(f"it holds a value of type {type(value).__module__}.{type(value).__qualname__}")


def _restored(code: int, data: bytes) -> Any:
    value = unpacked(data)
    return _READERS[code](value) if code in _READERS else _TYPES[code](value)


def _mac(key: bytes, kind: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"scrapy-bloom request " + kind + b"\0" + body, hashlib.sha256)


def _check_class(path: Any) -> None:
    """Refuse a class of requests that this process has not imported by itself."""
    if path is None:
        return
    module, _, name = str(path).rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if not (isinstance(cls, type) and issubclass(cls, Request)):
        raise TypeError(f"{path!r:.200} is not a class of requests that this worker has imported")
