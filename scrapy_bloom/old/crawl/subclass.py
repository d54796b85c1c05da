"""What a user's subclass of a duplicate filter overrides, and what follows from that.

Knows the methods that people override in subclasses of Scrapy's ``RFPDupeFilter``. Does not know what a filter does.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import ScrapyDeprecationWarning

from scrapy_bloom.old.crawl.fingerprints import name_of
from scrapy_bloom.old.errors import SettingsError

if TYPE_CHECKING:
    from scrapy_bloom.old.crawl.fingerprints import Fingerprints


def overrides(face: object, base: type, method: str) -> bool:
    """Return whether the class of *face* has a *method* other than that of *base*."""
    return getattr(type(face), method) is not getattr(base, method)


def check(face: object) -> None:
    """Refuse a subclass whose every request would look like a duplicate.

    Raises:
        SettingsError: ``request_seen`` is ``async def``: a coroutine is true, whatever it would return.

    """
    cls = type(face)
    seen: Any = getattr(cls, "request_seen")  # noqa: B009 - an object of any class
    if inspect.iscoroutinefunction(seen):
        problem = (
            f"DUPEFILTER_CLASS is {name_of(cls)}, whose request_seen() is async def; Scrapy does not await it and "
            "would drop every request. Make it a plain method"
        )
        raise SettingsError([problem])


def fingerprints_as_overridden(face: Any, base: type, fingerprints: Fingerprints) -> Fingerprints:
    """Return the fingerprints that *face* makes if its class overrides how *base* makes them, or else *fingerprints*.

    Its own have another key space: a filter filled with one kind cannot be used with the other.
    """
    if overrides(face, base, "fingerprint"):
        of_request = face.fingerprint
    elif overrides(face, base, "request_fingerprint"):
        warnings.warn(
            f"{name_of(type(face))} overrides request_fingerprint(), which Scrapy has deprecated. It is used; override "
            "fingerprint(), which returns bytes, or set REQUEST_FINGERPRINTER_CLASS instead.",
            ScrapyDeprecationWarning,
            stacklevel=2,
        )

        def of_request(request: Request) -> bytes:
            return bytes.fromhex(face.request_fingerprint(request))
    else:
        return fingerprints

    def of_url(url: str) -> bytes:
        made: bytes = of_request(Request(url))
        return made

    return replace(
        fingerprints,
        of_request=of_request,
        of_url=None if fingerprints.of_url is None else of_url,
        space={**fingerprints.space, "fingerprinter": name_of(type(face))},
        ignore_fragments=False,
    )
