"""How the requests of a crawl become fingerprints, as plain data: :class:`Fingerprints`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Fingerprints:
    """How the requests of one crawl become the fingerprints that its filter remembers."""

    of_request: Callable[[Any], bytes]
    """Makes the fingerprint of a Scrapy request."""
    of_url: Callable[[str], bytes] | None
    """The same for the plain GET request of a URL; None with a custom fingerprinter, which takes requests only."""
    space: Mapping[str, str]
    """The key space: fingerprinter, rules and w3lib version. Crawls with different key spaces cannot share a filter."""
    ignore_fragments: bool = False
    """True if the fragment of a URL never makes a difference: it is cut off before any rule sees the URL."""
