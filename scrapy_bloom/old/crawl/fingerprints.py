"""Chooses what makes the fingerprints of a crawl: its own fingerprinter, or our faster equal of Scrapy's.

Knows the settings that decide it, and no filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from scrapy.utils.request import RequestFingerprinter as ScrapyRequestFingerprinter

from scrapy_bloom.old.url.fingerprint import RequestFingerprinter, fingerprints_under
from scrapy_bloom.old.url.rules import Rules, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy import Request
    from scrapy.crawler import Crawler


@dataclass(frozen=True)
class Fingerprints:
    """How the requests of one crawl become the fingerprints that its filter remembers."""

    of_request: Callable[[Request], bytes]
    """The fingerprint of a request."""
    of_url: Callable[[str], bytes] | None
    """The same for the plain GET request of a URL; None with a custom fingerprinter, which takes requests only."""
    space: Mapping[str, str]
    """The key space: what made the fingerprints. Filters with different key spaces cannot be shared."""
    ignore_fragments: bool = False
    """Whether the fragment of a URL makes no difference for certain: it is gone before any rule sees the URL."""


def fingerprints_of(crawler: Crawler) -> Fingerprints:
    """Return how *crawler* makes fingerprints. A ``REQUEST_FINGERPRINTER_CLASS`` of the user's is kept."""
    fingerprinter = crawler.request_fingerprinter
    if fingerprinter is None:
        raise TypeError("the crawler has no request fingerprinter yet: it applies its settings first")
    cls = type(fingerprinter)
    is_default = cls in (ScrapyRequestFingerprinter, RequestFingerprinter)
    # A subclass of ours applies the rules, too; any other fingerprinter ignores them.
    rules = rules_of(crawler.settings) if is_default or isinstance(fingerprinter, RequestFingerprinter) else Rules()
    if is_default:
        of_request, of_url = fingerprints_under(rules)
        return Fingerprints(of_request, of_url, key_space("scrapy", rules), ignore_fragments=True)
    return Fingerprints(fingerprinter.fingerprint, None, key_space(name_of(cls), rules))


def key_space(fingerprinter: str, rules: Rules) -> dict[str, str]:
    """Return the key space of *fingerprinter*, *rules*, and the w3lib that is installed."""
    return {"fingerprinter": fingerprinter, "rules": ",".join(rules.names), "w3lib": version("w3lib")}


def name_of(cls: type) -> str:
    """Return the import path of *cls*, as it stands in a key space."""
    return f"{cls.__module__}.{cls.__qualname__}"
