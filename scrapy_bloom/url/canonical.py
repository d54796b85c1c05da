r"""w3lib's canonical form of a URL, most of the time without asking w3lib.

Equality with the *installed* ``w3lib.url.canonicalize_url`` is the whole contract: keys made here must be the keys that
Scrapy makes. So this module recognises a set of URLs narrow enough to be argued about, answers for those, and hands
everything else, errors included, to w3lib. It does not know requests, nor rules that go beyond w3lib.

Why the recognised set is what it is (checked against w3lib 1.22 to 2.5):

- scheme, host and port as w3lib leaves them: ``http`` or ``https``, lower case, ASCII, no userinfo, no brackets, a port
  without leading zeros. Ports above 65,535 are errors in places, so those from 65,000 on are left to w3lib;
- path characters that survive its quote, unquote and quote. ``\`` (a slash since 2.5), ``[ ] |`` (quoted, then
  unquoted) and a bare ``%`` are left to it, and so are ``.`` and ``..`` segments (resolved since 2.5);
- escapes in the path, except for those that its releases disagree on: ``%23`` (unquoted by 1.22), ``%25`` and ``%3B``
  (kept since 2.5), ``%2E`` (may make a dot segment);
- ``;`` in the path: what follows it in the last segment is the params, which w3lib keeps as they stand. A path that
  ends in ``;`` is left to it, because it drops empty params;
- a query of printable ASCII, whose pairs are decoded, sorted as (key, value) pairs of bytes, and encoded again;
- any fragment that UTF-8 can encode, because it is dropped.

Building a ``scrapy.Request`` rewrites its URL with ``w3lib.url.safe_url_string``. In a recognised URL that touches the
query and the fragment only, and all it does is escape characters that the canonical query escapes anyway. Therefore
``quick_canonical(url)`` is the canonical form of ``Request(url).url`` as well.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from w3lib.url import canonicalize_url as w3lib_canonicalize_url

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# Possessive repeats save 120 ns a call but need Python 3.11. Without them the same strings match, and in linear time
# all the same: what follows a repeat never starts with one of the characters that it repeats.
_P = "+" if sys.version_info >= (3, 11) else ""

_PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3})"
_ORIGIN = rf"https?://[a-z0-9][a-z0-9._\-]*{_P}(?::{_PORT})?"
_PATH_RUN = rf"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*{_P}"
_KEPT_ESCAPE = r"%(?:[0189A-F][0-9A-F]|2[02F]|3[CEF]|5[CE]|60|7[BDF])"
_ESCAPE = r"%(?!23|25|2[Ee]|3[Bb])[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9_.~\-"
_PAIR = rf"[{_UNRESERVED}+]*{_P}=[{_UNRESERVED}+]*{_P}"
_END = rf"(?:#[^\ud800-\udfff]*{_P})?\Z"

# Its own canonical form as soon as the fragment is gone, unless it has dot segments: 9 real links in 10 and more.
_match_settled = re.compile(rf"({_ORIGIN}/{_PATH_RUN}(?:{_KEPT_ESCAPE}{_PATH_RUN})*(?<!;)(?:\?{_PAIR})?){_END}").match
# Canonical after an edit of the path, of the query, or of both.
_match_editable = re.compile(
    rf"({_ORIGIN})(/{_PATH_RUN}(?:{_ESCAPE}{_PATH_RUN})*(?<!;))?(?:\?([!\"$-~]*{_P}))?{_END}"
).match
_match_plain_pairs = re.compile(rf"{_PAIR}(?:&{_PAIR})*\Z").match
_find_dot_segment = re.compile(r"/\.\.?(?:[/;]|\Z)").search
_replace_escapes = re.compile(_ESCAPE).sub

_BYTES_BARE_IN_PATH = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~" + b"!$&'()*+,;=:@[]|"
)
_PATH_BYTE = [chr(byte) if byte in _BYTES_BARE_IN_PATH else f"%{byte:02X}" for byte in range(256)]
_QUERY_BYTE = {byte: f"%{byte:02X}" for byte in range(256) if not re.match(rf"[{_UNRESERVED}]", chr(byte))}
_QUERY_BYTE[0x20] = "+"


def canonicalize_url(url: str) -> str:
    """Return what ``w3lib.url.canonicalize_url(url)`` of the installed w3lib returns, in about a tenth of the time.

    Raises whatever w3lib raises. Like w3lib it also takes ``bytes`` and ``ParseResult``, at w3lib's speed.
    """
    canonical = quick_canonical(url)
    return w3lib_canonicalize_url(url) if canonical is None else canonical


def _recognise(url: str) -> str | None:
    if type(url) is not str:
        return None
    match = _match_settled(url)
    if match is not None and "/." not in url:
        return match[1]
    match = _match_editable(url)
    if match is None:
        return None
    origin, path, query = match.groups()
    if path is None:
        path = "/"
    elif "/." in path and _find_dot_segment(path):
        return None
    elif "%" in path:
        decoded = _replace_escapes(_canonical_escape, path)
        if decoded != path and ";" in path:  # w3lib unquotes the path but not its params
            return None
        path = decoded
    if not query:
        return f"{origin}{path}"
    if _semicolon_separates:
        query = query.replace(";", "&")
    if _match_plain_pairs(query):
        # With "=" below every other character, whole pairs sort as (key, value) does. The "+" of a space may stay:
        # both sort below all characters of the pattern.
        pairs = query.replace("=", "\0").split("&")
        pairs.sort()
        return f"{origin}{path}?{'&'.join(pairs)}".replace("\0", "=")
    query = _canonical_query(query)
    if not query:
        return f"{origin}{path}"
    return f"{origin}{path}?{query}"


def _canonical_escape(match: re.Match[str]) -> str:
    return _PATH_BYTE[int(match[0][1:], 16)]


def _canonical_query(query: str) -> str:
    pairs = [field.partition("=")[::2] for field in query.replace("+", " ").split("&") if field]
    if "%" in query:
        pairs = [(_unquote(key), _unquote(value)) for key, value in pairs]
    pairs.sort()
    return "&".join([f"{key.translate(_QUERY_BYTE)}={value.translate(_QUERY_BYTE)}" for key, value in pairs])


def _unquote(text: str) -> str:
    # Latin-1 stands for bytes one to one, so these strings sort as the bytes do.
    return unquote_to_bytes(text).decode("latin-1")


def leave_all_to_w3lib(_url: str) -> None:
    """Recognise no URL: what stands in for `quick_canonical` when a self-check fails."""


# Compared with the installed w3lib at import. Every branch above and every table has its string here (a test checks
# the branches), and a URL that must *not* be recognised stands beside each limit of the patterns.
SELF_CHECK_URLS = (
    "http://example.com/",
    "https://a-b_c.example.co.uk:8080/",
    "http://127.0.0.1:64999/",
    "http://a..b./",
    f"http://{'l' * 64}.example/",
    "http://example.com",
    "http://example.com?",
    "http://example.com?q=1",
    "http://example.com#f",
    "http://example.com/#f/../\t \u00fc\U0001f600#?;%zz ",
    "http://example.com/?#f",
    "http://example.com//a//b/",
    "http://example.com/aZ09-._~!$&'()*+,;=:@/x",
    "http://example.com/a;b;c/d",
    "http://example.com/a;b/c;d",
    "http://example.com/;;",
    "http://example.com/;",
    "http://example.com/.a/..b/c./...",
    "http://example.com/a/../b/./c",
    "http://example.com/..;a",
    "http://example.com/%20%C3%BC%2F%3F%22",
    "http://example.com/a;b%20c?q=1&p=2",
    "http://example.com/%41;%41",
    "http://example.com/" + "".join(f"%{byte:02X}" for byte in range(256) if byte not in {0x23, 0x25, 0x2E, 0x3B}),
    "http://example.com/" + "".join(f"%{byte:02x}" for byte in range(256) if byte not in {0x23, 0x25, 0x2E, 0x3B}),
    "http://example.com/%zz%2541%2e%3b",
    "http://example.com/?a",
    "http://example.com/?=",
    "http://example.com/?&",
    "http://example.com/?a=1+2",
    "http://example.com/?b=2&a=1&a=&=",
    "http://example.com/?a-b=1&a=2&a.=3&a+=4&A=5&a~=6&a_=7&a0=8",
    "http://example.com/?b&a&&c=d=e&a%20=%2B&a+=+",
    "http://example.com/?b;a=;;1&;a;0",
    "http://example.com/?%zz%&%2=%",
    "http://example.com/?" + "".join(map(chr, range(0x7E, 0x23, -1))) + '!"',
    "http://example.com/?x=" + "&".join(f"%{byte:02X}=%{255 - byte:02x}" for byte in range(255, -1, -1)),
    # Not ours; that w3lib is asked must not hang on what it says.
    "HTTP://Example.COM/\\a/[b]|c d\u00fc?\u00fc",
    " http://user:pw@[::1]:80/\n",
    "/relative",
)


def first_difference(candidate: Callable[[str], str | None]) -> str | None:
    """Describe the first self-check URL that *candidate* answers otherwise than w3lib, or return None.

    *candidate* may return None for "not recognised".
    """
    for url in SELF_CHECK_URLS:
        canonical = candidate(url)
        expected = w3lib_canonicalize_url(url)
        if canonical is not None and canonical != expected:
            return f"for {url!r} it says {expected!r}, not {canonical!r}"
    return None


def _checked() -> Callable[[str], str | None]:
    global _semicolon_separates  # found out once, here, where an error of w3lib's is expected
    try:
        _semicolon_separates = w3lib_canonicalize_url("http://a/?b;a") == "http://a/?a=&b="
        difference = first_difference(_recognise)
    except Exception as error:  # a w3lib that raises here is as unknown to us as one that differs
        difference = f"it raised {error!r}"
    if difference is None:
        return _recognise
    logger.warning(
        "The installed w3lib %s canonicalizes URLs in a way that scrapy-bloom does not know: %s. Canonical URLs and "
        "fingerprints stay right, because from now on w3lib and Scrapy make every one of them, but they take about "
        "ten times as long. A newer scrapy-bloom may know this w3lib; if there is none, please report this line.",
        version("w3lib"),
        difference,
    )
    return leave_all_to_w3lib


# Whether ";" separates the pairs of a query, as it did for w3lib until 2.5.
_semicolon_separates = False

quick_canonical: Callable[[str], str | None] = _checked()
"""The canonical form of a URL if it is cheap to know, else None: the caller then asks w3lib."""
