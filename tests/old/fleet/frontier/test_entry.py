"""Entries: any plain value comes back as it was, and no bytes whatever run code or raise anything but GarbledError."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import pickle
import zlib
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_bloom.old.fleet.frontier import entry
from scrapy_bloom.old.fleet.frontier.entry import GarbledError, NotPlainError, decode, decode_signed, encode, encode_signed

SECRET = b"between the workers"

text = st.text(st.characters())  # lone surrogates included: URLs of broken pages have them
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | st.binary() | text.map("!{}".format)
)
hashables = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
        | st.frozensets(hashables, max_size=3)
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(a, b) for a, b in zip(one.items(), other.items(), strict=True))
    if isinstance(one, list | tuple):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return True


@given(st.dictionaries(text, values, max_size=5))
@example({"!b": "not a tag"})
@example({"x": {"!t": 1}})
def test_plain_values_come_back(fields: dict[str, Any]) -> None:
    """Every dict of plain types comes back equal, with the same types and in the same order."""
    found = decode(encode({"fields": fields}))["fields"]
    assert same(found, fields)


def test_a_float_without_a_value_comes_back() -> None:
    """NaN, which JSON has no word for, comes back."""
    assert math.isnan(decode(encode({"x": math.nan}))["x"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"item": datetime.now(timezone.utc)}, r"meta\.item is of type datetime\.datetime"),
        ({"list": [0, object()]}, r"meta\.list\[1\] is of type builtins\.object"),
        ({"big": 10**5000}, "number of more than"),
    ],
)
def test_what_needs_a_pickle_is_refused_by_name(value: dict[str, Any], message: str) -> None:
    """The error says where the value is and of what type."""
    with pytest.raises(NotPlainError, match=message):
        encode({"meta": value})


def test_a_value_inside_itself_is_refused() -> None:
    """A cycle is an error, not a crash."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotPlainError, match="itself"):
        encode({"meta": cycle})


def test_what_is_too_large_is_refused_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry beyond the limit is neither written nor read, and a compressed bomb is not inflated."""
    bomb = encode({"body": b"a" * 100_000})
    assert len(bomb) < 1000
    monkeypatch.setattr(entry, "MAX_BYTES", 10_000)
    with pytest.raises(NotPlainError, match="limit"):
        encode({"body": b"a" * 100_000})
    with pytest.raises(GarbledError, match="more than 10,000 bytes"):
        decode(bomb)
    with pytest.raises(GarbledError, match="more than 10,000 bytes"):
        decode(b'J{"a": "' + b"a" * 20_000 + b'"}')


class Hostile:
    """Says so if it is ever loaded."""

    loaded = 0

    def __reduce__(self) -> Any:
        return _count, ()


def _count() -> str:
    Hostile.loaded += 1
    return "loaded"


HOSTILE = [
    b"",
    b"Z",
    pickle.dumps(Hostile()),
    b"P" + bytes(32) + zlib.compress(pickle.dumps(Hostile())),
    b"P",
    b"J[]",
    b'J{"a":{"!b":"$$$"}}',
    b'J{"a":{"!t":7}}',
    b'J{"a":{"!s":[[1]]}}',
    b'J{"a":{"!d":[1]}}',
    b'J{"a":{"!d":[[{},1]]}}',
    b'J{"a":{"!z":1}}',
    b'J{"a":{"!a":"\xc3\xa4"}}',
    b'J{"!t":[1]}',
    b"J" + b"[" * 200_000,
    b'J{"a":' + b"9" * 5000 + b"}",
    encode({"url": "http://example.com/" + "x" * 300})[:-3],
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_entries_are_refused(data: bytes) -> None:
    """Each hostile entry raises GarbledError, with a secret and without, and no unsigned pickle is loaded."""
    with pytest.raises(GarbledError):
        decode(data)
    with pytest.raises(GarbledError):
        decode_signed(data, SECRET)
    assert Hostile.loaded == 0


@given(st.binary() | st.binary().map(lambda data: b"J" + data) | st.binary().map(lambda data: b"Z" + data))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Any bytes at all are read as a dict or raise GarbledError."""
    with contextlib.suppress(GarbledError):
        assert isinstance(decode_signed(data, SECRET), dict)


@given(st.data())
def test_flipped_bytes_raise_nothing_else(data: st.DataObject) -> None:
    """An entry with one changed byte is read as a dict or raises GarbledError."""
    whole = bytearray(encode({"url": "https://example.com/", "meta": {"depth": 3, "raw": b"\xff", "pair": (1, 2)}}))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(GarbledError):
        assert isinstance(decode(bytes(whole)), dict)


def test_a_signed_pickle_comes_back() -> None:
    """A value that is not plain is written and read under one secret, and refused under another."""
    value = {"meta": {"when": datetime(2026, 1, 1, tzinfo=timezone.utc)}}
    signed = encode_signed(value, SECRET)
    assert decode_signed(signed, SECRET) == value
    with pytest.raises(GarbledError, match="not signed with this BLOOM_FLEET_SECRET"):
        decode_signed(signed, b"another")
    with pytest.raises(GarbledError, match="no BLOOM_FLEET_SECRET is set"):
        decode(signed)
    with pytest.raises(GarbledError):
        decode_signed(signed[:-1], SECRET)


def test_what_cannot_be_pickled_is_refused() -> None:
    """A function in meta raises NotPlainError also with a secret."""
    with pytest.raises(NotPlainError, match="cannot be pickled"):
        encode_signed({"meta": lambda: None}, SECRET)


def test_a_plain_link_takes_little() -> None:
    """A followed link with its referer takes under 150 bytes, less than half of its JSON."""
    fields = {
        "callback": "parse",
        "headers": {b"Referer": [b"https://docs.example.org/library/asyncio.html"]},
        "meta": {"depth": 3, "link_text": "Event loop"},
        "url": "https://docs.example.org/library/asyncio-eventloop.html",
    }
    written = encode(fields)
    plain = json.dumps({**fields, "headers": {"Referer": [base64.b64encode(b"x" * 45).decode()]}})
    assert len(written) < 150 < len(plain)


def test_the_format_is_pinned() -> None:
    """An entry as this version writes it is read by every later one: the dictionary is part of the format."""
    written = bytes.fromhex(GOLDEN)
    assert decode(written) == {"callback": "parse", "meta": {"depth": 1}, "url": "https://www.example.com/a?b=1"}


GOLDEN = "5a23468d2156d3913d94689f646ba8540b00"
