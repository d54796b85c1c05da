"""Connects whoever asks about links with the filter that answers, by a signal of the crawler. Knows neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class LinkFilter(Protocol):
    """Answers for links that are not requests yet."""

    @property
    def fingerprint_url(self) -> Callable[[str], bytes] | None:
        """The fingerprint of a URL's plain GET request; raises for what is not a URL.

        None with a custom fingerprinter, which takes requests only: then nobody can tell which links were seen.
        """

    @property
    def ignores_fragments(self) -> bool:
        """Whether URLs that differ in their fragment only have the same fingerprint, whatever the fragment."""

    @property
    def epoch(self) -> int | None:
        """A number: an earlier "seen" holds as long as it stays the same.

        None while the filter has to be asked again, whatever it said before.
        """

    def seen_fingerprints(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        """Return for each fingerprint whether its request is a duplicate. Records nothing, never raises."""

    def within_limits(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether the limits of the loop guard allow it; log and count those they do not."""


link_filter_wanted = object()
"""Sent by a spider that wants to ask about links; a duplicate filter that can answer returns a :class:`LinkFilter`.

The engine knows the filter too, but up to Scrapy 2.18 only in private attributes.
"""
