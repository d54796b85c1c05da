"""Scrapy's own fingerprint of a request, bit for bit, faster.

Scrapy's fingerprint is the SHA-1 of a JSON object with sorted keys: body in hex, headers (none by default), method and
canonical URL. This module writes that text itself for ordinary requests and leaves unusual ones to
``scrapy.utils.request.fingerprint``. It does not know how a URL becomes canonical, or who asks.
"""

from __future__ import annotations

import logging
from hashlib import sha1
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

import scrapy
from scrapy.http import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.old.url.canonical import SELF_CHECK_URLS, canonicalize_url, leave_all_to_w3lib, quick_canonical
from scrapy_bloom.old.url.rules import Rules, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_NO_RULES = Rules()

# The JSON text in front of the URL of a GET request without body.
_BEFORE_URL = '{"body": "", "headers": {}, "method": "GET", "url": "'


def fingerprint(request: Request) -> bytes:
    """Return what ``scrapy.utils.request.fingerprint(request)`` of the installed Scrapy returns: 20 bytes.

    Raises whatever Scrapy raises. Fingerprints of ordinary requests are not cached: computing one takes about as long
    as Scrapy takes to look one up.
    """
    if type(request) is Request:  # private attributes save 150 ns; a subclass may have properties of its own
        meta, url, body = request._meta, request._url, request._body
    else:
        meta, url, body = request.meta, request.url, request.body
    method = request.method
    # Only Scrapy 2.17 and newer know "verbatim_url", so Scrapy answers.
    if type(method) is str and not (meta and meta.get("verbatim_url")):
        canonical = quick_canonical(url)
        if canonical is not None:  # a recognised URL holds nothing that JSON escapes
            if not body and method == "GET":
                return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
            if type(body) is bytes:
                method = encode_basestring_ascii(method)
                text = f'{{"body": "{body.hex()}", "headers": {{}}, "method": {method}, "url": "{canonical}"}}'
                return sha1(text.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
    return scrapy_fingerprint(request)


def fingerprint_url(url: str) -> bytes:
    """Return the fingerprint of ``scrapy.Request(url)``, mostly without building that request.

    Raises what ``scrapy.Request(url)`` raises, ``ValueError`` for a URL without a scheme for example.
    """
    canonical = quick_canonical(url)
    if canonical is None:
        return scrapy_fingerprint(Request(url))
    return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses


class RequestFingerprinter:
    """For ``REQUEST_FINGERPRINTER_CLASS``: Scrapy's default fingerprint under the rules of a crawl, faster."""

    def __init__(self, rules: Rules = _NO_RULES) -> None:
        self._of_request, _ = fingerprints_under(rules)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return a fingerprinter for *crawler*."""
        return cls(rules_of(crawler.settings))

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of *request*, 20 bytes."""
        return self._of_request(request)


def fingerprints_under(rules: Rules) -> tuple[Callable[[Request], bytes], Callable[[str], bytes]]:
    """Return what makes the fingerprint of a request, and of the plain GET request of a URL, under *rules*."""
    if not rules.names:
        return fingerprint, fingerprint_url

    may_touch, match_untouched = rules.may_touch, rules.match_untouched

    def of_request(request: Request) -> bytes:
        if type(request) is Request:  # as in fingerprint()
            meta, url, body = request._meta, request._url, request._body
        else:
            meta, url, body = request.meta, request.url, request.body
        if meta and meta.get("verbatim_url"):  # whoever says so wants no URL taken for another
            return fingerprint(request)
        is_plain = FAST_PATH_ON and not body and request.method == "GET"
        if is_plain:
            match = match_untouched(url)
            if match is not None and "/." not in url:
                return sha1(f'{_BEFORE_URL}{match[1]}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
        canonical = quick_canonical(url)
        if canonical is None:
            canonical = canonicalize_url(url)
        elif not may_touch(canonical):
            if is_plain:
                return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
            return fingerprint(request)
        ruled = rules.apply_to_canonical(canonical)
        return fingerprint(request if ruled == canonical else Request(ruled, method=request.method, body=body))

    def of_url(url: str) -> bytes:
        if FAST_PATH_ON:
            match = match_untouched(url)
            if match is not None and "/." not in url:
                return sha1(f'{_BEFORE_URL}{match[1]}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
        canonical = quick_canonical(url)
        if canonical is None:
            return of_request(Request(url))
        if FAST_PATH_ON and not may_touch(canonical):
            return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
        return fingerprint_url(rules.apply_to_canonical(canonical))

    return of_request, of_url


def _self_check_requests() -> list[Request]:
    """Return fresh requests, since Scrapy remembers the fingerprint of an object, that visit every branch above."""
    url = "http://example.com/a%41?b=2&a=1#f"
    verbatim = {"verbatim_url": True}
    derived = type("DerivedRequest", (Request,), {})
    return [
        Request(url),
        Request("http://example.com/\u00fc?\u00fc[]|^ {}'\"\\"),
        Request(url, method="head"),
        Request(url, method='"\u00fc\U0001f600\x00\\/'),
        Request(url, method="POST", body=bytes(range(256))),
        Request(url, body=b"\xff"),
        Request(url, meta={"depth": 1}),
        Request(url, meta=verbatim),
        Request(url, meta={"verbatim_url": False}),
        derived(url, method="PUT", body="v"),
        derived(url, meta=verbatim),
    ]


def first_difference() -> str | None:
    """Describe the first self-check request or URL that Scrapy answers otherwise than this module, or return None."""
    for request in _self_check_requests():
        if fingerprint(request) != scrapy_fingerprint(request):
            return f"{request!r} with meta {request.meta!r} and body {request.body!r}"
    for url in SELF_CHECK_URLS:
        try:
            request = Request(url)
        except ValueError:
            continue
        if fingerprint_url(url) != scrapy_fingerprint(request):
            return f"{request!r} made of {url!r}"
    return None


def _agrees_with_scrapy() -> bool:
    try:
        difference = first_difference()
    except Exception as error:  # a Scrapy that makes us raise is as unknown to us as one that differs
        difference = f"requests, where comparing raised {error!r}"
    if difference is None:
        return True
    logger.warning(
        "The installed Scrapy %s makes fingerprints in a way that scrapy-bloom does not know, for example of %s. "
        "Fingerprints stay right, because from now on Scrapy makes every one of them, but they take about ten times "
        "as long. A newer scrapy-bloom may know this Scrapy; if there is none, please report this line.",
        scrapy.__version__,
        difference,
    )
    return False


FAST_PATH_ON = quick_canonical is not leave_all_to_w3lib and _agrees_with_scrapy()
"""False after a failed self-check: then Scrapy itself makes every fingerprint."""

if not FAST_PATH_ON:
    fingerprint = scrapy_fingerprint

    def fingerprint_url(url: str) -> bytes:
        """Return the fingerprint of ``scrapy.Request(url)``."""
        return scrapy_fingerprint(Request(url))
