"""What a page brings that no page before did: text, media, rows of numbers; and which page showed the same first.

A trap shows the same content under ever new URLs, changed a little each time: the time, a counter, a token, its own
URL. So a page is looked up line by line, and

- digits are all alike: a clock and a counter are the same line whatever they show;
- the text of links is no content: a list's news are what its items bring;
- a line that is new is looked up once more in pieces of six words, without tokens (words with digits in them) and
  without the words of the URL (a page that echoes it, a heading made of filters). Only new pieces count;
- tables of numbers, which have no other content, count by their numbers in rows, as many as no clock has.
"""

from __future__ import annotations

import re
from collections import Counter
from hashlib import blake2b
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from scrapy.http import HtmlResponse, TextResponse, XmlResponse

from scrapy_bloom.loops.lately import MOST, Lately
from scrapy_bloom.loops.numbers import Numbers, is_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.http import Response

ENOUGH = 30  # characters of new text that make a page news: a short sentence, without the words that its URL has
READ = 16_384  # bytes of a page that are read, without lines that many pages have
# Characters of a page's new text that are remembered in small pieces, for pages that have them in other lines
REMEMBERED = 500
LINES = 120  # lines of a page that are looked up, if the first of them are news
SHORTEST = 8  # bytes; shorter lines and pieces ("Next", "12.50") say nothing about a page
TELLING = 20  # bytes of a line that tells an original from its copy
PIECE = 6  # words of a new line that are looked up together, so that a token in a paragraph does not make all of it new
GROUP = 4  # numbers that are looked up together: one alone has been seen soon, four in a row have not
# New groups of numbers that make a page news. The date, the time, the duration and a counter are at most four
ENOUGH_GROUPS = 5
_letters = bytearray(range(256))
for _byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
    _letters[_byte] = _byte + 32
for _byte in b"0123456789":
    _letters[_byte] = 48
ALIKE = bytes(_letters)
"""For ``bytes.translate()``: small letters, and 0 for every digit."""

_VALUES = bytes.maketrans(b'{}[],"', b"\n\n\n\n\n\n")
"""For text that is no markup: compact JSON has no space between its values, and would be one word."""

_ASCII = bytes(range(128))

_unseen = re.compile(
    rb"<script(?![^>]*json)[^>]*>.*?(?:</script\s*>|\Z)|<style[^>]*>.*?(?:</style\s*>|\Z)|<!--.*?(?:-->|\Z)"
    rb"|<title[^>]*>.*?</title>|<a\s[^>]*>.*?</a>|<option.*?(?=<)",
    re.DOTALL,
).sub
_ADDRESSES = (b"data-src", b"src", b"srcset", b"data", b"url(")
_cells = re.compile(rb"</t[dh]>\s*<t[dh][^>]*>").sub
_script = re.compile(rb"</?script[^>]*>").sub
_tags = re.compile(rb"<[^>]*>").sub
_inline = re.compile(
    rb"</?(?:b|em|i|strong|code|span|td|th|tt|abbr|cite|small|sub|sup|time|u|var|font)(?:\s[^>]*)?>"
).sub
_media = re.compile(
    rb"<(?:img|source|video|audio|embed|object|iframe)\s[^<>]*|style\s*=[^<>]*url\([^<>]*", re.IGNORECASE
).findall
_attributes = re.compile(
    rb"""\s(data-src|srcset|src|data|width|height)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)|(url\()([^)]*)\)""", re.IGNORECASE
).findall
_token_in_medium = re.compile(
    rb"[?&][^=&]*=(?:\d{9,}|(?=[^&]*\d)[\w-]{16,}|[^&]*(?:://|%3A%2F)[^&]*)(?=&|$)", re.IGNORECASE
).sub
_cell = re.compile(rb"(?:^|>)[^<>A-Za-z]*\d[^<>A-Za-z]*(?:<|$)").search  # numbers count by their rows: none may lack
_words = re.compile(rb"[^\W_]+").findall
_is_number = re.compile(rb"[-+~]?\W{0,3}\d+(?:[.,]\d+)*[^\d\s]{0,4}").fullmatch

NOBODY = ("", 0)
"""Stands for the owner of lines that several pages with news have."""


class Brought(NamedTuple):
    """What a page brought."""

    is_news: bool
    twin: str = ""
    """The URL of the page that showed the same before, if this one is no news and there is one."""
    is_other: bool = False
    """Whether a few words or numbers tell the page from all others. This counts against the end of a crawl only."""
    is_page: bool = True
    """Whether there was an answer, and no refusal or fault."""


NOTHING = Brought(is_news=False, is_page=False)


class Novelty:
    """Remembers what pages have shown: pieces of text by *add*, which returns whether a key is new."""

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self._add = add
        self._common: set[bytes] = set()  # lines of markup that three pages had
        self._met: Lately[int] = Lately()
        self._numbers = Numbers(add)
        self._owners: Lately[tuple[str, int]] = Lately()

    def brought(self, response: Response) -> Brought:
        """Return what *response* brought, and remember it."""
        body, url = response.body, response.url
        if not isinstance(response, TextResponse):
            return Brought(bool(body) and self._add(b"\2" + blake2b(body, digest_size=16).digest()))
        if response.encoding.startswith(("utf-16", "utf-32")):
            body = response.text.encode()
        if isinstance(response, (HtmlResponse, XmlResponse)):
            html = self._own_lines(body)
            text = _tags(b"\n", _inline(b" ", _unseen(b"\n", html.translate(ALIKE))))
        else:
            html = body[: 4 * READ]
            text = html.translate(_VALUES).translate(ALIKE)
        new = self._new_text(url, text)
        is_news = new >= ENOUGH
        if b"<" in html:
            is_news |= self._has_new_medium(html)
        if not is_news and text.count(b"0") > 2 * GROUP * ENOUGH_GROUPS:
            is_news = self._has_new_numbers(_tags(b" ", _unseen(b" ", html)))
        shown = _shown(html) if b"<" in html else html.translate(_VALUES)
        lines = dict.fromkeys(map(bytes.strip, shown.lower().split(b"\n")))
        is_other = self._numbers.are_new(url, islice(lines, 2 * LINES))
        return Brought(is_news, self._own(url, text, is_news), is_other or new >= SHORTEST)

    def _own_lines(self, body: bytes) -> bytes:
        """Return the beginning of *body* without the lines of markup that other pages have as they are."""
        lines = body[: 4 * READ].replace(b"><", b">\n<").split(b"\n")
        kept = list(filterfalse(self._common.__contains__, lines))
        html = b"\n".join(kept)[:READ]
        met = self._met
        for line in set(kept[:LINES]):
            times = (met.get(hash(line)) or 0) + 1
            if times > 2 and len(line) > 3 and not _cell(line):
                if len(self._common) >= MOST // 5:
                    self._common.clear()
                self._common.add(line)
            met.set(hash(line), times)
        return html

    def _new_text(self, url: str, text: bytes) -> int:
        """Return how many characters of *text* are new; the rest does not matter if there are ENOUGH."""
        add, new, remembered, looked_up = self._add, 0, 0, 0
        echo: frozenset[bytes] | None = None
        for line in dict.fromkeys(map(bytes.strip, text.split(b"\n"))):
            if len(line) < SHORTEST:
                continue
            looked_up += 1
            if looked_up > LINES and (new >= ENOUGH or looked_up > 4 * LINES):
                break
            if not add(line) or remembered >= REMEMBERED:
                continue
            if echo is None:
                echo = _words_of(url)
            worth = self._worth(line, echo)
            new += worth
            remembered += worth
        return new

    def _worth(self, line: bytes, echo: frozenset[bytes]) -> int:
        """Return how many characters of *line*, which is new, are new in small pieces."""
        words = [
            word
            for word in line.split()
            if (b"0" not in word or _is_text(word))
            and word not in echo
            and (word.isalpha() or echo.isdisjoint(_words(word)))
        ]
        worth = 0
        for start in range(0, len(words), PIECE):
            piece = b" ".join(words[start : start + PIECE])
            if len(piece) >= SHORTEST and self._add(b"\3" + piece):
                worth += len(piece)
        return worth

    def _has_new_medium(self, html: bytes) -> bool:
        is_news = False
        for medium in _media(html):
            values = {
                (name or style).lower(): (value or shown).strip(b"\"'")
                for name, value, style, shown in _attributes(medium)
            }
            address = next(filter(None, map(values.get, _ADDRESSES)), None)
            if address and not {values.get(b"width"), values.get(b"height")} & {b"0", b"1"}:
                is_news |= self._add(b"\1" + _token_in_medium(b"", address))
        return is_news

    def _has_new_numbers(self, text: bytes) -> bool:
        """Return whether *text* has new rows of numbers: GROUP in a row without a word in between.

        Numbers between words are prices and counters. A calendar counts its days, a pager its pages: what is one more
        than the number before does not count, and neither do dates and times.
        """
        runs: list[list[bytes]] = [[]]
        before = -1
        for word in text.split():
            if is_time(word):
                continue
            if not _is_number(word):
                if len(word) > 2 and runs[-1]:
                    runs.append([])
                continue
            value = int(word) if word.isdigit() and len(word) < 9 else -1
            if value != before + 1:
                runs[-1].append(word)
            before = value
        groups = [b" ".join(run[at : at + GROUP]) for run in runs for at in range(0, len(run) - GROUP + 1, GROUP)]
        return sum(self._add(b"\0" + group) for group in groups) >= ENOUGH_GROUPS

    def _own(self, url: str, text: bytes, is_news: bool) -> str:
        """Note who shows the lines of *text*; return which page showed the same first, if it is no news.

        Of the lines that not several have, most are that page's; and of its own, this page has most.
        """
        stripped = map(bytes.strip, text.split(b"\n")[:LINES])
        lines = dict.fromkeys([hash(line) for line in stripped if len(line) >= TELLING])
        owners = self._owners
        if is_news:
            new = {line for line in lines if owners.get(line) is None}
            mine = (url, len(new))
            for line in lines:
                owners.set(line, mine if line in new else NOBODY)
            return ""
        shown = [owner for owner in map(owners.get, lines) if owner != NOBODY]
        found = Counter([owner for owner in shown if owner is not None])
        owner, votes = found.most_common(1)[0] if found else (NOBODY, 0)
        twin, number = owner
        if len(found) > 1:
            for line in lines:
                if owners.get(line) not in (None, owner):
                    owners.set(line, NOBODY)
        if 2 * votes <= max(number, len(shown)):
            return ""
        if plainness(url) < plainness(twin):  # one original is enough: the next page like it is a copy
            for line in lines:
                if owners.get(line) == owner:
                    owners.set(line, (url, number))
        return twin


def plainness(url: str) -> tuple[int, int, int]:
    """Return what tells an original from its copies: parameters, folders, length; the least is the original."""
    path, _, query = url.partition("?")
    return ((query.count("&") + 1) * bool(query) + path.count(";"), path.count("/"), len(url))


def _shown(html: bytes) -> bytes:
    """Return the text of *html* with the data in its scripts, and without that of links."""
    return _tags(b"\n", _inline(b" ", _unseen(b"\n", _script(b"\n", _cells(b" ", html)))))


def _is_text(word: bytes) -> bool:
    """Whether *word* is a phrase in a script that has no spaces between words."""
    return len(word) >= 12 and len(word.translate(None, _ASCII)) >= 12


def _words_of(url: str) -> frozenset[bytes]:
    """Return the words of a URL, whole segments included, as they would stand in a line."""
    after_host = url.partition("://")[2].partition("/")[2]
    text = unquote_to_bytes(after_host.replace("+", " ").replace("?", "/").replace("/", " ")).translate(ALIKE)
    return frozenset([*text.split(), *_words(text)])
