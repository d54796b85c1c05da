"""Makes the fingerprints of requests: Scrapy's own, bit for bit, faster, and under the URL rules of a crawl.

Scrapy's fingerprint is the SHA-1 of a JSON object with sorted keys: body in hex, headers (none by default), method and
canonical URL. This module writes that text itself for ordinary requests and leaves unusual ones to
``scrapy.utils.request.fingerprint``.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.metadata import version
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter as ScrapyRequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.url import canonical as canonical_form
from scrapy_bloom.url.canonical import SELF_CHECK_URLS, canonicalize_url, edited_canonical, match_settled
from scrapy_bloom.url.fingerprint import Fingerprints
from scrapy_bloom.url.rules import SETTING, Rules, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from typing_extensions import Self

_NO_RULES = Rules()

# The JSON text in front of the URL of a GET request without body.
_BEFORE_URL = '{"body": "", "headers": {}, "method": "GET", "url": "'


def _fast(
    rules: Rules, otherwise: Callable[[Request], bytes]
) -> tuple[Callable[[Request], bytes], Callable[[str], bytes]]:
    """Return the two functions of :func:`fingerprints_under` which leave unusual requests to *otherwise*.

    They call few other functions: a call takes a tenth of the time of most fingerprints. Nothing is
    cached: computing a fingerprint takes about as long as Scrapy takes to look one up.
    """
    may_touch = rules.may_touch

    def of_request(request: Request) -> bytes:
        """Return what ``scrapy.utils.request.fingerprint(request)`` of the installed Scrapy returns: 20 bytes.

        Raises whatever Scrapy raises.
        """
        if type(request) is Request:  # private attributes save 150 ns; a subclass may have properties of its own
            meta, url, body = request._meta, request._url, request._body
        else:
            meta, url, body = request.meta, request.url, request.body
        if meta and meta.get("verbatim_url"):  # only Scrapy 2.17 and newer know it, so Scrapy answers
            return otherwise(request)
        match = match_settled(url)
        canonical = match[1] if match is not None and "/." not in url else edited_canonical(url)
        if canonical is None or (may_touch is not None and may_touch(canonical)):
            return otherwise(request)
        method = request.method  # a canonical URL holds nothing that JSON escapes
        if not body and method == "GET":
            return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses
        if type(body) is not bytes or type(method) is not str:
            return otherwise(request)
        method = encode_basestring_ascii(method)
        text = f'{{"body": "{body.hex()}", "headers": {{}}, "method": {method}, "url": "{canonical}"}}'
        return sha1(text.encode()).digest()  # noqa: S324 - the hash that Scrapy uses

    def of_url(url: str) -> bytes:
        """Return the fingerprint of ``scrapy.Request(url)``, mostly without building that request.

        Raises what ``scrapy.Request(url)`` raises, ``ValueError`` for a URL without a scheme for example.
        """
        match = match_settled(url)
        canonical = match[1] if match is not None and "/." not in url else edited_canonical(url)
        if canonical is None:
            return otherwise(Request(url))
        if may_touch is not None and may_touch(canonical):
            return fingerprint_url(rules.apply(canonical))
        return sha1(f'{_BEFORE_URL}{canonical}"}}'.encode()).digest()  # noqa: S324 - the hash that Scrapy uses

    return of_request, of_url


def _first_difference() -> str | None:
    """Describe the first of some requests and URLs, one for each branch above, that Scrapy answers otherwise."""
    of_request, of_url = _fast(_NO_RULES, scrapy_fingerprint)
    url = "http://example.com/a%41?b=2&a=1#f"
    derived = type("DerivedRequest", (Request,), {})
    requests = [
        Request(url),
        Request("http://example.com/\u00fc?\u00fc[]|^ {}'\"\\"),
        Request(url, method="head"),
        Request(url, method='"\u00fc\U0001f600\x00\\/'),
        Request(url, method="POST", body=bytes(range(256))),
        Request(url, body=b"\xff"),
        Request(url, meta={"depth": 1}),
        Request(url, meta={"verbatim_url": True}),
        Request(url, meta={"verbatim_url": False}),
        derived(url, method="PUT", body="v"),
        derived(url, meta={"verbatim_url": True}),
    ]
    for request in requests:
        if of_request(request) != scrapy_fingerprint(request):
            return f"{request!r} with meta {request.meta!r} and body {request.body!r}"
    for url in SELF_CHECK_URLS:
        if of_url(url) != scrapy_fingerprint(Request(url)):
            return f"the request made of {url!r}"
    return None


IS_FAST = canonical_form.IS_FAST and canonical_form.agrees("scrapy", _first_difference)
"""Whether the self-checks have passed. If not, Scrapy makes every fingerprint."""


def fingerprints_under(rules: Rules) -> tuple[Callable[[Request], bytes], Callable[[str], bytes]]:
    """Return functions that make the fingerprint of a request, and of a URL's plain GET request, under *rules*."""

    def of_other_url(request: Request) -> bytes:
        if not request.meta.get("verbatim_url"):  # such a request keeps its URL as it is
            canonical = canonicalize_url(request.url)
            ruled = rules.apply(canonical)
            if ruled != canonical:
                request = Request(ruled, method=request.method, body=request.body)
        return fingerprint(request)

    otherwise = of_other_url if rules.names else scrapy_fingerprint
    return _fast(rules, otherwise) if IS_FAST else (otherwise, lambda url: otherwise(Request(url)))


fingerprint, fingerprint_url = fingerprints_under(_NO_RULES)


class RequestFingerprinter:
    """For ``REQUEST_FINGERPRINTER_CLASS``: Scrapy's default fingerprint under the rules of a crawl, faster."""

    def __init__(self, rules: Rules = _NO_RULES) -> None:
        self._of_request, _ = fingerprints_under(rules)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return a fingerprinter for *crawler*."""
        return cls(resolve(crawler.settings[SETTING]))

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of *request*, 20 bytes."""
        return self._of_request(request)


def fingerprints_of(crawler: Crawler) -> Fingerprints:
    """Return how *crawler* makes fingerprints. A ``REQUEST_FINGERPRINTER_CLASS`` of the user's is kept."""
    fingerprinter = crawler.request_fingerprinter
    if fingerprinter is None:
        raise TypeError(
            "the crawler does not have its request fingerprinter yet: it gets one when it applies its settings"
        )
    cls = type(fingerprinter)
    is_default = cls in (ScrapyRequestFingerprinter, RequestFingerprinter)
    # A subclass of ours applies the rules, too; any other fingerprinter ignores them.
    rules = _NO_RULES
    if is_default or isinstance(fingerprinter, RequestFingerprinter):
        rules = resolve(crawler.settings[SETTING])
    space = {
        "fingerprinter": "scrapy" if is_default else f"{cls.__module__}.{cls.__qualname__}",
        "rules": ",".join(rules.names),
        "w3lib": version("w3lib"),
    }
    if not is_default:
        return Fingerprints(fingerprinter.fingerprint, None, space)
    return Fingerprints(*fingerprints_under(rules), space, ignore_fragments=True)
