"""Notes the items of a worker's own feeds until the server has acknowledged their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Journal:
    """The journal of a worker without a job directory: there is nothing to note."""

    @property
    def in_doubt(self) -> Sequence[str]:
        """The calls that have begun and not ended: at first, those of earlier runs."""
        return ()

    def taken(self) -> Sequence[Any]:
        """Return the items of the page that is being acknowledged."""
        return ()

    def begin(self, call: str, pages: Mapping[int, Sequence[Any]]) -> None:
        """Note that *call* is about to be made, which acknowledges *pages*, by their place in it."""

    def end(self, call: str, refused: Collection[int]) -> None:
        """Note that the server has taken *call*, but for the pages *refused*."""

    def drop(self, call: str) -> None:
        """Note that the server does not know of *call*: its pages are fetched again."""

    def commit(self) -> None:
        """Begin a commit if one is due, and end the last one if it is written."""

    def write(self) -> None:
        """Write the commit that has begun, if one has."""

    def flush(self) -> None:
        """Write what is left."""

    def close(self, reason: str) -> None:
        """Let go of everything; *reason* is why the crawl has ended."""
