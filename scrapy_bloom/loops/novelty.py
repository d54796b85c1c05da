"""Finds what is new on a page (text, media, numbers), and makes a sketch of the page, by which its copies are known.

A trap shows the same content under ever new URLs. Each time a little is different: the time, a counter, a token, or its
own URL. So a page is looked up line by line, by these rules:

- the text of links is no content: the news of a list are what its items bring;
- in the text of a line, all digits are alike. A new line is looked up once more in pieces of six words, without
  tokens (words with digits in them) and without the words of the URL. Only new pieces count;
- the numbers of a line count beside the text, except numbers of the URL, counters by one, and the dates and times of
  few lines. The numbers of a line that pages of several shapes have do not count: a clock, the time that a page took.

The data of a page may be in its scripts, which are read like its text.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from hashlib import blake2b
from itertools import filterfalse
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from scrapy_bloom.loops.lately import Lately

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Characters of new text and numbers with which a page counts as 1: a short sentence, without the words of its URL.
# A page with fewer counts in proportion
ENOUGH = 30
READ = 16_384  # bytes of a page that are read, without lines that many pages have
# Characters of a page's new text that are remembered in small pieces, for pages that have them in other lines
REMEMBERED = 500
LINES = 120  # lines of a page that are looked up, if the first of them are news
SHORTEST = 8  # bytes; shorter lines and pieces of text ("Next") say nothing about a page
PIECE = 6  # words of a new line that are looked up together, so that a token in a paragraph does not make all of it new
ENOUGH_TIMES = 5  # new lines of times and dates that bring something: a page shows when it was made, but not so often
SHAPES = 3  # if pages of this many shapes of URLs have a line, it belongs to the layout, and its numbers do not count
ROWS = 3  # lines of a page that differ in numbers alone and make a table, which does not belong to the layout
SKETCH = 32  # lines in a sketch
COMMON = 6  # pages that have a line, from which on sketches leave it out
# Lines of markup that are remembered, and lines with numbers; at most twice as many of each: some 40 MB together
MOST = 100_000
_LOWER = bytes(range(256)).lower()
ALIKE = bytes.maketrans(b"123456789", b"000000000")
"""For ``bytes.translate()``: 0 for every digit."""
_VALUES = bytes.maketrans(b'{}[],"', b"\n\n\n\n\n\n")
"""For text that is not markup: compact JSON has no space between its values, and would be one word."""
_ASCII = bytes(range(128))
_ADDRESSES = (b"data-src", b"src", b"srcset", b"data", b"url(")
_LINK = 1
"""The byte that lines begin with that are the text of a link."""

_unseen = re.compile(
    rb"<script[^<>]*\ssrc[^<>]*>|</?script[^>]*>|<style[^>]*>.*?(?:</style\s*>|\Z)|<!--.*?(?:-->|\Z)"
    rb"|<title[^>]*>.*?</title>|<option.*?(?=<)",
    re.DOTALL,
).sub
_links = re.compile(rb"<a\s[^>]*>(?:([^<]{0,500})|(.{0,2000}?))</a>", re.DOTALL).sub  # plain text is found sooner
_tags = re.compile(rb"<[^>]*>").sub
_cells = re.compile(rb"\s*</?t[dh](?:\s[^>]*)?>\s*").sub
_inline = re.compile(rb"</?(?:b|em|i|strong|code|span|tt|abbr|cite|small|sub|sup|time|u|var|font)(?:\s[^>]*)?>").sub
_media = re.compile(rb"<(?:img|source|video|audio|embed|object|iframe)\s[^<>]*|style\s*=[^<>=]*url\([^<>]*").findall
_attributes = re.compile(
    rb"""\s(data-src|srcset|src|data|width|height)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)|(url\()([^)]*)\)"""
).findall
_token_in_medium = re.compile(rb"[?&][^=&]*=(?:\d{9,}|(?=[^&]*\d)[\w-]{16,}|[^&]*(?:://|%3a%2f)[^&]*)(?=&|$)").sub
_cell = re.compile(rb"(?:^|>)[^<>A-Za-z\d]*\d[^<>A-Za-z]*(?:<|$)").search  # the numbers of a row: none may lack
_words = re.compile(rb"[^\W_]+").findall
_numbers = re.compile(rb"\d+(?:[.,]\d+)*").findall
_digits = re.compile(rb"\d+").findall
_has_digit = re.compile(rb"\d").search
_digits_in = re.compile(rb"\d+(?:[.,]\d+)*").sub
_pieces = re.compile(rb"[^\s\[\](){}\"'=;<>|]+").findall
_is_number = re.compile(rb"\W*[a-z]{0,3}\W{0,2}\d+(?:[.,:/x-]\d+)*\W?[a-z]{0,3}\W*").fullmatch
_is_time = re.compile(
    rb"\W?(?:\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\D?|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?\D?|\d{9,}(?:\.\d+)?\D?)"
).fullmatch


class Answer(NamedTuple):
    """What a server answered, as plain data."""

    url: str
    body: bytes
    """If it is text: in an encoding in which ASCII characters are one byte each."""
    form: str
    """``"markup"``, ``"text"`` or ``"binary"``."""


class Brought(NamedTuple):
    """What a page brought."""

    news: float
    """From 0 to 1: the new text and numbers, as a share of ENOUGH characters; 1 if there is a new picture."""
    sketch: bytes = b""
    """Hashes of lines that few pages have, for :func:`likeness`; empty if there are too few of them."""
    is_page: bool = True
    """Whether there was an answer, and no refusal or fault."""
    has_text: bool = True
    """Whether at least three lines are not links. Lists of links may look alike and lead to different pages."""


NOTHING = Brought(0, is_page=False)


class Novelty:
    """Remembers what pages have shown: pieces of text by *add*, which returns whether a key is new."""

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self._add = add
        self._common: set[bytes] = set()  # lines of markup that three pages had
        self._met: Lately[int] = Lately(MOST)  # pages that had a line of markup, or a line of a sketch, by its hash
        self._shapes: Lately[tuple[str, ...]] = Lately(MOST)  # of pages with a line, by the line without its numbers

    def brought(self, answer: Answer) -> Brought:
        """Return what *answer* brought, and remember it."""
        url, body, form = answer
        if form == "binary":
            return Brought(float(bool(body) and self._add(b"\2" + blake2b(body, digest_size=16).digest())))
        kept: list[bytes] = []
        if form == "markup":
            all_lines = body[: 4 * READ].replace(b"><", b">\n<").split(b"\n")
            kept = list(filterfalse(self._common.__contains__, all_lines))
            html = b"\n".join(kept)[:READ].translate(_LOWER)
            text = _unseen(b"\n", _links(_as_link, html))
            if b"<td" in text or b"<th" in text:
                text = _cells(b" ", text)
            text = _tags(b"\n", _inline(b" ", text))
        else:
            html = body[: 4 * READ].translate(_LOWER)
            text = html.translate(_VALUES)
        lines = list(dict.fromkeys(filter(None, map(bytes.strip, text.split(b"\n")))))
        new = self._new_text(url, lines)
        if new or len(html) == READ:
            self._count_lines(kept)
        new_numbers, sketch = self._numbers(url, lines[:LINES], is_new=new > 0)
        has_medium = b"<" in html and self._has_new_medium(html)
        has_text = sum(line[0] != _LINK for line in lines) > 2
        return Brought(1.0 if has_medium else min(1.0, (new + new_numbers) / ENOUGH), sketch, has_text=has_text)

    def _count_lines(self, lines: Sequence[bytes]) -> None:
        """Count a page with *lines* of markup. Those that three pages have as they are, are not read any more."""
        met = self._met
        for line in set(lines[:LINES]):
            times = (met.get(hash(line)) or 0) + 1
            if times > 2 and len(line) > len(b"</tr>") and not _cell(line):  # rows of a table stay apart
                if len(self._common) >= MOST // 5:
                    self._common.clear()
                self._common.add(line)
            met.set(hash(line), times)

    def _new_text(self, url: str, lines: Iterable[bytes]) -> int:
        """Return how many characters of new text are in *lines*; the rest does not matter if there are ENOUGH."""
        add, new, remembered, looked_up = self._add, 0, 0, 0
        echo: frozenset[bytes] | None = None
        for line in lines:
            if len(line) < SHORTEST or line[0] == _LINK:
                continue
            looked_up += 1
            if looked_up > LINES and (new >= ENOUGH or looked_up > 4 * LINES):
                break
            masked = line.translate(ALIKE)
            if not add(masked) or remembered >= REMEMBERED:
                continue
            if echo is None:
                echo = _words_of(url)
            worth = self._worth(masked, echo)
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
                name or style: (value or shown).strip(b"\"'") for name, value, style, shown in _attributes(medium)
            }
            address = next(filter(None, map(values.get, _ADDRESSES)), None)
            if address and not {values.get(b"width"), values.get(b"height")} & {b"0", b"1"}:
                is_news |= self._add(b"\1" + _token_in_medium(b"", address))
        return is_news

    def _numbers(self, url: str, lines: Sequence[bytes], *, is_new: bool) -> tuple[int, bytes]:
        """Return how many characters the new numbers in *lines* have, and the sketch of the page.

        A page without new text does not make its lines common: it may be a copy, and show the lines of one page again.
        In the sketch, all digits in the text of a link are alike.
        """
        of_url = {number.lstrip(b"0") for number in _digits(url.encode())}
        telling = {line: _telling(line, of_url) for line in filter(_may_tell, lines)}
        shown = {hash(line.translate(ALIKE) if line[0] == _LINK else line) for line in lines if line not in telling}
        rows = Counter(template for template, _, _ in telling.values())
        shape, new, new_times = _shape_of(url), 0, []
        for template, numbers, times in telling.values():
            if rows[template] < ROWS and self._is_layout(template, shape):
                continue
            shown.add(hash(template + numbers))
            if numbers:
                new += len(numbers) * self._add(b"\4" + template + numbers)
            elif times and self._add(b"\5" + template + times):
                new_times.append(len(times))
        new += sum(new_times) * (len(new_times) >= ENOUGH_TIMES)
        return new, self._sketch(shown, is_new=is_new)

    def _sketch(self, shown: Iterable[int], *, is_new: bool) -> bytes:
        """Return the sketch of a page, given the hashes of its lines: the least of those that few pages have.

        Lines of a page that *is_new* are counted, as far as they are looked at.
        """
        met, rare = self._met, array("Q")
        for line in sorted([line & 0xFFFF_FFFF_FFFF_FFFF for line in shown]):
            pages = (met.get(line + 1) or 0) + is_new  # a line without markup has the same hash in _count_lines
            if is_new:
                met.set(line + 1, pages)
            if pages < COMMON:
                rare.append(line)
                if len(rare) == SKETCH:
                    break
        return rare.tobytes() if len(rare) > 2 else b""

    def _is_layout(self, template: bytes, shape: str) -> bool:
        """Count a line, given without its numbers, on a page whose URL has *shape*. Return whether it is layout."""
        key = hash(template)
        shapes = self._shapes.get(key) or ()
        if shape not in shapes and len(shapes) < SHAPES:
            shapes = (*shapes, shape)
            self._shapes.set(key, shapes)
        return len(shapes) >= SHAPES


def likeness(sketch: bytes, other: bytes) -> float | None:
    """Return the share of the lines of the shorter sketch that both have, from 0 to 1; None if one is empty."""
    if not sketch or not other:
        return None
    lines, others = set(array("Q", sketch)), set(array("Q", other))
    return len(lines & others) / min(len(lines), len(others))


def _as_link(match: re.Match[bytes]) -> bytes:
    plain, marked = match.groups()
    text = _tags(b" ", marked) if plain is None else plain
    return b"\n\1%b\n" % text.replace(b"\n", b" ")


def _may_tell(line: bytes) -> bool:
    return line[0] != _LINK and len(line) <= 4 * REMEMBERED and bool(_has_digit(line))


def _telling(line: bytes, of_url: set[bytes]) -> tuple[bytes, bytes, bytes]:
    """Return *line* without its digits and tokens, the numbers in it that tell something, and its dates and times."""
    template, numbers, times, before = [], [], [], -1
    for word in _pieces(line):
        if word.isalpha():
            template.append(word)
        elif not _has_digit(word):
            continue
        elif _is_time(word):
            times.append(word)
        elif _is_number(word):
            template.append(_digits_in(b"0", word))
            for number in _numbers(word):
                value = int(number) if number.isdigit() and len(number) < 9 else -1
                if value not in (0, 1, before + 1) and number.lstrip(b"0") not in of_url:
                    numbers.append(number)
                before = value
    return b" ".join(template), b" ".join(numbers), b" ".join(times)


def _shape_of(url: str) -> str:
    """Return what pages are alike in: the script, or whether the last name is empty, digits, a word or a mixture."""
    path, mark, _ = url.partition("?")
    leaf = path.split("/", 3)[-1].rstrip("/").rpartition("/")[2]
    if mark and "." in leaf:
        return leaf
    return "" if not leaf else "N" if leaf.isdigit() else "word" if leaf.isalpha() else "mixed"


def _is_text(word: bytes) -> bool:
    """Whether *word* is a phrase in a script that has no spaces between words."""
    return len(word) >= 12 and len(word.translate(None, _ASCII)) >= 12


def _words_of(url: str) -> frozenset[bytes]:
    """Return the words of a URL, whole segments included, as they would stand in a line."""
    after_host = url.partition("://")[2].partition("/")[2].lower()
    text = unquote_to_bytes(after_host.replace("+", " ").replace("?", "/").replace("/", " ")).translate(ALIKE)
    return frozenset([*text.split(), *_words(text)])
