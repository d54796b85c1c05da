"""Which keys the requests of a crawl get: its fingerprinter's, or the equal and faster ones in place of Scrapy's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from scrapy.utils.request import RequestFingerprinter as ScrapyRequestFingerprinter

from scrapy_bloom.url.fingerprint import RequestFingerprinter, fingerprint, fingerprint_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy import Request
    from scrapy.crawler import Crawler


@dataclass(frozen=True)
class Keys:
    """How the requests of one crawl become keys of its filter."""

    of_request: Callable[[Request], bytes]
    """The fingerprint of a request."""
    of_url: Callable[[str], bytes] | None
    """The same for the plain GET request of a URL; None if that takes a request, as with a custom fingerprinter."""
    space: Mapping[str, str]
    """What made the keys; filters filled under another fingerprinter or other rules cannot be shared."""


def keys_of(crawler: Crawler) -> Keys:
    """Return the keys of *crawler*. A ``REQUEST_FINGERPRINTER_CLASS`` other than Scrapy's own is used as it is."""
    fingerprinter = crawler.request_fingerprinter
    if fingerprinter is None:
        raise TypeError("the crawler has no request fingerprinter yet: it applies its settings first")
    cls = type(fingerprinter)
    if cls in (ScrapyRequestFingerprinter, RequestFingerprinter):
        return Keys(fingerprint, fingerprint_url, _key_space("scrapy"))
    return Keys(fingerprinter.fingerprint, None, _key_space(f"{cls.__module__}.{cls.__qualname__}"))


def _key_space(fingerprinter: str) -> dict[str, str]:
    return {"fingerprinter": fingerprinter, "rules": "", "w3lib": version("w3lib")}
