r"""The canonical form of a URL, as the *installed* w3lib makes it, mostly without asking w3lib.

This module recognises a set of URLs narrow enough to reason about, answers for those, and hands the rest to w3lib,
errors included. The set (checked against w3lib 1.22 to 2.5):

- scheme, host and port as w3lib leaves them: ``http`` or ``https``, lower case, ASCII, no userinfo, no brackets, a port
  without leading zeros. w3lib gets ports from 65,000 on, since some releases fail above 65,535;
- path characters that w3lib's quote, unquote and quote leave alone. w3lib gets ``\`` (a slash since 2.5), ``[ ] |``
  (quoted, then unquoted), a bare ``%``, and ``.`` and ``..`` segments (resolved since 2.5);
- escapes in the path, except where its releases disagree: ``%23`` (unquoted by 1.22), ``%25`` and ``%3B``
  (kept since 2.5), ``%2E`` (may make a dot segment);
- ``;`` in the path: in the last segment it begins the params, which w3lib keeps unchanged. w3lib gets paths that end
  in ``;``, because it drops empty params;
- a query of printable ASCII, whose pairs are decoded, sorted as (key, value) pairs of bytes, and encoded again;
- any fragment that UTF-8 can encode, because it is dropped.

Building a ``scrapy.Request`` rewrites its URL with ``w3lib.url.safe_url_string``. In a recognised URL that changes
only query and fragment, and only escapes characters that the canonical query escapes anyway. So
``quick_canonical(url)`` is the canonical form of ``Request(url).url``, too.
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

# Possessive repeats save 120 ns a call but need Python 3.11. Without them the same strings match, still in linear time:
# nothing that follows a repeat starts with a character that it repeats.
_P = "+" if sys.version_info >= (3, 11) else ""

_HOST = rf"https?://[a-z0-9][a-z0-9._\-]*{_P}"
_PORT = r"(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}))?"
_PATH_RUN = rf"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*{_P}"
_KEPT_ESCAPE = r"%(?:[0189A-F][0-9A-F]|2[02F]|3[CEF]|5[CE]|60|7[BDF])"
_ESCAPE = r"%(?!23|25|2[Ee]|3[Bb])[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9_.~\-"
_PAIR = rf"[{_UNRESERVED}+]*{_P}=[{_UNRESERVED}+]*{_P}"
_END = rf"(?:#[^\ud800-\udfff]*{_P})?\Z"


# Canonical once the fragment is cut off, unless it has dot segments: over 90 % of real links.
match_settled = re.compile(
    rf"({_HOST}{_PORT}/{_PATH_RUN}(?:{_KEPT_ESCAPE}{_PATH_RUN})*(?<!;)(?:\?{_PAIR})?){_END}"
).match
"""Match a URL whose canonical form, if it holds no ``/.``, is the first group."""

# Canonical after editing path, query or both.
_match_editable = re.compile(
    rf"({_HOST}{_PORT})(/{_PATH_RUN}(?:{_ESCAPE}{_PATH_RUN})*(?<!;))?(?:\?([!\"$-~]*{_P}))?{_END}"
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

# Before w3lib 2.5 ";" separates the pairs of a query, too.
_semicolon_separates = w3lib_canonicalize_url("http://a/?b;a") == "http://a/?a=&b="


def canonicalize_url(url: str) -> str:
    """Return what ``w3lib.url.canonicalize_url(url)`` of the installed w3lib returns, in about a tenth of the time.

    Raises whatever w3lib raises. Like w3lib it also takes ``bytes`` and ``ParseResult``, at w3lib's speed.
    """
    canonical = quick_canonical(url) if isinstance(url, str) else None
    return w3lib_canonicalize_url(url) if canonical is None else canonical


def _quick_canonical(url: str) -> str | None:
    match = match_settled(url)
    if match is not None and "/." not in url:
        return match[1]
    return edited_canonical(url)


def edited_canonical(url: str) -> str | None:
    """Return the canonical form of a recognised *url* that :func:`match_settled` does not match; else None."""
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
    return f"{origin}{path}?{query}" if query else f"{origin}{path}"


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


_SELF_CHECK_TAILS = r"""
/ ? ?q=1 #f /?#f //a//b/ /aZ09-._~!$&'()*+,;=:@/x
/a;b;c/d /a;b/c;d /;; /; /.a/..b/c./... /a/../b/./c /..;a
/%20%C3%BC%2F%3F%22 /a;b%20c?q=1&p=2 /%41;%41 /%zz%2541%2e%3b
/?a /?= /?& /?a=1+2 /?b=2&a=1&a=&= /?a-b=1&a=2&a.=3&a+=4&A=5&a~=6&a_=7&a0=8
/?b&a&&c=d=e&a%20=%2B&a+=+ /?b;a=;;1&;a;0 /?%zz%&%2=%
"""
_ESCAPED = [byte for byte in range(256) if byte not in {0x23, 0x25, 0x2E, 0x3B}]

# Compared with the installed w3lib at import. Every branch and table above has a URL here (a test checks the branches),
# and every limit of the patterns has one just beyond it, which must *not* be recognised.
SELF_CHECK_URLS = (
    *(f"http://example.com{tail}" for tail in ("", *_SELF_CHECK_TAILS.split())),
    "https://a-b_c.example.co.uk:8080/",
    "http://127.0.0.1:64999/",
    "http://a..b./",
    f"http://{'l' * 64}.example/",
    "http://example.com/#f/../\t \u00fc\U0001f600#?;%zz ",
    f"http://example.com/{''.join(f'%{byte:02X}' for byte in _ESCAPED)}",
    f"http://example.com/{''.join(f'%{byte:02x}' for byte in _ESCAPED)}",
    f'http://example.com/?{"".join(map(chr, range(0x7E, 0x23, -1)))}!"',
    f"http://example.com/?x={'&'.join(f'%{byte:02X}=%{255 - byte:02x}' for byte in range(255, -1, -1))}",
    # Not recognised, whatever w3lib makes of them.
    "HTTP://Example.COM/\\a/[b]|c d\u00fc?\u00fc",
    " http://user:pw@[::1]:80/\n",
)


def agrees(package: str, first_difference: Callable[[], str | None]) -> bool:
    """Return whether the installed *package* gives the results of our faster code. If not, log one WARNING.

    *first_difference* describes the first example on which they differ, or returns None. It may raise, if this
    release is too different to be asked.
    """
    try:
        difference = first_difference()
    except Exception as error:
        difference = f"comparing raised {error!r}"
    if difference is None:
        return True
    logger.warning(
        "The installed %s %s works in a way that scrapy-bloom does not know: %s. Canonical URLs and fingerprints stay "
        "right, because %s now makes all of them, but they take about ten times as long. A newer scrapy-bloom may know "
        "this release; if there is none, please report this line.",
        package,
        version(package),
        difference,
        package,
    )
    return False


def _first_difference() -> str | None:
    for url in SELF_CHECK_URLS:
        canonical, expected = _quick_canonical(url), w3lib_canonicalize_url(url)
        if canonical is not None and canonical != expected:
            return f"for {url!r} it returns {expected!r}, not {canonical!r}"
    return None


IS_FAST = agrees("w3lib", _first_difference)
"""Whether the self-check has passed. If not, w3lib makes every canonical URL."""

quick_canonical: Callable[[str], str | None] = _quick_canonical if IS_FAST else lambda _url: None
"""Return the canonical form of a recognised URL, or None, and then the caller asks w3lib."""
