"""How fast a fleet may ask the slots of the downloader: Scrapy's settings, for all workers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Politeness(NamedTuple):
    """How fast all workers together may ask the slots of the downloader; "*" stands for all that are not named."""

    delays: Mapping[str, float] = {}
    """Seconds between two requests."""
    shares: Mapping[str, int] = {}
    """The most requests in hand; without "*"."""
