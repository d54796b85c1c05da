"""Pickles of plain types are read as Python reads them, and nothing else is: no import, no call, no endless work."""

from __future__ import annotations

import collections
import datetime
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.old.fleet.frontier.entry import GarbledError
from scrapy_bloom.old.fleet.frontier.plain_pickle import loads
from tests.old.fleet.frontier.test_fleet_scheduler import Bomb

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    scalars | st.sets(st.integers()) | st.frozensets(st.text()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(scalars, inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(plain, st.sampled_from([4, 5]))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    """Pickles of plain values are read as by Python, under each protocol that scrapy-redis has used on Python 3.8 and
    later."""
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Bomb(), "builtins.setattr"),
        (datetime.timedelta(1), "datetime.timedelta"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (print, "builtins.print"),
    ],
    ids=["bomb", "timedelta", "OrderedDict", "function"],
)
def test_whatever_would_be_imported_is_refused_and_named(value: Any, named: str, protocol: int) -> None:
    """A pickle that imports anything, nested or not, is refused by the name of the import, and nothing is called.
    Protocol 0 is refused whole."""
    with pytest.raises(GarbledError) as caught:
        loads(pickle.dumps({"meta": [value]}, protocol))
    assert not Bomb.went_off
    if protocol > 0:
        assert f"it holds {named.replace('builtins', '__builtin__') if protocol < 3 else named}" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04.", b"\x80\x04h\x05.", b"\x80\xff}.", b"\x80\x04\x8a\xff\x7f", b"\x80\x04]", b"no pickle"],
    ids=["nothing", "no value", "an index without a value", "a later protocol", "cut off", "no end", "text"],
)
def test_garbled_pickles_are_refused(data: bytes) -> None:
    """A garbled pickle raises GarbledError."""
    with pytest.raises(GarbledError):
        loads(data)


def test_an_index_of_four_billion_takes_no_memory() -> None:
    """A memo index of four billion is read as a list without the 64 GB that the unpickler in C would set aside."""
    assert loads(b"\x80\x04]r\xff\xff\xff\xff.") == []


def doubled(depth: int) -> bytes:
    """A list of twice the same list of twice the same list ..., *depth* deep, in a few bytes each."""
    return b"\x80\x04]" + b"".join(b"\x94]h" + bytes([i]) + b"ah" + bytes([i]) + b"a" for i in range(depth)) + b"."


@pytest.mark.slow
def test_a_few_bytes_that_stand_for_a_billion_values_are_refused() -> None:
    """A list of the same list, 60 deep, which stands for 2^60 values, is refused."""
    assert loads(doubled(3)) == [[[[], []], [[], []]], [[[], []], [[], []]]]
    with pytest.raises(GarbledError, match="more than 1,000,000 values"):
        loads(doubled(60))


def test_keys_that_take_for_ever_to_hash_are_refused() -> None:
    """A key made of the same tuple, 60 deep, whose hash takes 2^60 steps, is refused."""
    tuples = b")" + b"".join(b"\x94h" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))
    for data in (b"\x80\x04}" + tuples + b"Ns.", b"\x80\x04}(" + tuples + b"Nu.", b"\x80\x04\x8f(" + tuples + b"\x90."):
        with pytest.raises(GarbledError, match="it holds a tuple as a key"):
            loads(data)


@pytest.mark.slow
@given(plain, st.data())
def test_any_change_is_read_or_refused(value: Any, data: st.DataObject) -> None:
    """A pickle with a changed byte or a missing end is read as a plain value or raises GarbledError."""
    pickled = bytearray(pickle.dumps(value, 4))
    at = data.draw(st.integers(0, len(pickled) - 1))
    pickled[at] = data.draw(st.integers(0, 255))
    with suppress(GarbledError):
        loads(bytes(pickled[: data.draw(st.integers(0, len(pickled)))]))
