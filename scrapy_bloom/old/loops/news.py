"""What a page brought that no page before had: text in small pieces, media, numbers of a table.

Knows no crawl and no link, and not which pages belong together; that is for ``guard``.

A trap shows the same content under ever new URLs, changed a little each time: the time, a counter, a token, its own
URL. So the text is looked up line by line, as the page lays it out, and

- digits are all alike: a clock and a counter are the same line whatever they show;
- a line that is new is looked up once more in pieces of six words, without the words that have digits in them (tokens)
  and without those that the URL has, too (a page that echoes its URL, a heading made of the chosen facets). Only pieces
  that are new then count;
- where pages lead to ever more of their kind, a link's words count only if its address does not have them, and a short
  line does not count if another one differs from it by a single word: mazes name pages as they like, from templates;
- a heading that the title has, too, counts once: months of an empty calendar have a new name in both;
- tables of numbers, which have no other content, count by their numbers in rows, as many as no clock has.

``page_text`` says what is text, and leaves out what every page has.

``docs/loops.md`` shows what each of these did to false alarms.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import mmh3
from scrapy.http import HtmlResponse, TextResponse, XmlResponse

from scrapy_bloom.old.loops.page_text import (
    ALIKE,
    DIGIT,
    PageText,
    find_words,
    is_number,
    lines_with_links,
    plain_windows,
    title_of,
    without_unseen,
    words_of,
    words_of_links,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scrapy.http import Response

    from scrapy_bloom.old.filter.chain import ScalableBloomFilter

ENOUGH = 30
"""Characters of new text that make a page news: a short sentence, without the words that its URL has."""

REMEMBERED = 500
"""Characters of a window's new text that are remembered in small pieces, for later pages that have them in other lines.
All of it would take longer than reading it, and fewer would make news of the next copies."""

READ_ON = 4
"""Windows that are read on for each one that had nothing new before the news. A page that begins like another one may
be its copy, and what is not read of this copy makes news of the next."""

LINKS = 12
"""Links in a window that make it part of a list. Lists are read on: their filters show what stands further down. Pages
that link to themselves with a query are, too: they are lists that come in other orders."""

MOST_OF_LIST = 8
"""Windows of a list that are read, if the first has news already: 16 KB."""

SHORTEST = 8
"""Bytes; shorter lines and pieces ("Next", "12.50") say nothing about a page."""

SHORTEST_TOKEN = 6
"""Letters and digits in a row that may be a token. ``tar.gz`` and ``v2`` are shorter."""

PIECE = 6
"""Words of a new line that are looked up together, so that a token in a paragraph does not make all of it new."""

SHORTEST_TEMPLATE = 3
"""Words of a line that may come from a template: "Garden has five narrower terms". Of two, each may be a name."""

ENOUGH_ECHOES = 12
"""Lines that are new by words of the URL alone, and still make a page news: a page that echoes its URL does so in its
title, a heading, a path and a sentence. The manual of a class has its name in every line."""

GROUP = 4
"""Numbers that are looked up together: one alone has been seen soon, four in a row have not."""

ENOUGH_GROUPS = 5
"""New groups of numbers that make a page news. The date, the time, the duration and a counter are at most four."""

_NUMBERS_BYTES = 1 << 16

SHORTEST_TEXT = 12
"""Bytes beyond ASCII in a word of a script without spaces: four characters of Chinese. That is a phrase, and stays one
with a year in it or a number that the URL has, too."""

_VALUES = bytes.maketrans(b'{}[],"', b"\n\n\n\n  ")
"""For text that is no markup: compact JSON has no space between its values, and would be one word."""

_ASCII = bytes(range(128))

_AFTER_HOST = re.compile(r"[a-z][\w+.-]*:(?://[^/?#]*)?([^#]*)", re.IGNORECASE).match
_OF_A_CLOCK = re.compile(
    rb"\W?(?:\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\D?|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?\D?|\d{9,}(?:\.\d+)?\D?)"
).fullmatch
_TOKEN_IN_MEDIUM = re.compile(
    rb"[?&][^=&]*=(?:\d{9,}|(?=[^&]*\d)[\w-]{16,}|[^&]*(?:://|%3A%2F)[^&]*)(?=&|$)", re.IGNORECASE
).sub
_MEDIA = re.compile(rb"<(?:img|source|video|audio|embed|object)\s[^<>]*", re.IGNORECASE).findall
_ATTRIBUTES = re.compile(
    rb"""\s(data-src|src|data|width|height)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE
).findall


class News:
    """Remembers what pages have shown, in *seen*, at some 100 bytes a page.

    A false "seen" of the filter makes one piece of a page look old, not the page: at 1e-3 a page of ten new pieces is
    mistaken for a copy with a probability of 1e-30.
    """

    def __init__(self, seen: ScalableBloomFilter) -> None:
        """Keep what was seen in *seen*, which the caller closes."""
        self._seen = seen
        self._add = seen.add
        self._text = PageText()

    def brought(self, response: Response, *, breeds: bool = False) -> bool | None:
        """Return whether *response* shows anything that no response before has shown, and remember it.

        What *breeds* is a page of a kind that leads to ever more of itself, where names and templates are no news.

        None: it has the title of a page that was skimmed, and may be a copy of it. The next one of that title is judged
        as any other: its copies are known from then on.
        """
        body = response.body
        if not isinstance(response, TextResponse):
            return bool(body) and self._add(b"\2" + mmh3.mmh3_x64_128_digest(body))
        may_be_copy = isinstance(response, HtmlResponse) and self._was_skimmed(body)
        if response.encoding.startswith(("utf-16", "utf-32")):
            body = response.text.encode()
        is_markup = isinstance(response, (HtmlResponse, XmlResponse))
        if not is_markup:
            body = body.translate(_VALUES)
        is_news = self._shows_something(response.url, body, is_markup=is_markup, breeds=breeds)
        return None if is_news and may_be_copy else is_news

    def skim(self, response: Response) -> bool:
        """Return whether *response* has a title that no page had: then it is taken for news, and not remembered."""
        title = _title(response.body) if isinstance(response, HtmlResponse) else b""
        if not title or not self._add(b"\6" + title):
            return False
        self._add(b"\7" + title)
        return True

    def read(self, url: str, body: bytes) -> None:
        """Remember what a page shows that was skimmed."""
        self._was_skimmed(body)
        self._shows_something(url, body, is_markup=True, breeds=False)

    def _was_skimmed(self, body: bytes) -> bool:
        """Return whether a page with the title of *body* was skimmed and none was read since; now one is."""
        title = _title(body)
        return (
            bool(title) and not self._add(b"\6" + title) and b"\7" + title in self._seen and self._add(b"\10" + title)
        )

    def _shows_something(self, url: str, body: bytes, *, is_markup: bool, breeds: bool) -> bool:
        """Return whether a page shows anything that none before has shown, and remember it."""
        is_news = has_new_medium = has_orders = False
        new = echoes = more = 0
        own: frozenset[bytes] | None = None
        texts: list[bytes] = []
        title = b""
        for window in self._text.windows(body) if is_markup else plain_windows(body):
            texts.append(window.text)
            if window.has_media:  # remembered if the text is news, too: they would make news of the first copy
                has_new_medium |= self._has_new_medium(window.html)
            found: dict[bytes, bytes | None] = dict.fromkeys(window.text.split(b"\n"))
            if breeds and is_markup:
                found |= lines_with_links(window.html)
            title = title or next(filter(bytes.strip, found), b"")
            fresh = [line for line in found if len(line) >= SHORTEST and self._add(line)]
            if fresh:
                own = own or _words_of(url)
                echoed = frozenset([word for word in own if window.text.find(word) >= 0])
                names = {} if new >= ENOUGH else found
                for worth, is_echo in self._worths(fresh, title, names, echoed):
                    new += worth
                    echoes += is_echo
            is_news = new >= ENOUGH or echoes >= ENOUGH_ECHOES
            if not is_news:
                more += READ_ON * (len(window.text) >= REMEMBERED)
                continue
            has_orders = has_orders or _leads_to_itself(url, window.html)
            if (window.links >= LINKS or has_orders) and len(texts) < MOST_OF_LIST:
                continue
            if not more:
                return True
            more -= 1
        if is_news or has_new_medium:
            return True
        if sum(map(bool, map(is_number, b" ".join(texts).split()))) < GROUP * ENOUGH_GROUPS:
            return False
        return self._has_new_numbers(words_of(body[:_NUMBERS_BYTES]) if is_markup else body[:_NUMBERS_BYTES])

    def was_shown(self, url: str) -> bool:
        """Return whether the page at *url* was shown before, and remember that it was."""
        return not self._add(b"\5" + url.encode())

    def _worths(
        self, lines: Iterable[bytes], title: bytes, with_links: Mapping[bytes, bytes | None], own: frozenset[bytes]
    ) -> Iterator[tuple[int, bool]]:
        """Yield what :meth:`_worth` says of each line, without names and templates, until enough is remembered."""
        remembered = 0
        for line in lines:
            if line is not title and line.strip() in title:
                continue
            linked = with_links.get(line)
            kept = line if linked is None or remembered >= ENOUGH else self._without_names(line, linked, own)
            worth, is_echo = self._worth(kept, own)
            yield worth, is_echo
            remembered += worth
            if remembered >= REMEMBERED:
                return

    def _worth(self, line: bytes, own: frozenset[bytes]) -> tuple[int, bool]:
        """Return how many characters of *line*, which is new, are new in small pieces, and if only its echo is new.

        *own* are the words of the URL that stand in the page.
        """
        words = line.split()
        is_echo = False
        for echo in own:  # any() would take three times as long
            if line.find(echo) >= 0:  # maybe inside of other words
                others = [
                    word
                    for word in words
                    if word not in own and (word.isalnum() or own.isdisjoint(find_words(word)) or _is_text(word))
                ]
                is_echo = len(others) < len(words)
                words = others
                break
        if DIGIT in line:
            words = [word for word in words if DIGIT not in word or _is_name(word) or _is_text(word)]
        worth = 0
        for start in range(0, len(words), PIECE):
            piece = b" ".join(words[start : start + PIECE])
            if len(piece) >= SHORTEST and self._add(b"\3" + piece):
                worth += len(piece)
                if worth >= REMEMBERED:
                    break
        return worth, is_echo and not worth

    def _without_names(self, line: bytes, with_links: bytes, own: frozenset[bytes]) -> bytes:
        """Return *line* without the words that its links' addresses have, or nothing if it comes from a template."""
        linked = words_of_links(with_links)
        words = [word for word in line.split() if linked.isdisjoint(find_words(word))]
        others = [word for word in words if own.isdisjoint(find_words(word))]
        if not SHORTEST_TEMPLATE <= len(others) <= PIECE:
            return b" ".join(words)
        likes = [b" ".join([*others[:at], b"*", *others[at + 1 :]]) for at in range(len(others))]
        are_new = [self._add(b"\4" + like) for like in likes]
        return b" ".join(words) if all(are_new) else b""

    def _has_new_medium(self, html: bytes) -> bool:
        are_new = [self._add(b"\1" + address) for address in _addresses(html)]
        return any(are_new)

    def _has_new_numbers(self, text: bytes) -> bool:
        """Return whether *text* has new rows of numbers: GROUP in a row without a word in between.

        Numbers between words are prices and counters. A calendar counts its days, a pager its pages: what is one more
        than the number before does not count, and neither do dates and times.
        """
        runs: list[list[bytes]] = [[]]
        before = -1
        for word in text.split():
            if _OF_A_CLOCK(word):
                continue
            if not is_number(word):
                if len(word) > 2 and runs[-1]:
                    runs.append([])
                continue
            value = int(word) if word.isdigit() and len(word) < 9 else -1
            if value != before + 1:
                runs[-1].append(word)
            before = value
        return (
            sum(
                self._add(b"\0" + b" ".join(run[start : start + GROUP]))
                for run in runs
                for start in range(0, len(run) - GROUP + 1, GROUP)
            )
            >= ENOUGH_GROUPS
        )


def _title(body: bytes) -> bytes:
    """Return the title of a page, if it is long enough to tell pages apart."""
    title = title_of(body)
    return title if len(title) >= SHORTEST else b""


def _leads_to_itself(url: str, html: bytes) -> bool:
    """Whether the page at *url* links to its own address with a query: a list has such links for each order."""
    path = url.partition("?")[0].partition("://")[2].partition("/")[2]
    return html.find(b'="?') >= 0 or html.find(f"/{path}?".encode()) >= 0


def _is_name(word: bytes) -> bool:
    """Whether *word*, which has digits, names a file or a version, and is no token: ``lake-0.00.tar.gz``.

    Digits are alike by now, so a counter in a name makes no new one.
    """
    parts = find_words(word)
    return (
        len(parts) > 1
        and any(len(part) > 2 and part.isalpha() for part in parts)
        and all(len(part) < SHORTEST_TOKEN or part.isalpha() or part.isdigit() for part in parts)
    )


def _is_text(word: bytes) -> bool:
    """Whether *word* is a phrase in a script that has no spaces between words."""
    return len(word) >= SHORTEST_TEXT and len(word.translate(None, _ASCII)) >= SHORTEST_TEXT


def _words_of(url: str) -> frozenset[bytes]:
    """Return the words of a URL, whole segments included, as they would stand in a piece."""
    after_host = _AFTER_HOST(url)
    path, _, query = (after_host[1] if after_host else url).partition("?")
    text = unquote_to_bytes(f"{path}\n{query}".replace("+", " ")).translate(ALIKE)
    return frozenset([*text.split(), *find_words(text)])


def _addresses(html: bytes) -> Iterator[bytes]:
    """Return the addresses of the media in *html*, without tokens, and without pixels that only count visits."""
    for medium in _MEDIA(without_unseen(html)):
        found = {name.lower(): value.strip(b"\"'") for name, value in _ATTRIBUTES(medium)}
        address = found.get(b"data-src") or found.get(b"src") or found.get(b"data")
        if address and not {found.get(b"width"), found.get(b"height")} & {b"0", b"1"}:
            yield _TOKEN_IN_MEDIUM(b"", address)
