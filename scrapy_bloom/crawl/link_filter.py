"""How the parts of one crawl find each other without knowing each other: a signal of the crawler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class LinkFilter(Protocol):
    """What answers for links that are not requests yet."""

    def seen_urls(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether its plain GET request is a duplicate. Records nothing, never raises."""

    def within_limits(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether the limits of the loop guard allow it; log and count those they do not."""


link_filter_wanted = object()
"""Sent by a spider that wants to ask about links; a duplicate filter that can answer returns a :class:`LinkFilter`.

The engine knows the filter too, but up to Scrapy 2.18 only in private attributes.
"""
