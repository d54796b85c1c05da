"""Rules beyond w3lib's canonical form: which further spellings of a URL count as the same page.

A rule takes a canonical URL and returns the one that stands for it and its equals; the URL that is fetched does not
change. A released rule never changes either, because a filter records its name: a better rule gets another name.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.utils.misc import load_object

from scrapy_bloom.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SETTING = "BLOOM_URL_RULES"
ALLOWED = "a list of rules, presets and import paths"
"""What the setting takes, in the words of a message."""


class _Parts(NamedTuple):
    """A web URL in the pieces that rules look at."""

    scheme: str
    netloc: str
    path: str
    query: str
    """With its question mark; "" if there is none."""


_match_parts = re.compile(r"(https?)://([^/?#]*)([^?#]*)([^#]*)", re.DOTALL).fullmatch

RULES: dict[str, Callable[[str], str]] = {}
"""The rules by name."""


def _rule(edit: Callable[[_Parts], _Parts]) -> Callable[[_Parts], _Parts]:
    """Make *edit* a rule, which leaves URLs alone that are not of the web."""

    def rule(url: str) -> str:
        match = _match_parts(url)
        if match is None:
            return url
        parts = edit(_Parts(*match.groups()))
        return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}{parts.query}"

    RULES[edit.__name__] = rule
    return edit


def _keep_fields(parts: _Parts, keep: Callable[[list[str]], Iterable[str]]) -> _Parts:
    """Return *parts* with those fields of its query that *keep* returns."""
    if not parts.query:
        return parts
    query = "&".join(keep(parts.query[1:].split("&")))
    return parts._replace(query=f"?{query}" if query else "")


_DEFAULT_PORT = {"http": re.compile(r"(?::80)+\Z"), "https": re.compile(r"(?::443)+\Z")}


@_rule
def default_port(parts: _Parts) -> _Parts:
    """Drop ``:80`` from http and ``:443`` from https, which are the defaults (RFC 3986, 6.2.3)."""
    return parts._replace(netloc=_DEFAULT_PORT[parts.scheme].sub("", parts.netloc))


@_rule
def repeated_pairs(parts: _Parts) -> _Parts:
    """Keep one of several equal ``key=value`` pairs of the query."""
    return _keep_fields(parts, dict.fromkeys)


_TRACKING = """
gclid gclsrc gbraid wbraid dclid gad_source gad_campaignid srsltid _ga _gl fbclid igshid igsh msclkid yclid ysclid
_openstat ymclid twclid ttclid li_fat_id epik mc_cid mc_eid mkt_tok _hsenc _hsmi __hssc __hstc __hsfp hsCtaTracking
vero_conv vero_id oly_anon_id oly_enc_id rb_clickid wickedid zanpid s_kwcid ef_id _branch_match_id
"""
TRACKING = tuple(_TRACKING.split())
"""Parameters by which advertising and newsletters recognise a click, besides those that begin with ``utm_``."""

_is_tracking = re.compile(rf"(?:utm_[^=]*|{'|'.join(TRACKING)})(?:=.*)?", re.DOTALL).fullmatch


@_rule
def tracking(parts: _Parts) -> _Parts:
    """Drop the parameters by which advertising and newsletters recognise a click."""
    return _keep_fields(parts, lambda fields: [field for field in fields if not _is_tracking(field)])


SESSION_NAMES = ("phpsessid", "jsessionid", "sessionid", "session_id", "sessid", "sid", "oscsid", "xtcsid", "zenid")
"""Parameters for session ids, in any case, besides ``aspsessionid`` with eight letters and the ``s`` of forums."""

_is_session = re.compile(
    rf"(?:(?:{'|'.join(SESSION_NAMES)}|aspsessionid[a-z]{{8}})=[0-9a-z]{{24,}}|s=[0-9a-f]{{32}})", re.IGNORECASE
).fullmatch
_JSESSIONID = re.compile(r";jsessionid=[0-9A-Za-z]{24,}[^/?#;]*", re.IGNORECASE)
# ASP.NET without cookies: /(S(lit3py55t21z5v55vlm25s55))/orders.aspx, also with other tickets beside the session.
_ASP_NET = re.compile(r"/\((?:[AX]\([0-9A-Za-z_\-]+\))?S\([0-9a-z]{24}\)(?:F\([0-9A-Za-z_\-]+\))?\)(?=/|\Z)")


@_rule
def session_ids(parts: _Parts) -> _Parts:
    """Drop session ids, known by name *and* by a value of 24 letters and digits or more, from query and path."""
    parts = _keep_fields(parts, lambda fields: [field for field in fields if not _is_session(field)])
    return parts._replace(path=_ASP_NET.sub("", _JSESSIONID.sub("", parts.path)))


@_rule
def trailing_slash(parts: _Parts) -> _Parts:
    """Treat ``/a/`` as ``/a``."""
    return parts._replace(path=parts.path.rstrip("/"))


_WWW = re.compile(r"(?<![^@])(?:www\.)+(?=[^.:@]+\.)")


@_rule
def www(parts: _Parts) -> _Parts:
    """Treat ``www.example.com`` as ``example.com``."""
    return parts._replace(netloc=_WWW.sub("", parts.netloc))


@_rule
def scheme(parts: _Parts) -> _Parts:
    """Treat http as https, each at its default port only: other ports are other servers."""
    netloc = default_port(parts).netloc
    return parts if re.search(r":[0-9]*\Z", netloc) else parts._replace(scheme="https", netloc=netloc)


_INDEX = re.compile(r"/(?:index\.(?:s?html?|php[3-5]?|aspx?|jspx?|cgi|cfm)|default\.(?:html?|aspx?))\Z", re.IGNORECASE)


@_rule
def index_page(parts: _Parts) -> _Parts:
    """Treat ``/a/index.html`` and its kin as ``/a/``."""
    return parts._replace(path=_INDEX.sub("/", parts.path))


_LOWER = {byte: byte + 32 for byte in range(ord("A"), ord("Z") + 1)}
_ESCAPES = re.compile(r"%[0-9a-f]{2}")


@_rule
def lowercase_path(parts: _Parts) -> _Parts:
    """Treat ``/About`` as ``/about``. ASCII letters only; escapes stay in capitals."""
    return parts._replace(path=_ESCAPES.sub(lambda match: match[0].upper(), parts.path.translate(_LOWER)))


PRESETS = {
    "safe": ("default_port", "repeated_pairs"),
    "common": ("default_port", "repeated_pairs", "tracking", "session_ids"),
}
"""Names for several rules."""

_find_noise = re.compile(rf"[?&](?:utm_|{'|'.join(TRACKING)}|(?i:s=|aspsessionid|{'|'.join(SESSION_NAMES)}))").search


def _common_may_touch(url: str) -> bool:
    """Say whether a rule of "common" may touch the canonical *url*, in 300 ns. True may be wrong, False never is."""
    if "?" in url:
        fields = url.partition("?")[2].split("&")
        if len(set(fields)) < len(fields) or _find_noise(url):
            return True
    return ";" in url or ":80/" in url or ":443/" in url or "S(" in url


@dataclass(frozen=True)
class Rules:
    """A crawl's rules, in the order in which they are applied."""

    names: tuple[str, ...] = ()
    """As the key space of a filter records them; for a user's own function, its import path."""
    functions: tuple[Callable[[str], str], ...] = ()
    """One for each name."""

    @property
    def may_touch(self) -> Callable[[str], bool] | None:
        """Say whether a rule may touch a canonical URL. True may be wrong, False never is. None: never."""
        if not self.names:
            return None
        return _common_may_touch if set(self.names) <= set(PRESETS["common"]) else lambda _url: True

    def apply(self, canonical: str) -> str:
        """Return the URL that stands for the *canonical* one and its equals: itself if no rule touches it.

        Raises whatever a user's own function raises.
        """
        may_touch = self.may_touch
        if may_touch is not None and may_touch(canonical):
            for function in self.functions:
                canonical = function(canonical)
        return canonical


def resolve(value: object) -> Rules:
    """Return the rules that *value* of ``BLOOM_URL_RULES`` stands for. Duplicates count once.

    Args:
        value: A list of names of rules and presets, import paths, and functions; None; or a string of names with
            commas between them, as on a command line.

    Raises:
        SettingsError: Every name that is unknown, or leads to something that cannot be imported or does not work.

    """
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, (list, tuple, NoneType)):
        raise SettingsError([f"{SETTING} must be {ALLOWED}, not {value!r}"])
    found: dict[str, Callable[[str], str]] = {}
    problems = []
    for one in value or ():
        try:
            if isinstance(one, str) and (one in PRESETS or one in RULES):
                found |= {name: RULES[name] for name in PRESETS.get(one, (one,))}
            else:
                found |= _users_own(one)
        except ValueError as error:
            problems.append(f"{SETTING} has {one!r}, {error}")
    if problems:
        raise SettingsError(problems)
    return Rules(tuple(found), tuple(found.values()))


def _users_own(given: Any) -> dict[str, Callable[[str], str]]:
    """Return the function *given* by its import path; ValueError has the rest of a sentence that begins with it."""
    if isinstance(given, str) and "." not in given:
        known = [*PRESETS, *RULES]
        close = difflib.get_close_matches(given, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}, and import paths"
        raise ValueError(f"which is no rule; {hint}")
    sample = "http://example.com/path?key=value"
    try:
        function = load_object(given)
        answer = function(sample)
    except Exception as error:  # it is user code
        raise ValueError(f"which cannot be used: {error!r}") from error
    if type(answer) is not str:
        raise ValueError(f"which returns {answer!r} for {sample}, not a URL")
    if isinstance(given, str):
        return {given: function}
    name = f"{getattr(given, '__module__', '')}.{getattr(given, '__qualname__', '')}"
    if "<" in name or name.startswith(".") or name.endswith("."):
        raise ValueError("which has no import path by which a later run could know it; name a function of a module")
    return {name: function}
