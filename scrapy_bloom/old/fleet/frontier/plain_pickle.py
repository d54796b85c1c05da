"""Reads a pickle that holds plain types only, from a source that may be hostile: :func:`loads`.

Knows no request. It restricts Python's unpickler to the few instructions that build plain types; none of them names,
imports or calls anything. It uses the unpickler written in Python: the C one allocates memory for any index that an
entry names, gigabytes for a few bytes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.fleet.frontier.entry import MAX_BYTES, GarbledError

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_VALUES = 1_000_000
"""Most values in one entry, each counted as often as it is referred to: a few bytes can stand for a billion."""

_PLAIN = (
    "PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 "
    "EMPTY_DICT EMPTY_SET EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3"
)
_OPCODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_HASHABLE = (str, bytes, int, float, type(None))

_PythonUnpickler = pickle._Unpickler


def loads(data: bytes) -> Any:
    """Return what is pickled in *data*, if it is made of plain types.

    Raises:
        GarbledError: It is no pickle, is cut off or too large, or holds anything else; the message says what.

    """
    if len(data) > MAX_BYTES:
        raise GarbledError(f"it has more than {MAX_BYTES:,} bytes")
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except GarbledError:
        raise
    except Exception as error:  # the unpickler may raise anything on hostile bytes
        raise GarbledError(f"it is no pickle of plain types ({type(error).__name__}: {error})") from None
    _check_values(found)
    return found


def _refuse(_: Any) -> None:
    raise GarbledError("it is no pickle of plain types")


def _refuse_named(unpickler: Any) -> None:
    names = [value for value in unpickler.stack[-2:] if isinstance(value, str)]
    raise GarbledError(f"it holds {'.'.join(names) or 'something'}, which is no plain type")


def _refuse_global(unpickler: Any) -> None:
    names = [unpickler.readline()[:200].decode("ascii", "replace").strip() for _ in range(2)]
    raise GarbledError(f"it holds {'.'.join(names)}, which is no plain type")


def _checking(name: str, hashed: slice) -> Callable[[Any], None]:
    """Return the instruction *name*, behind a check of what it hashes: a tuple of tuples may take for ever."""
    instruction = _PythonUnpickler.dispatch[_OPCODES[name]]

    def check(unpickler: Any) -> None:
        for item in unpickler.stack[hashed]:
            if not isinstance(item, _HASHABLE):
                raise GarbledError(f"it holds a {type(item).__name__} as a key or as a member of a set")
        instruction(unpickler)

    return check


class _Unpickler(_PythonUnpickler):
    dispatch = (
        dict.fromkeys(_OPCODES.values(), _refuse)
        | {_OPCODES[name]: _PythonUnpickler.dispatch[_OPCODES[name]] for name in _PLAIN.split()}
        | {
            _OPCODES["SETITEM"]: _checking("SETITEM", slice(-2, -1)),
            _OPCODES["SETITEMS"]: _checking("SETITEMS", slice(None, None, 2)),
            _OPCODES["ADDITEMS"]: _checking("ADDITEMS", slice(None)),
            _OPCODES["FROZENSET"]: _checking("FROZENSET", slice(None)),
            _OPCODES["STACK_GLOBAL"]: _refuse_named,
            _OPCODES["GLOBAL"]: _refuse_global,
        }
    )


def _check_values(found: Any) -> None:
    left, values = [found], 0
    while left:
        value = left.pop()
        values += 1
        if values + len(left) > _MAX_VALUES:
            raise GarbledError(f"it holds more than {_MAX_VALUES:,} values")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
