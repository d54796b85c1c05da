"""A request as bytes: a pickle of ``request.to_dict()``, as in Scrapy's disk queues.

Requests that would not come back as they were have to stay in memory. A class is checked once, with the first instance
that is met: pickled, read again and compared. A class of requests that keeps attributes beside ``attributes``, which
Scrapy does not store, is checked with each request.
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

from scrapy_bloom.frontier.order import MARK, PICKLE_PROTOCOL
from scrapy_bloom.loops.share import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider

# A plain request has these; leaving them out halves the size, and Scrapy fills them in when it reads the request.
_DEFAULTS = {name: value for name, value in Request("data:,").to_dict().items() if name != "url"}
MARK_OF_A_CLASS = b"\x93"
"""The opcode that names a class or a function. A pickle without this byte has values of built-in types alone."""

_checked: WeakKeyDictionary[type, str] = WeakKeyDictionary()  # the problem of each class; "": there is none


def dumps(request: Request, spider: Spider | None, mark: Mark | None = None) -> bytes:
    """Return *request*, whose callbacks are methods of *spider*, and the loop guard's *mark* of it as bytes.

    Raises ValueError if it cannot be serialized, or would come back as another request.
    """
    try:
        attributes = without_defaults(attributes_of(request, spider))
        if mark is not None:
            attributes[MARK] = tuple(mark)  # a class of ours would tie the job to this version
        body = pickle.dumps(attributes, PICKLE_PROTOCOL)
        if MARK_OF_A_CLASS in body:
            check_values(attributes)
    except Exception as error:  # of objects of the user's in meta
        raise ValueError(str(error)) from error
    # Version and length of the only frame, 11 of some 120 bytes, tell nothing: pickle.loads() does without them.
    return body[11:] if int.from_bytes(body[3:11], "little") == len(body) - 11 else body


def without_defaults(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return *attributes* of a request but for those that Scrapy fills in."""
    if "_class" in attributes:  # another class may have other defaults
        return attributes
    return {
        name: value
        for name, value in attributes.items()
        if name == "url" or value != _DEFAULTS[name] or type(value) is not type(_DEFAULTS[name])
    }


def loads(body: bytes, spider: Spider | None) -> tuple[Request, Mark | None]:
    """Return the request in *body* and its mark. May raise anything: unpickling runs other people's code.

    A job directory is as trusted as with Scrapy's own queues, which are pickles, too.
    """
    attributes: dict[str, Any] = pickle.loads(body)  # noqa: S301 - see the docstring
    mark = attributes.pop(MARK, None)
    return request_from_dict(attributes, spider=spider), None if mark is None else Mark(*mark)


def attributes_of(request: Request, spider: Spider | None) -> dict[str, Any]:
    """Return ``request.to_dict()``, whose callbacks are methods of *spider*.

    Raises ValueError if a callback is not a method of *spider* itself, or the request would come back as another one.
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
