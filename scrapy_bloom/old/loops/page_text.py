"""The text of a page, window by window, without the lines that pages of the crawl have shown before as they are.

Knows no page but by its bytes, and not what is new: for that it leaves out too little. ``news`` looks up the rest.

It reads the bytes of a page, not its tree: taking lines out of the tree takes four times as long. Tags cost most of the
time, 10 ns a byte, so the lines of head, menu and foot, which are most of many pages, are recognised with their tags.
"""

from __future__ import annotations

import re
from itertools import filterfalse
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW_BYTES = 2_048
"""Characters of HTML read at once, tags included. Most pages have shown their news by then, and the rest of a long page
stays unread."""

SHORT_HEAD = 1_024
"""Bytes; a longer head is passed over but for its title. Styles and scripts are up to 16 KB of it in manuals."""

LONGEST_HEAD = 16_384
"""Bytes in which a title is looked for."""

LONGEST_TITLE = 1_024
"""Bytes of a title, its tag included. A longer one is none."""

MOST_BYTES = 4 << 20
"""Of lines that are left out. Past that all are forgotten: those of menus are back two pages later."""

MOST_LINES = 50_000
"""Lines that have been met, by their hashes; forgotten likewise."""

DIGIT = ord("0")

_letters = bytearray(range(256))
for _byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
    _letters[_byte] = _byte + 32
for _byte in b"0123456789":
    _letters[_byte] = DIGIT
ALIKE = bytes(_letters)
"""For ``bytes.translate()``: small letters, and 0 for every digit."""

_INLINE = re.compile(
    rb"</?(?:a|abbr|acronym|b|bdi|bdo|big|cite|code|em|font|i|ins|kbd|label|mark|nobr|q|s|samp|small|span|strike|strong"
    rb"|sub|sup|td|th|time|tt|u|var|wbr)(?:\s[^<>]*)?>"
)
"""Tags that stand inside a line, and the cells of a table's row."""

_INLINE_BUT_LINKS = re.compile(_INLINE.pattern.replace(rb"</?(?:a|", rb"</a>|</?(?:"))
_NEXT_LINE = re.compile(
    rb"\n<|<(?:p|li|d[dlt]|div|h[1-6r]|br|t(?:able|body|r)|[uo]l|section|article)[\s>]", re.IGNORECASE
).search
"""Where a page lays out a new line. Windows that end inside of one would make two new lines of it, on each page at
another place."""

_LINK = re.compile(rb"<a\s[^<>]*>")
_HREFS = re.compile(rb"<a\s[^<>]*?\bhref\s*=\s*[\"']?([^\"'<>\s]*)").findall
_TAG = re.compile(rb"<[^<>]*>")
_TAG_BUT_LINKS = re.compile(rb"<(?!a\s)[^<>]*>")
_MAY_GO_ON = re.compile(rb"<[^>]*\n").search
_GOES_ON = re.compile(rb"<(?!!)[^<>\n]*\n").search
"""Whether a tag, or a sign that may begin one, goes on in the next line; declarations do not matter. The first finds
these and more, in a third of the time."""

# One pattern takes a third of the time of a search for each.
_MEDIUM = re.compile(rb"<(?:img|source|video|audio|embed|object)").search
_HIDES = re.compile(rb"<(?:script|style|!--)").search
_UNSEEN = ((b"<script", b"</script"), (b"<style", b"</style"), (b"<!--", b"-->"))

_STANDS_ALONE = re.compile(rb"[^<>]*(?:<(?!/?s(?:cript|tyle)|!--)[^<>]*>[^<>]*)*").fullmatch
"""Whether a line has whole tags only, and none that hides what follows: without it, the others mean the same."""

find_words = re.compile(rb"[^\W_]+").findall
"""Return the words of a text: letters and digits in a row."""

is_number = re.compile(rb"[-+~]?\W{0,3}\d+(?:[.,]\d+)*[^\d\s]{0,4}").fullmatch
"""Whether a word of a page is a number, with a sign, a currency or a unit."""


class Window(NamedTuple):
    """A part of a page."""

    text: bytes
    html: bytes
    """The same as it stands in the page."""
    has_media: bool
    """Whether there are pictures and the like in it, beside those in lines that are left out."""
    links: int
    """How many links begin in it, beside those in lines that are left out."""


class PageText:
    """Remembers the lines of a crawl's pages by their hashes, and which of them can be left out."""

    def __init__(self) -> None:
        self._left_out: set[bytes] = set()
        self._bytes = 0
        self._met: dict[int, bool] = {}  # by hash, and whether it was met again and cannot be left out

    def windows(self, body: bytes) -> Iterator[Window]:
        """Yield the text of the HTML in *body*, a window at a time, in small letters and with all digits alike.

        The text of lines that were yielded twice before is left out. Numbers are always yielded: a number alone says
        nothing, and those of lines seen before may stand in a new order.
        """
        title, start = _of_head(body)
        while start < len(body):
            html, end = self._unknown(title, body, start, _end_of_window(body, start))
            text, has_media, links = b"", False, 0
            if html:
                text, has_media, links = text_of(html), bool(_MEDIUM(html)), html.count(b"<a ")
                self._remember(html, text)
            yield Window(text, title + body[start:end], has_media, links)
            title, start = b"", end

    def _unknown(self, title: bytes, body: bytes, start: int, end: int) -> tuple[bytes, int]:
        """Return the lines of a window that are not known, without scripts and the like, and where the next begins.

        The *title* is the first of the lines, if it is not empty.
        """
        lines = (title + body[start:end]).translate(ALIKE).split(b"\n")
        html = b"\n".join(filterfalse(self._left_out.__contains__, lines))
        if _MAY_GO_ON(html) and _GOES_ON(html):  # where it ends must not depend on what is left out
            html = b"\n".join(
                [line if line not in self._left_out else b"<>" if b"<" in line else b"" for line in lines]
            )
        for opening, closing in _UNSEEN if _HIDES(html) else ():
            at = html.rfind(opening)
            if at < 0:
                continue
            if html.find(closing, at) < 0:  # the window ends in it
                closed = body.find(closing, end)
                end = len(body) if closed < 0 else closed + len(closing) + 1
                if opening == b"<script" and _is_data(html, at):
                    return without_unseen((title + body[start:end]).translate(ALIKE)), end
                html = html[:at]
            html = _without(html, opening, closing)
        return html, end

    def _remember(self, html: bytes, text: bytes) -> None:
        met = self._met
        for line in html.split(b"\n"):
            number = hash(line)
            if number not in met:
                met[number] = False
            elif not met[number]:
                met[number] = True
                if _STANDS_ALONE(line) and not _is_numbered_medium(line) and _is_seen_in(text, text_of(line)):
                    self._left_out.add(line)
                    self._bytes += len(line)
        if self._bytes > MOST_BYTES:
            self._left_out.clear()
            self._bytes = 0
            met.clear()
        elif len(met) > MOST_LINES:
            met.clear()


def text_of(html: bytes) -> bytes:
    """Return *html*, which has small letters, without tags: a line for each that the page lays out."""
    return _TAG.sub(b"\n", _INLINE.sub(b" ", html))


def lines_with_links(html: bytes) -> dict[bytes, bytes]:
    """Return the lines of *html*, each as :func:`text_of` has it and with the tags that begin its links."""
    html = without_unseen(html.translate(ALIKE))
    html = _LINK.sub(lambda link: link[0].replace(b"\n", b" "), html)
    lines = _TAG_BUT_LINKS.sub(b"\n", _INLINE_BUT_LINKS.sub(b" ", html)).split(b"\n")
    return {_LINK.sub(b" ", line): line for line in lines}


def words_of_links(line: bytes) -> frozenset[bytes]:
    """Return the words in the addresses of the links that begin in *line*."""
    return frozenset(find_words(unquote_to_bytes(b" ".join(_HREFS(line)))))


def words_of(html: bytes) -> bytes:
    """Return *html* without tags and what is no text, in linear time, however broken it is."""
    return _TAG.sub(b" ", without_unseen(html))


def without_unseen(html: bytes) -> bytes:
    """Return *html* without scripts, styles and comments."""
    for opening, closing in _UNSEEN:
        if opening in html:
            html = _without(html, opening, closing)
    return html


def _without(html: bytes, opening: bytes, closing: bytes) -> bytes:
    """Return *html* without what stands from each *opening* to the next *closing*.

    Scripts that are data stay: many pages are put together from them.
    """
    kept = []
    start = 0
    while (at := html.find(opening, start)) >= 0:
        end = html.find(closing, at)
        end = len(html) if end < 0 else end + len(closing)
        kept.append(html[start : end if opening == b"<script" and _is_data(html, at) else at])
        start = end
    return b"".join([*kept, html[start:]])


def _of_head(body: bytes) -> tuple[bytes, int]:
    """Return the title of a page with a long head, and where the rest of it begins that is to be read.

    Nothing is left out if something else may be shown there. That may be data, or text in front of the body: a page
    whose head does not end where its body begins is read from its start, and so is one with its tags in capitals.
    """
    end = body.find(b"<body")
    head = body[: max(end, 0)]
    if len(head) < SHORT_HEAD or not head[-SHORT_HEAD:].rstrip().endswith(b"</head>") or head.find(b"json") >= 0:
        return b"", 0
    title = head.find(b"<title")
    after_title = head.find(b"</title", title)
    if min(title, after_title) < 0:
        return b"", 0
    return head[title:after_title], end


def title_of(body: bytes) -> bytes:
    """Return the title of a page, in small letters and with all digits alike, or nothing."""
    start = body.find(b"<title", 0, LONGEST_HEAD)
    end = -1 if start < 0 else body.find(b"</title", start, start + LONGEST_TITLE)
    return b"" if end < 0 else body[start:end].partition(b">")[2].strip().translate(ALIKE)


def plain_windows(text: bytes) -> Iterator[Window]:
    """Yield *text*, which is no HTML, a window at a time, in small letters and with all digits alike."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + WINDOW_BYTES, start + 2 * WINDOW_BYTES)
        end = start + WINDOW_BYTES if end < 0 else end
        yield Window(text[start:end].translate(ALIKE), text[start:end], has_media=False, links=0)
        start = end


def _end_of_window(body: bytes, start: int) -> int:
    """Return where the window ends that begins at *start*: between two lines, or at least two tags, if it can be."""
    end = start + WINDOW_BYTES
    latest = end + WINDOW_BYTES
    if line := _NEXT_LINE(body, end, latest):
        return line.start()
    if latest >= len(body):
        return len(body)
    tag = body.find(b"<", end, latest)
    return end if tag < 0 else tag


def _is_data(html: bytes, script: int) -> bool:
    """Whether the script that begins at *script* is data, such as JSON-LD."""
    return b"json" in html[script : script + 100].partition(b">")[0]


def _is_numbered_medium(line: bytes) -> bool:
    """Whether *line* may be the picture of another page, whose address differs by its digits."""
    return DIGIT in line and bool(_MEDIUM(line))


def _is_seen_in(text: bytes, line: bytes) -> bool:
    """Whether *line* is part of *text* and has no number. It is not if it stood in a tag that goes over lines."""
    return all(part in text for part in line.split(b"\n")) and not (DIGIT in line and any(map(is_number, line.split())))
