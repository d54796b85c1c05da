"""Rules that go beyond w3lib's canonical form: which further spellings of a URL count as the same page.

A rule takes a canonical URL and returns the one that stands for it and its equals; the URL that is fetched does not
change. Nor may what a released rule does, because filters record its name in their key space: a better rule gets
another name. Knows URLs and one setting; does not know who asks.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.utils.misc import load_object

from scrapy_bloom.old.errors import SettingsError
from scrapy_bloom.old.url.canonical import bare_pattern, canonicalize_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy.settings import BaseSettings

SETTING = "BLOOM_URL_RULES"

_match_parts = re.compile(r"(https?)://([^/?#]*)([^?#]*)([^#]*)(.*)", re.DOTALL).fullmatch


class _Parts(NamedTuple):
    """A web URL in the pieces that rules look at."""

    scheme: str
    netloc: str
    path: str
    query: str
    """With its question mark; "" if there is none."""
    fragment: str

    def glued(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}{self.query}{self.fragment}"


def _parts(url: str) -> _Parts | None:
    match = _match_parts(url)
    return _Parts(*match.groups()) if match else None


# -- the rules --------------------------------------------------------------------------------------------------------

_DEFAULT_PORT = {"http": re.compile(r"(?::80)+\Z"), "https": re.compile(r"(?::443)+\Z")}


def default_port(url: str) -> str:
    """Drop ``:80`` from http and ``:443`` from https, which are the defaults (RFC 3986, 6.2.3)."""
    parts = _parts(url)
    if parts is None:
        return url
    return parts._replace(netloc=_DEFAULT_PORT[parts.scheme].sub("", parts.netloc)).glued()


def repeated_pairs(url: str) -> str:
    """Keep one of several equal ``key=value`` pairs of the query."""
    return _with_fields(url, lambda fields: list(dict.fromkeys(fields)))


_TRACKING = (
    "gclid",
    "gclsrc",
    "gbraid",
    "wbraid",
    "dclid",
    "gad_source",
    "gad_campaignid",
    "srsltid",
    "_ga",
    "_gl",
    "fbclid",
    "igshid",
    "igsh",
    "msclkid",
    "yclid",
    "ysclid",
    "_openstat",
    "ymclid",
    "twclid",
    "ttclid",
    "li_fat_id",
    "epik",
    "mc_cid",
    "mc_eid",
    "mkt_tok",
    "_hsenc",
    "_hsmi",
    "__hssc",
    "__hstc",
    "__hsfp",
    "hsCtaTracking",
    "vero_conv",
    "vero_id",
    "oly_anon_id",
    "oly_enc_id",
    "rb_clickid",
    "wickedid",
    "zanpid",
    "s_kwcid",
    "ef_id",
    "_branch_match_id",
)
"""Parameters by which advertising and newsletters recognise a click, besides those that begin with ``utm_``."""

_is_tracking = re.compile(rf"(?:utm_[^=]*|{'|'.join(_TRACKING)})(?:=.*)?", re.DOTALL).fullmatch


def tracking(url: str) -> str:
    """Drop the parameters by which advertising and newsletters recognise a click."""
    return _with_fields(url, lambda fields: [field for field in fields if not _is_tracking(field)])


_SESSION_NAMES = ("phpsessid", "jsessionid", "sessionid", "session_id", "sessid", "sid", "oscsid", "xtcsid", "zenid")
"""Parameters for session ids, in any case, besides ``aspsessionid`` with eight letters and the ``s`` of forums."""

_is_session = re.compile(
    rf"(?:(?:{'|'.join(_SESSION_NAMES)}|aspsessionid[a-z]{{8}})=[0-9a-z]{{24,}}|s=[0-9a-f]{{32}})", re.IGNORECASE
).fullmatch
_JSESSIONID = re.compile(r";jsessionid=[0-9A-Za-z]{24,}[^/?#;]*", re.IGNORECASE)
# ASP.NET without cookies: /(S(lit3py55t21z5v55vlm25s55))/orders.aspx, also with other tickets beside the session. A ";"
# may be left of a jsessionid; w3lib drops it where it ends the path.
_ASP_NET = re.compile(r"/\((?:[AX]\([0-9A-Za-z_\-]+\))?S\([0-9a-z]{24}\)(?:F\([0-9A-Za-z_\-]+\))?\);?(?=/|\Z)")


def session_ids(url: str) -> str:
    """Drop session ids, known by name *and* by a value of 24 letters and digits or more, from query and path."""
    url = _with_fields(url, lambda fields: [field for field in fields if not _is_session(field)])
    parts = _parts(url)
    if parts is None:
        return url
    path = _ASP_NET.sub("", _JSESSIONID.sub("", parts.path))
    return parts._replace(path=path if path or not parts.path else "/").glued()


def trailing_slash(url: str) -> str:
    """Treat ``/a/`` as ``/a``."""
    parts = _parts(url)
    if parts is None or not parts.path:
        return url
    # A ";" between two slashes is a segment without a name, which w3lib drops at the end: ``/a/;/`` is ``/a``, too.
    kept = parts.path.rstrip("/;")
    tail = parts.path[len(kept) :]
    kept += tail[: tail.rfind(";;") + 2] if ";;" in tail else ";" * tail.startswith(";")
    return parts._replace(path=kept or "/").glued()


_WWW = re.compile(r"(?:www\.)+(?=[^.:]+\.)")


def www(url: str) -> str:
    """Treat ``www.example.com`` as ``example.com``."""
    parts = _parts(url)
    if parts is None:
        return url
    user, at, host = parts.netloc.rpartition("@")
    match = _WWW.match(host)
    return parts._replace(netloc=f"{user}{at}{host[match.end() :]}").glued() if match else url


def scheme(url: str) -> str:
    """Treat http as https, each at its default port only: other ports are other servers."""
    parts = _parts(url)
    if parts is None:
        return url
    host = _DEFAULT_PORT[parts.scheme].sub("", parts.netloc)
    if re.search(r":[0-9]*\Z", host):
        return url
    return parts._replace(scheme="https", netloc=_DEFAULT_PORT["https"].sub("", host)).glued()


_INDEX = re.compile(r"/(?:index\.(?:s?html?|php[3-5]?|aspx?|jspx?|cgi|cfm)|default\.(?:html?|aspx?))\Z", re.IGNORECASE)


def index_page(url: str) -> str:
    """Treat ``/a/index.html`` and its kin as ``/a/``."""
    parts = _parts(url)
    return url if parts is None else parts._replace(path=_INDEX.sub("/", parts.path)).glued()


_LOWER = {byte: byte + 32 for byte in range(ord("A"), ord("Z") + 1)}
_ESCAPES = re.compile(r"%[0-9a-f]{2}")


def lowercase_path(url: str) -> str:
    """Treat ``/About`` as ``/about``. ASCII letters only; escapes stay in capitals."""
    parts = _parts(url)
    if parts is None:
        return url
    return parts._replace(path=_ESCAPES.sub(lambda match: match[0].upper(), parts.path.translate(_LOWER))).glued()


def _with_fields(url: str, keep: Callable[[list[str]], list[str]]) -> str:
    """Return *url* with those fields of its query that *keep* returns."""
    parts = _parts(url)
    if parts is None or not parts.query:
        return url
    fields = parts.query[1:].split("&")
    kept = keep(fields)
    if len(kept) == len(fields):
        return url
    return parts._replace(query=f"?{'&'.join(kept)}" if kept else "").glued()


RULES: dict[str, Callable[[str], str]] = {
    rule.__name__: rule
    for rule in (
        default_port,
        repeated_pairs,
        tracking,
        session_ids,
        trailing_slash,
        www,
        scheme,
        index_page,
        lowercase_path,
    )
}
"""The rules by name."""

PRESETS = {
    "safe": ("default_port", "repeated_pairs"),
    "common": ("default_port", "repeated_pairs", "tracking", "session_ids"),
}
"""Names for several rules."""

# -- which URLs no rule can touch -------------------------------------------------------------------------------------


def _starting_with(names: Iterable[str]) -> str:
    """Return a pattern for *names* that looks at the first letter once: with 40 names, three times as fast."""
    by_letter: dict[str, list[str]] = {}
    for name in names:
        by_letter.setdefault(name[0], []).append(name[1:])
    return "|".join(f"{letter}(?:{'|'.join(rests)})" for letter, rests in by_letter.items())


_NOISE = (
    rf"(?:{_starting_with(('utm_', *_TRACKING))}"
    rf"|(?i:{_starting_with(('s=', 'aspsessionid', *_SESSION_NAMES))}))"
)
_find_noise = re.compile(rf"[?&]{_NOISE}").search

# Nine in ten links: for these, one match says both what the canonical URL is and that no rule touches it.
_match_bare = re.compile(bare_pattern(_NOISE)).match


def _common_may_touch(url: str) -> bool:
    """Say whether a rule of the preset "common" may touch *url*, which is canonical. True may be wrong, False never is.

    Takes some 300 ns, where asking the rules themselves takes 5 microseconds.
    """
    mark = url.find("?")
    if mark >= 0:
        if _find_noise(url, mark):
            return True
        if "&" in url:
            fields = url[mark + 1 :].split("&")
            if len(set(fields)) < len(fields):
                return True
    if ";" in url and _JSESSIONID.search(url):
        return True
    if url.rfind(":") > len("https") and (":80" in url or ":443" in url):
        return True
    return "S(" in url


def _no_match(_url: str) -> None:
    """Match nothing: with other rules than the common ones, each URL has to be looked at."""


# -- a crawl's choice -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """Rules in the order in which they are applied."""

    names: tuple[str, ...] = ()
    """As the key space of a filter records them; for a user's own function, its import path."""
    functions: tuple[Callable[[str], str], ...] = ()
    """One for each name."""

    @cached_property
    def may_touch(self) -> Callable[[str], bool]:
        """The function that returns whether a rule may touch a canonical URL. True may be wrong, False never is."""
        if not self.names:
            return lambda _url: False
        return _common_may_touch if self._are_common else lambda _url: True

    @property
    def match_untouched(self) -> Callable[[str], re.Match[str] | None]:
        """What matches many of the URLs that no rule touches, as long as they hold no ``/.``.

        The first group is then the canonical URL.
        """
        return _match_bare if self._are_common else _no_match

    @property
    def _are_common(self) -> bool:
        return set(self.names) <= set(PRESETS["common"])

    def apply(self, url: str) -> str:
        """Return the URL that stands for *url* and all its equals. The answer is the same for equal canonical URLs.

        Raises what w3lib raises for a URL that it cannot canonicalize, and whatever a user's own function raises.
        """
        return self.apply_to_canonical(canonicalize_url(url))

    def apply_to_canonical(self, url: str) -> str:
        """Return what :meth:`apply` does for a URL that is canonical; *url* itself if no rule touches it."""
        if not self.may_touch(url):
            return url
        for function in self.functions:
            url = function(url)
            if type(url) is not str:
                raise TypeError(f"a URL rule of {', '.join(self.names)} has returned {url!r}, which is no URL")
        return url


def resolve(given: Iterable[Any]) -> Rules:
    """Return the rules *given*: names of rules and presets, import paths, or functions. Duplicates count once.

    Raises:
        SettingsError: Every name that is unknown, or leads to something that cannot be imported or does not work.

    """
    found: dict[str, Callable[[str], str]] = {}
    problems = []
    for one in given:
        try:
            for name in PRESETS.get(one, (one,)) if isinstance(one, str) else (one,):
                found |= _rule(name)
        except ValueError as error:
            problems.append(f"{SETTING} has {one!r}, {error}")
    if problems:
        raise SettingsError(problems)
    return Rules(tuple(found), tuple(found.values()))


def _rule(given: Any) -> dict[str, Callable[[str], str]]:
    """Return the rule *given* by its name; ValueError has the rest of a sentence that begins with the name."""
    if isinstance(given, str):
        if given in RULES:
            return {given: RULES[given]}
        if "." not in given:
            known = [*PRESETS, *RULES]
            close = difflib.get_close_matches(given, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}, and import paths"
            raise ValueError(f"which is no rule; {hint}")
        try:
            function = load_object(given)
        except Exception as error:  # importing runs the module
            raise ValueError(f"which cannot be imported ({error})") from error
        name = given
    else:
        function = given
        name = f"{getattr(given, '__module__', '')}.{getattr(given, '__qualname__', '')}"
    if not callable(function):
        raise ValueError("which is no function")  # noqa: TRY004 - what resolve() makes a problem of
    if "<" in name or name.startswith(".") or name.endswith("."):
        raise ValueError("which has no import path by which a later run could know it; name a function of a module")
    try:
        answer = function(_SAMPLE)
    except Exception as error:  # it is user code
        raise ValueError(f"which raises {error!r} for {_SAMPLE}") from error
    if type(answer) is not str:
        raise ValueError(f"which returns {answer!r} for {_SAMPLE}, not a URL")
    return {name: function}


_SAMPLE = "http://example.com/path?key=value"


def listed(value: Any) -> list[Any]:
    """Return what *value* of the setting lists. A string, as on a command line, is split at commas, or is JSON.

    Raises:
        TypeError: It is no list.

    """
    if value is None:
        return []
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise TypeError from error
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return list(value)


def parse_url_rules(value: Any) -> tuple[str, ...]:
    """Return the names of the rules that *value* of the setting stands for, presets replaced by their rules.

    Raises:
        SettingsError: As :func:`resolve`.
        TypeError: *value* is no list.

    """
    return resolve(listed(value)).names


def rules_of(settings: BaseSettings) -> Rules:
    """Return the rules of ``BLOOM_URL_RULES``: the one place that says which rules a crawl uses.

    Raises:
        SettingsError: As :func:`resolve`, and for a value that is no list.

    """
    value = settings.get(SETTING)
    try:
        return resolve(listed(value))
    except TypeError as error:
        raise SettingsError([f"{SETTING} must be {ALLOWED}, not {value!r}"]) from error


ALLOWED = "a list of rules, presets and import paths"
"""What the setting takes, in the words of a message."""
