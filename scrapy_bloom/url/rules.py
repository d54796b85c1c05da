"""Rules that go beyond w3lib's canonical form, and count further spellings of a URL as the same page.

A rule takes a canonical URL and returns the one that stands for it and its equals; the URL that is fetched does not
change. A released rule never changes either, because a filter records its name: a better rule gets another name.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pkgutil import resolve_name
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.errors import SettingsError
from scrapy_bloom.url import noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SETTING = "BLOOM_URL_RULES"
ALLOWED = "a list of rules, presets and import paths"
"""The values that the setting takes, for messages."""


class _Parts(NamedTuple):
    """A web URL in the pieces that rules look at."""

    scheme: str
    netloc: str
    path: str
    query: str
    """With its question mark; "" if there is none."""


_match_parts = re.compile(r"(https?)://([^/?#]*)([^?#]*)((?:\?[^#]*)?)", re.DOTALL).fullmatch

RULES: dict[str, Callable[[str], str]] = {}
"""The rules by name."""


def _on_parts(edit: Callable[[_Parts], _Parts]) -> Callable[[str], str]:
    """Return the rule that *edit* makes of the parts of a URL. It leaves URLs alone that are not of the web."""

    def rule(url: str) -> str:
        match = _match_parts(url)
        if match is None:
            return url
        parts = edit(_Parts(*match.groups()))
        return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}{parts.query}"

    return rule


def _rule(edit: Callable[[_Parts], _Parts]) -> Callable[[_Parts], _Parts]:
    """Make *edit* a rule by its name."""
    RULES[edit.__name__] = _on_parts(edit)
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


def _drop_fields(parts: _Parts, is_dropped: Callable[[str], object]) -> _Parts:
    return _keep_fields(parts, lambda fields: [field for field in fields if not is_dropped(field)])


@_rule
def tracking_2(parts: _Parts) -> _Parts:
    """Drop the tracking parameters that browsers and blockers strip on every site; ``utm_zone`` and kin stay."""
    return _drop_fields(parts, noise.is_tracking_2)


@_rule
def session_ids_2(parts: _Parts) -> _Parts:
    """Drop session ids from query and path, each known by its name and the form that its software gives it."""
    parts = _drop_fields(parts, noise.is_session_2)
    if noise.has_coldfusion_token(parts.query):
        parts = _drop_fields(parts, noise.is_coldfusion)
    return parts._replace(path=noise.ASP_NET_2.sub("", noise.JSESSIONID_2.sub("", parts.path)))


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


def _without(name: str) -> Callable[[str], str] | None:
    """Return the rule ``without:<parameter>`` or ``without:<parameter>@<host>``; None if *name* is not such a rule."""
    match = re.fullmatch(r"without:([^@,&;=#/\s]+)(?:@([^@,/\s]+))?", name)
    if match is None:
        return None
    parameter, host = match.groups()
    in_path = re.compile(rf";{re.escape(parameter)}=[^;/]*")

    def without(parts: _Parts) -> _Parts:
        if host is not None and parts.netloc.rpartition("@")[2] != host.lower():  # lower case in a canonical URL
            return parts
        parts = _drop_fields(parts, lambda field: field.partition("=")[0] == parameter)
        return parts._replace(path=in_path.sub("", parts.path))

    return _on_parts(without)


PRESETS = {
    "safe": ("default_port", "repeated_pairs"),
    "common": ("default_port", "repeated_pairs", "tracking_2", "session_ids_2"),
}
"""Names for several rules."""


def _quick_may_touch(url: str) -> bool:
    """Return whether a rule of "common" may touch the canonical *url*, in 300 ns. True may be wrong, False never is."""
    if "?" in url:
        fields = url.partition("?")[2].split("&")
        if len(set(fields)) < len(fields) or noise.find_noise(url):
            return True
    return ";" in url or ":80/" in url or ":443/" in url or "/(" in url


@dataclass(frozen=True)
class Rules:
    """A crawl's rules, in the order in which they are applied."""

    names: tuple[str, ...] = ()
    """As the key space of a filter records them; for a user's own function, its import path."""
    functions: tuple[Callable[[str], str], ...] = ()
    """One for each name."""

    @property
    def may_touch(self) -> Callable[[str], bool] | None:
        """A function that returns whether a rule may touch a URL. True may be wrong, False never is. None: no rules."""
        if not self.names:
            return None
        return _quick_may_touch if set(PRESETS["common"]).issuperset(self.names) else lambda _url: True

    def apply(self, canonical: str) -> str:
        """Return the URL that stands for the *canonical* one and its equals: itself if no rule touches it.

        Raises whatever a user's own function raises.
        """
        for function in self.functions:
            canonical = function(canonical)
        return canonical


def resolve(value: object) -> Rules:
    """Return the rules that *value* of ``BLOOM_URL_RULES`` stands for. Duplicates count once.

    The order of ``index_page`` and ``trailing_slash`` in it makes no difference: ``index_page`` is applied first.

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
    rules: dict[str, Callable[[str], str]] = {}
    problems = []
    for name in value or ():
        try:
            if isinstance(name, str) and (name in PRESETS or name in RULES):
                rules |= {rule: RULES[rule] for rule in PRESETS.get(name, (name,))}
            elif isinstance(name, str) and (rule := _without(name)) is not None:
                rules[name] = rule
            else:
                rules |= _users_own(name)
        except ValueError as error:
            problems.append(f"{SETTING} has {name!r}, {error}")
    if problems:
        raise SettingsError(problems)
    rules = _in_order(rules)
    return Rules(tuple(rules), tuple(rules.values()))


def _in_order(rules: dict[str, Callable[[str], str]]) -> dict[str, Callable[[str], str]]:
    """Return *rules* with ``index_page`` just before ``trailing_slash``, at the place of the later one."""
    pair = "index_page", "trailing_slash"
    if not rules.keys() >= set(pair):
        return rules
    last = [name for name in rules if name in pair][-1]
    order = [rule for name in rules for rule in (pair if name == last else () if name in pair else (name,))]
    return {name: rules[name] for name in order}


def _users_own(given: Any) -> dict[str, Callable[[str], str]]:
    """Return the function *given*, by its import path. The text of a ValueError continues a sentence about *given*."""
    if isinstance(given, str) and ("." not in given or given.startswith("without:")):
        known = [*PRESETS, *RULES]
        close = difflib.get_close_matches(given, known, n=1)
        others = "without:<parameter>, without:<parameter>@<host>, and import paths"
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}, {others}"
        raise ValueError(f"which is not a rule; {hint}")
    sample = "http://example.com/path?key=value"
    try:
        function = resolve_name(given) if isinstance(given, str) else given
        answer = function(sample)
    except Exception as error:  # it is user code
        raise ValueError(f"which cannot be used: {error!r}") from error
    if type(answer) is not str:
        raise ValueError(f"which returns {answer!r} for {sample}, not a URL")
    if isinstance(given, str):
        return {given: function}
    name = f"{getattr(given, '__module__', '')}.{getattr(given, '__qualname__', '')}"
    if "<" in name or name.startswith(".") or name.endswith("."):
        raise ValueError("which a later run could not import by its name; name a function of a module")
    return {name: function}
