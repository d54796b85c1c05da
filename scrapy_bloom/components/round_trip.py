"""Which requests come back from a file as they were. The others have to stay in memory.

A class is checked once, with the first instance that is met: pickled, read again and compared. A class of requests that
keeps attributes beside ``attributes``, which Scrapy does not store, is checked with each request.
"""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.request import request_from_dict

from scrapy_bloom.frontier.stored import PICKLE_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider

MARK_OF_A_CLASS = b"\x93"
"""The opcode that names a class or a function. A pickle without this byte has values of built-in types alone."""

_checked: WeakKeyDictionary[type, str] = WeakKeyDictionary()  # the problem of each class; "": there is none


def attributes_of(request: Request, spider: Spider | None) -> dict[str, Any]:
    """Return ``request.to_dict()``, whose callbacks are methods of *spider*.

    Raises:
        ValueError: A callback is not a method of *spider* itself, or the request would come back as another one.

    """
    for callback in (request.callback, request.errback):
        # Scrapy compares functions only: a method of another object of the same class would become the spider's.
        if callback is not None and getattr(callback, "__self__", None) is not spider:
            raise ValueError(f"{callback} is not a method of the spider")
    attributes = request.to_dict(spider=spider)
    cls = type(request)
    if cls is not Request:
        problem = _checked.get(cls)
        if problem is None or (_own_state_of(request) and not cls.__module__.startswith("scrapy.")):
            problem = _checked[cls] = _problem_of_request(request, attributes, spider)
        if problem:
            raise ValueError(problem)
    return attributes


def check_values(attributes: Mapping[str, Any]) -> None:
    """Raise ValueError if an object in *attributes* is of a class whose instances do not come back as they were."""
    _Checking(io.BytesIO(), PICKLE_PROTOCOL).dump(attributes)


class _Checking(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        cls = type(value)
        if cls is not FunctionType and not isinstance(value, type):
            problem = _checked.get(cls)
            if problem is None:
                problem = _checked[cls] = _problem_of(value)
            if problem:
                raise ValueError(problem)
        return NotImplemented


def _problem_of(value: object) -> str:
    name = type(value).__qualname__
    try:
        copy = pickle.loads(pickle.dumps(value, PICKLE_PROTOCOL))  # noqa: S301 - of this process
    except Exception as error:  # of the user's class
        return f"a {name} that was pickled cannot be read again: {error!r}"
    compare = _is_equal if _compares(value) else lambda one, other: _is_same(_state_of(one), _state_of(other))
    if type(copy) is type(value) and compare(value, copy):
        return ""
    return f"a {name} that was pickled comes back as another one"


def _problem_of_request(request: Request, attributes: dict[str, Any], spider: Spider | None) -> str:
    name = type(request).__qualname__
    try:
        copy = request_from_dict(attributes, spider=spider)
        stored = copy.to_dict(spider=spider)
    except Exception as error:  # of the user's class
        return f"a {name} that was stored cannot be made again: {error!r}"
    if stored == attributes and _is_same(_own_state_of(request), _own_state_of(copy)):
        return ""
    return f"a {name} that was stored comes back as another one: its class has arguments or attributes of its own"


def _is_same(value: Any, copy: Any) -> bool:
    """Return whether *copy* is equal to *value*; if their class does not say, by their attributes.

    Objects inside are of classes that are checked by themselves.
    """
    if isinstance(value, dict):
        return value.keys() == copy.keys() and all(_is_same(value[key], copy[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(copy) and all(map(_is_same, value, copy))
    return type(value) is type(copy) and (not _compares(value) or _is_equal(value, copy))


def _compares(value: object) -> bool:
    return any("__eq__" in cls.__dict__ for cls in type(value).__mro__[:-1])


def _is_equal(value: object, copy: object) -> bool:
    with suppress(Exception):  # the comparison of arrays is an array
        return bool(value == copy)
    return True


def _own_state_of(request: Request) -> dict[str, Any]:
    return {name: value for name, value in _state_of(request).items() if name not in _USUAL}


def _state_of(value: Any) -> dict[str, Any]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    state = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
    return {**state, **getattr(value, "__dict__", {}), "args": getattr(value, "args", ())}


_USUAL = frozenset(_state_of(Request("data:,")))
