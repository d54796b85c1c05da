"""A dict that forgets what was not used for long."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Lately(Generic[Value]):
    """The last keys that were set or asked for: *most* at least, twice as many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[object, Value] = {}
        self._old: dict[object, Value] = {}

    def get(self, key: object) -> Value | None:
        """Return the value of *key*; None if it is not known, or not any more."""
        value = self._new.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.set(key, value)
        return value

    def set(self, key: object, value: Value) -> None:
        """Remember *value*, and forget the oldest half when there are too many."""
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}
        self._new[key] = value
