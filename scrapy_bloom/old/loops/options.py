"""``BLOOM_LOOP_GUARD`` as one frozen, validated object. Knows no URL, no page and no crawl."""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scrapy_bloom.old.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SETTING = "BLOOM_LOOP_GUARD"


@dataclass(frozen=True)
class LoopOptions:
    """What the loop guard may be told; each attribute is the key of the same name in the dict of the setting.

    A limit of None is off. Where the numbers come from, and what they cost, is in ``docs/loops.md``.
    """

    depth: int | None = 20
    """Most segments that the path of a URL may have."""
    length: int | None = 2083
    """Most characters that a URL may have, without its fragment: what browsers took for many years."""
    tandem: int | None = 3
    """How often in a row a block of path segments makes a loop; a block with one telling segment, once more often."""
    params: int | None = 20
    """Most parameters that a query may have; the same one three times, with the same value, is also too many."""
    allow: tuple[str, ...] = ()
    """Regular expressions; a URL in which one is found (``re.search``) is never held back."""

    @classmethod
    def of(cls, given: Mapping[Any, Any]) -> LoopOptions:
        """Return the options for the dict of a setting, in which every key may be left out.

        Raises:
            SettingsError: Keys that are unknown, or values that are out of range; all in one.

        """
        values: dict[str, Any] = {}
        problems = []
        for key, value in given.items():
            option = OPTIONS.get(key) if isinstance(key, str) else None
            if option is None:
                close = difflib.get_close_matches(str(key), OPTIONS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(OPTIONS)}"
                problems.append(f"{SETTING} has {key!r}, which is none of its options; {hint}")
                continue
            try:
                values[key] = option.parse(value)
            except (TypeError, ValueError, OverflowError, RecursionError, re.error) as error:
                detail = f" ({error})" if isinstance(error, re.error) else ""
                problems.append(f"{SETTING}[{key!r}] must be {option.allowed}, not {value!r}{detail}")
        if problems:
            raise SettingsError(problems)
        return cls(**values)


class _Option(NamedTuple):
    allowed: str
    parse: Callable[[Any], Any]


def _limit(lowest: int) -> _Option:
    def parse(value: Any) -> int | None:
        if value is None or value is False:
            return None
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
        if not math.isfinite(number) or number != int(number) or number < lowest:
            raise ValueError
        return int(number)

    return _Option(f"a whole number, at least {lowest}, or None for no limit", parse)


def _patterns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise TypeError
    for pattern in value:
        if not isinstance(pattern, str):
            raise TypeError
        re.compile(pattern)
    return tuple(value)


OPTIONS = {
    "depth": _limit(1),
    "length": _limit(1),
    "tandem": _limit(2),
    "params": _limit(1),
    "allow": _Option("a list of regular expressions", _patterns),
}
"""What may be set, by key, and how it is read."""


def parse_loop_guard(value: Any) -> LoopOptions | Literal[False]:
    """Return the options that *value* of ``BLOOM_LOOP_GUARD`` stands for, or False if the guard is off.

    Takes what ``getbool()`` takes, a dict, and a dict written in JSON, as on a command line.

    Raises:
        SettingsError: A dict with wrong keys or values.
        ValueError, TypeError: Neither of these.

    """
    if isinstance(value, str):
        value = value.strip()
        if value.startswith("{"):
            try:
                value = json.loads(value)
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
    if hasattr(value, "items"):  # a dict, or Scrapy's BaseSettings, which it makes of dicts in places
        return LoopOptions.of(dict(value.items()))
    if value in ("0", "False", "false", 0):
        return False
    if value in ("1", "True", "true", 1):
        return LoopOptions()
    raise ValueError
