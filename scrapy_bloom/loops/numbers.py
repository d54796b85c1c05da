"""What tells apart pages whose text is alike: their numbers. "Hex bolt M8 x 45, 3.20 EUR" and the next bolt.

Numbers do not count for the order of a crawl: a calendar has ever new ones. They count against its end: whoever has
20,000 bolts wants them all. These tell nothing:

- numbers that the URL has, counters by one, dates and times;
- the numbers of a line that changes all over a site: a clock, a counter, the time that the page took.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scrapy_bloom.loops.lately import Lately

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHAPES = 3
"""Shapes of URLs on whose pages the numbers of a line change, if it is furniture."""
ENOUGH_TIMES = 5
"""Times of day that tell something together: a timetable. A page shows when it was made, but not so often."""
LONGEST = 2_000
"""Bytes; longer lines are left out."""
_digits = re.compile(rb"\d+").findall
_numbers_in = re.compile(rb"\d+(?:[.,]\d+)*").findall
_mask_numbers = re.compile(rb"\d+(?:[.,]\d+)*").sub
_pieces = re.compile(rb"[^\s\[\](){}\"'=;<>|]+").findall
_is_number = re.compile(rb"\W*[a-z]{0,3}\W{0,2}\d+(?:[.,:/x-]?\d+)*\W?[a-z]{0,3}\W*").fullmatch
is_time = re.compile(
    rb"\W?(?:\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\D?|\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?\D?|\d{9,}(?:\.\d+)?\D?)"
).fullmatch
"""Matches a word that is a date, a time, a duration, or seconds since 1970."""


class Numbers:
    """Remembers the numbers that pages have shown, by *add*, which returns whether a key is new."""

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self._add = add
        self._shapes: Lately[tuple[str, ...]] = Lately()  # of pages with a line, by the line without its numbers

    def are_new(self, url: str, lines: Iterable[bytes]) -> bool:
        """Return whether numbers in *lines*, in small letters, of the page at *url* tell something and are new."""
        shape, of_url = _shape_of(url), {number.lstrip(b"0") for number in _digits(url.encode())}
        new = False
        all_times: list[bytes] = []
        for line in lines:
            if len(line) > LONGEST or not _digits(line):
                continue
            template, numbers, times = _telling(line, of_url)
            shapes = self._shapes.get(hash(template)) or ()
            if shape not in shapes and len(shapes) < SHAPES:
                shapes = (*shapes, shape)
                self._shapes.set(hash(template), shapes)
            if len(shapes) >= SHAPES:
                continue
            all_times += times
            if numbers:
                new |= self._add(b"\4" + template + b"\n" + numbers)
        if len(all_times) >= ENOUGH_TIMES:
            new |= self._add(b"\5" + b" ".join(all_times))
        return new


def _telling(line: bytes, of_url: set[bytes]) -> tuple[bytes, bytes, list[bytes]]:
    """Return *line* without its digits and tokens, those of its numbers that tell something, and its times of day."""
    template, numbers, times, before = [], [], [], -1
    for word in _pieces(line):
        if word.isalpha():
            template.append(word)
        elif is_time(word):
            times += [word] * (b":" in word)
        elif _is_number(word):
            template.append(_mask_numbers(b"0", word))
            for number in _numbers_in(word):
                value = int(number) if number.isdigit() and len(number) < 9 else -1
                if value not in (0, 1, before + 1) and number.lstrip(b"0") not in of_url:
                    numbers.append(number)
                before = value
    return b" ".join(template), b" ".join(numbers), times


def _shape_of(url: str) -> str:
    """Return what pages are alike in: the first folder; and the script, or whether the last name is a word, or none."""
    path, mark, _ = url.partition("?")
    _, *folders, leaf = path.partition("://")[2].split("/") if path.count("/") > 2 else ("", "")
    if not (mark and "." in leaf):
        leaf = leaf and ("word" if leaf.isalpha() else "N")
    return "/".join([*folders[:1], leaf])
