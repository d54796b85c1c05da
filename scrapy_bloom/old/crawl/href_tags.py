"""Which hrefs a page has, read from the text of its tags: a page whose links were all seen need not be parsed.

On a large site most pages have no new link, and parsing one takes longer than all that is done with its links. What is
read here may be too much, since a comment or a script may have what looks like a tag. It is never too little: each
link begins with ``<a``, and of a page with a tag that a parser might take apart otherwise, nothing is said.

Knows how HTML spells tags. Does not know what an ``href`` leads to (``href_page``), nor whether it was seen.
"""

from __future__ import annotations

import re
from codecs import lookup
from collections import Counter
from typing import NamedTuple

from lxml import etree  # type: ignore[import-untyped] # its stubs are a package of their own
from lxml.html import HTMLParser  # type: ignore[import-untyped] # likewise

_LONGEST_TAG = 2_000
"""Most bytes of a tag that is read. Longer ones have a picture or a program in an attribute."""

_LONGEST_KEPT = 300
"""Most bytes of a tag that is remembered."""

_MOST_TAGS = 4_096
"""Most tags remembered of each kind of encoding: some 1 MB, at most 3."""

_is_name_of_encoding = re.compile(r"[\w\-]+").fullmatch
"""Whether Scrapy decodes a page by it: another name is passed over."""

_LIKE_ASCII = frozenset({"ascii", "utf-8", "koi8-r", "koi8-u"})
_OF_ONE_BYTE = ("cp125", "iso8859-")
"""Encodings, and what the names of others begin with, whose bytes below 128 are ASCII wherever they stand."""

_is_markup = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*<").match
"""Some parsers take a page for JSON that does not begin like this."""

_find_tags = re.compile(rb"<[aA]([^>]*>?)").findall
"""What is behind each ``<a``."""

_NAME = rb"[A-Za-z0-9:_.\-]"
_NAME_ENDS = rb"(?!" + _NAME + rb")"
_may_be_prefixed = re.compile(rb":(?:[aA](?:[rR][eE][aA])?" + _NAME_ENDS + rb"|(?<=" + _NAME + rb"{90})[aA])").search
_find_prefixed = re.compile(
    rb"<(?:" + _NAME + rb"*:[aA](?:[rR][eE][aA])?" + _NAME_ENDS + rb"|" + _NAME + rb"{90})"
).search
"""What libxml2 2.13 and earlier take for an ``a``, as in ``<svg:a>``; they cut a name after 100 characters. The look
before is four times as fast."""

_is_other_element = re.compile(rb"(?!(?i:rea)[^A-Za-z0-9:_.\-])[A-Za-z0-9:_.\-][^<]*\Z").match
"""Whether the name goes on as that of another element than ``area``, such as ``abbr``."""

_VALUE = rb"\"[^\"<]*\"|'[^'<]*'|[A-Za-z0-9_.:#%/\-]*[A-Za-z0-9_.:#%\-](?=[ \t\r\n>]|\Z)"
_ATTRIBUTE = rb"[ \t\r\n]+([A-Za-z][A-Za-z0-9_:.\-]{0,90})(?:[ \t\r\n]*=[ \t\r\n]*(" + _VALUE + rb"))?"
_match_plain_tag = re.compile(rb"(?i:rea)?((?:" + _ATTRIBUTE + rb")*)[ \t\r\n]*/?>").fullmatch
"""What every parser of HTML takes apart in the same way."""
_find_attributes = re.compile(_ATTRIBUTE).findall

_PLAIN_VALUE = rb"[A-Za-z0-9_.:#%/?=+,;!~()\-]+"
"""Characters that mean themselves."""
_is_plain_value = re.compile(_PLAIN_VALUE).fullmatch

_QUOTED = rb"(?: (?!href=)[a-z][a-z\-]{0,90}=\"[^\"<]*\")*"
_match_usual_tag = re.compile(_QUOTED + rb" href=\"(" + _PLAIN_VALUE + rb")\"" + _QUOTED + rb">").fullmatch
"""How nearly all tags are written."""

_find_hiding = re.compile(rb"<(?=[!sStT])(?:!--|((?i:script|style|textarea))(?=[ \t\r\n/>]))").search
"""The beginning of what a parser finds no element in. The set of letters in front halves the time."""
_ENDS = {
    b"script": re.compile(rb"</script", re.IGNORECASE).search,
    b"style": re.compile(rb"</style", re.IGNORECASE).search,
    b"textarea": re.compile(rb"</textarea", re.IGNORECASE).search,
}

_OTHER_ATTRIBUTES = (
    rb"(?:[ \t\r\n]+(?!(?i:href)[^A-Za-z0-9:_.\-])[A-Za-z][A-Za-z0-9_:.\-]{0,90}=(?:\"[^\"]*\"|'[^']*'))*"
)
_is_program = re.compile(
    _OTHER_ATTRIBUTES + rb"[ \t\r\n]+href=(?:\\[\"']|\"[^\"]*\$\{|'[^']*\$\{|"
    rb"\"[^\"]*' *\+[^\"]*'\"|'[^']*\" *\+[^']*\"'|\" *\+[^\"]*\+ *\"|' *\+[^']*\+ *')"
).match
"""Whether a tag in a script has an ``href`` that the program puts together: ``href="' + url + '"``, ``href=\\"...``."""


class PageHrefs(NamedTuple):
    """The hrefs of a page, in any order: all that its elements ``a`` and ``area`` can have, however it is parsed."""

    shown: list[str | None]
    """None for a tag without an ``href``."""
    hidden: list[str | None]
    """Those in comments and the like: a parser is not expected to find them."""


class HrefTags:
    """Reads the hrefs of pages, and remembers those of each tag: most tags of a page are on a hundred others."""

    def __init__(self) -> None:
        self._of_utf8, self._of_others = _Known(is_utf8=True), _Known(is_utf8=False)
        self._credit = 16

    @property
    def likely_pay(self) -> bool:
        """Whether reading the next page is likely to take less time than it saves."""
        return self._credit > 0

    def saved_parsing(self) -> None:
        """Note that the last page was read and not parsed."""
        self._credit = min(64, self._credit + 5)

    def had_to_parse(self, *, has_new: bool, was_read: bool) -> None:
        """Note that the last page was parsed, and whether that was for new links."""
        if not has_new:  # what was new stands in comments, or a tag is odd: so it will be on the next page
            self._credit = max(-4, self._credit + (-3 if was_read else 1))

    def read(self, body: bytes, encoding: str) -> PageHrefs | None:
        """Return the hrefs of the page *body*, None if only a parser can tell."""
        hrefs = self._read(body, encoding)
        self._credit -= 1  # it takes a fifth of the time that it may save
        return hrefs

    def _read(self, body: bytes, encoding: str) -> PageHrefs | None:
        try:
            name = lookup(encoding).name if _is_name_of_encoding(encoding) else ""
        except LookupError:
            return None
        if not (name in _LIKE_ASCII or name.startswith(_OF_ONE_BYTE)) or not _is_markup(body):
            return None
        if b"\0" in body or (_may_be_prefixed(body) and _find_prefixed(body)):
            return None
        known = self._of_utf8 if name == "utf-8" else self._of_others
        shown = _find_tags(body)
        hidden, made_by_programs = _hidden_tags(body)
        if hidden or made_by_programs:
            shown = list((Counter(shown) - Counter(hidden + made_by_programs)).elements())
        try:
            return PageHrefs(list(map(known.__getitem__, shown)), list(map(known.__getitem__, hidden)))
        except _OddTagError:
            return None
        finally:
            if len(known) > _MOST_TAGS:
                known.clear()


class _OddTagError(Exception):
    """A tag may be taken apart in more than one way."""


class _Known(dict[bytes, "str | None"]):
    """The ``href`` of each tag, None if it has none, by what is behind its ``<a``."""

    def __init__(self, *, is_utf8: bool) -> None:
        super().__init__()
        self._is_utf8 = is_utf8

    def __missing__(self, tag: bytes) -> str | None:
        href = self._href(tag)
        if len(tag) <= _LONGEST_KEPT:
            self[tag] = href
        return href

    def _href(self, tag: bytes) -> str | None:
        if len(tag) > _LONGEST_TAG:
            raise _OddTagError
        usual = _match_usual_tag(tag)
        if usual:
            return str(usual[1], "ascii")
        if _is_other_element(tag):
            return None
        plain = _match_plain_tag(tag)
        if plain is None:
            raise _OddTagError
        for name, value in _find_attributes(plain[1]):
            if name.lower() == b"href":
                bare = value[1:-1] if value[:1] in (b'"', b"'") else value
                if _is_plain_value(bare):
                    return str(bare, "ascii")
                if not (value and (self._is_utf8 or bare.isascii())):
                    raise _OddTagError
                return _parsed(value)
        return None


def _parsed(value: bytes) -> str:
    """Return what the parser of Scrapy's pages makes of *value*, an attribute in its quotes."""
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        raise _OddTagError from None
    element = etree.fromstring(b"<a href=" + value + b">", HTMLParser(recover=True, encoding="utf8")).find(".//a")
    href = None if element is None else element.get("href")
    if href is None:
        raise _OddTagError
    return str(href)


def _hidden_tags(body: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return what looks like a tag inside of comments, scripts and the like, and what scripts put together."""
    tags: list[bytes] = []
    made_by_programs: list[bytes] = []
    at = 0
    while hiding := _find_hiding(body, at):
        start, name = hiding.end(), (hiding[1] or b"").lower()
        if name:
            end = _ENDS[name](body, start)
            at = end.start() if end else len(body)
        else:
            at = body.find(b"-->", start)
            at = len(body) if at < 0 else at
        found = _find_tags(body, start, at)
        for tag in found:
            (made_by_programs if name == b"script" and _is_made(tag) else tags).append(tag)
    return tags, made_by_programs


def _is_made(tag: bytes) -> bool:
    return len(tag) <= _LONGEST_TAG and b"<" not in tag and bool(_is_program(tag))
