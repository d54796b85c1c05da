"""Entries of the queue on a server: a dict of plain types to bytes and back, without running anybody's code.

Knows no request and no server. What comes from a server is not trusted: it is limited in size, decoded into plain types
only, and anything odd is :class:`GarbledError`, never another exception.

An entry begins with one byte that names its format:

    ``J``  JSON                          ``Z``  JSON, compressed with zlib and the dictionary below
    ``U``  what somebody has pushed as a start URL, as it came; no dict yet
    ``P``  32 bytes of HMAC-SHA256 over the rest, then a pickle compressed with zlib: only where a secret is set

JSON has no bytes, tuples, sets, or keys other than strings. A value of such a type is an object with one member that
begins with ``!``: ``{"!b": base64}``, ``{"!t": [...]}``, ``{"!s": [...]}``, ``{"!f": [...]}`` for a frozenset, and
``{"!d": [[key, value], ...]}`` for a dict that is not all strings, or has such a member itself. Bytes that are ASCII
are ``{"!a": text}``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
import zlib
from typing import Any

MAX_BYTES = 16 << 20
"""Most bytes of an entry before compression. A larger one is neither written nor read."""

PUSHED = b"U"
"""Format byte of a pushed start URL of which no worker has made a request yet."""

_MAX_DIGITS = 1000
_PLAIN, _COMPRESSED, _SIGNED = b"J", b"Z", b"P"
_MAC_BYTES = 32
_WORTH_COMPRESSING = 40

# What nearly every request has. zlib copies from it, which makes the entry of a plain link about 80 bytes instead of
# 200. Part of the format: to change it, add a format byte.
_DICTIONARY = (
    b'"encoding":"utf-8","flags":[],"cookies":{},"errback":"errback","method":"POST","body":{"!a":"'
    b'"Content-Type":[{"!a":"application/x-www-form-urlencoded"}],"application/json"'
    b'"!b":"!t":[true,false,null"is_start_request":true,"handle_httpstatus_list":[404"download_slot":"'
    b'"retry_times":1"redirect_times":1,"redirect_ttl":19,"redirect_urls":["redirect_reasons":[302]'
    b'"cb_kwargs":{"dont_filter":true"item":{"page":1"priority":-1'
    b'{"callback":"parse_item","parse_page","_callback","rule":0,"link_text":""'
    b".html?page=&id=&q=https://www.example.com/http://127.0.0.1:/"
    b'"headers":{"Referer":[{"!a":"https://www."}]},"meta":{"depth":1}},"url":"https://www.'
    b'{"callback":"parse","meta":{"depth":'
)


class NotPlainError(ValueError):
    """A value cannot be written without a pickle; the message says which and of what type."""


class GarbledError(Exception):
    """Bytes from the server are no entry, or one that may not be read; the message says why."""


def encode(fields: dict[str, Any]) -> bytes:
    """Return the entry for *fields*, whose values are plain types nested in any way.

    Raises:
        NotPlainError: A value is of another type, refers to itself, or all are more than :data:`MAX_BYTES`.

    """
    try:
        text = json.dumps(_tagged(fields, ""), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise NotPlainError("it refers to itself, or is nested too deeply") from None
    data = text.encode("utf-8", "surrogatepass")
    _check_size(len(data))
    if len(data) < _WORTH_COMPRESSING:
        return _PLAIN + data
    compressor = zlib.compressobj(level=6, wbits=-15, memLevel=8, zdict=_DICTIONARY)
    return _COMPRESSED + compressor.compress(data) + compressor.flush()


def decode(entry: bytes) -> dict[str, Any]:
    """Return the fields of *entry*.

    Raises:
        GarbledError: It is no entry, larger than :data:`MAX_BYTES`, or needs a secret to be read.

    """
    kind, rest = entry[:1], entry[1:]
    if kind == _SIGNED:
        raise GarbledError("it holds a pickle, and no BLOOM_FLEET_SECRET is set to check it with")
    if kind not in (_PLAIN, _COMPRESSED):
        raise GarbledError(f"it begins with {kind!r}, which is no known format")
    try:
        data = _limited(rest) if kind == _PLAIN else _inflated(rest, _DICTIONARY)
        fields = _untagged(json.loads(data.decode("utf-8", "surrogatepass"), parse_int=_integer))
    except GarbledError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
        raise GarbledError(f"it cannot be decoded ({error})") from None
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise GarbledError("it is no object with fields")
    return fields


def encode_signed(value: object, secret: bytes) -> bytes:
    """Return an entry with a pickle of *value*, signed with *secret*.

    Raises:
        NotPlainError: It cannot be pickled, or is larger than :data:`MAX_BYTES`.

    """
    try:
        pickled = pickle.dumps(value, protocol=4)
    except Exception as error:  # whatever a __reduce__ raises
        raise NotPlainError(f"it cannot be pickled either ({error})") from None
    _check_size(len(pickled))
    compressed = zlib.compress(pickled)
    return _SIGNED + _mac(compressed, secret) + compressed


def decode_signed(entry: bytes, secret: bytes) -> Any:
    """Return the value of an entry of either kind; a pickle is loaded only if it is signed with *secret*.

    Raises:
        GarbledError: As :func:`decode`, or the signature is not ours.

    """
    if entry[:1] != _SIGNED:
        return decode(entry)
    mac, compressed = entry[1 : 1 + _MAC_BYTES], entry[1 + _MAC_BYTES :]
    if not hmac.compare_digest(mac, _mac(compressed, secret)):
        raise GarbledError("it holds a pickle that is not signed with this BLOOM_FLEET_SECRET")
    try:
        return pickle.loads(_inflated(compressed, None))  # noqa: S301 - signed by somebody who knows the secret
    except GarbledError:
        raise
    except Exception as error:  # a class that has moved, or whatever its __setstate__ raises
        raise GarbledError(f"its pickle cannot be loaded ({type(error).__name__}: {error})") from None


def _mac(data: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, b"scrapy-bloom request\0" + data, hashlib.sha256).digest()


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise NotPlainError(f"it has {size:,} bytes, and {MAX_BYTES:,} is the limit")


def _inflated(data: bytes, dictionary: bytes | None) -> bytes:
    inflater = zlib.decompressobj(-15, zdict=dictionary) if dictionary is not None else zlib.decompressobj()
    found = _limited(inflater.decompress(data, MAX_BYTES + 1))
    if not inflater.eof:
        raise GarbledError("it is cut off")
    return found


def _limited(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise GarbledError(f"it has more than {MAX_BYTES:,} bytes")
    return data


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # Python before 3.10.7 takes quadratic time
        raise GarbledError(f"it holds a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def _tagged(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is str or kind is bool or kind is float or value is None:
        return value
    if kind is int:
        if value.bit_length() > 3 * _MAX_DIGITS:
            raise NotPlainError(f"{path[1:]} is a number of more than {_MAX_DIGITS} digits")
        return value
    if kind is bytes:
        return {"!a": value.decode()} if value.isascii() else {"!b": base64.b64encode(value).decode()}
    if kind is list:
        return [_tagged(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if kind is dict:
        if all(type(name) is str and name[:1] != "!" for name in value):
            return {name: _tagged(item, f"{path}.{name}") for name, item in value.items()}
        pairs = [[_tagged(name, f"{path} (a key)"), _tagged(item, f"{path}[{name!r}]")] for name, item in value.items()]
        return {"!d": pairs}
    if kind is tuple:
        return {"!t": [_tagged(item, f"{path}[{i}]") for i, item in enumerate(value)]}
    if kind is set or kind is frozenset:
        return {"!s" if kind is set else "!f": [_tagged(item, f"{path} (a member)") for item in value]}
    raise NotPlainError(f"{path[1:]} is of type {kind.__module__}.{kind.__qualname__}")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, content),) = value.items()
        if name[:1] == "!":
            return _TAGS[name](content)
    return {name: _untagged(item) for name, item in value.items()}


_TAGS: dict[str, Any] = {
    "!a": lambda content: content.encode("ascii") if isinstance(content, str) else _refuse(),
    "!b": lambda content: base64.b64decode(content, validate=True) if isinstance(content, str) else _refuse(),
    "!t": lambda content: tuple(_untagged_list(content)),
    "!s": lambda content: set(_untagged_list(content)),
    "!f": lambda content: frozenset(_untagged_list(content)),
    "!d": lambda content: {_untagged(name): _untagged(item) for name, item in _list(content)},
}


def _list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else _refuse()


def _untagged_list(content: Any) -> list[Any]:
    return [_untagged(item) for item in _list(content)]


def _refuse() -> Any:
    raise GarbledError("a tagged value has content of the wrong type")
