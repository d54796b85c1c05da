"""What a worker's directory notes of the items of its own feeds while the server is told that their pages are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Journal(Protocol):
    """Keeps the items of a worker's own feeds from before its calls are made until they are answered, on disk."""

    @property
    def in_doubt(self) -> Sequence[str]:
        """The calls that have begun and not ended: at first, those of earlier runs."""

    def taken(self) -> Sequence[Any]:
        """Return the items that were held since the last call."""

    def begin(self, call: str, pages: Mapping[int, Sequence[Any]]) -> None:
        """Note that *call* is about to be made, which ends *pages*, by their place in it."""

    def end(self, call: str, refused: Collection[int]) -> None:
        """Note that the server has taken *call*, but for the pages *refused*."""

    def drop(self, call: str) -> None:
        """Note that the server does not know of *call*."""

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if it is written."""

    def write(self) -> None:
        """Write the commit that has begun, if one has."""

    def close(self, reason: str) -> None:
        """Write what is left, and let go of everything."""


class NoJournal:
    """Of a worker without a directory: its feeds are written before the server hears of their pages."""

    in_doubt: Sequence[str] = ()

    def taken(self) -> Sequence[Any]:
        """Return nothing."""
        return ()

    def begin(self, call: str, pages: Mapping[int, Sequence[Any]]) -> None:
        """Do nothing."""

    def end(self, call: str, refused: Collection[int]) -> None:
        """Do nothing."""

    def drop(self, call: str) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""

    def write(self) -> None:
        """Do nothing."""

    def close(self, reason: str) -> None:
        """Do nothing."""
