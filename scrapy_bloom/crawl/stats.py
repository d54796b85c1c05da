"""What a crawl needs to know of the collector of its stats."""

from __future__ import annotations

from typing import Any, Protocol


class Stats(Protocol):
    """The stats of a crawl, as Scrapy's collectors keep them."""

    def get_value(self, key: str, default: Any = None, /) -> Any:
        """Return the value of *key*."""

    def set_value(self, key: str, value: Any, /) -> None:
        """Set the value of *key*."""

    def inc_value(self, key: str, count: int = 1, /) -> None:
        """Add *count* to the value of *key*."""

    def get_stats(self) -> dict[str, Any]:
        """Return all values."""
