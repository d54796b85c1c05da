"""What a section of the site is, what it is asked and what it answers. Knows no section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Visit(NamedTuple):
    """A request, taken apart."""

    path: str
    """Path of the URL, unquoted: ``/shop/product/17``."""
    segments: list[str]
    """What lies below the folder of the section: ``["product", "17"]``; the last one is "" after a slash."""
    query: str
    """As it stands in the URL: ``page=2``."""
    params: dict[str, str]
    """The same by key, unquoted; of a key that comes twice, the last value."""
    served: int
    """How many pages the site has served so far: its clock."""

    def number(self, key: str) -> int:
        """Return a parameter as a number; -1 if it is none."""
        return decimal(self.params.get(key, ""))


class Answer(NamedTuple):
    """What a browser would be sent, always with status 200."""

    body: str
    content_type: str = "text/html; charset=utf-8"


@dataclass(frozen=True)
class Section:
    """Pages of one kind, honest or a trap."""

    name: str
    folder: str
    """First segment of the paths. Several sections may share one: the first that answers has the page."""
    imitates: str
    """What it is like on the real web, for the table in the documentation."""
    honest: bool
    tuning: bool
    """True: for tuning a guard. False: only for scoring one; nobody looks at it before."""
    answer: Callable[[Visit], Answer | None]
    """The page, or None if it is not of this section."""
    start: str = ""
    """The link on the home page; "" for sections that only other pages lead to."""
    size: int = 0
    """Pages of an honest section; 0 for a trap, which has no end."""
    by_url: bool = False
    """A trap that its URLs alone give away."""
    babble: bool = False
    """A trap with new text on every page, which nothing that looks at pages one by one can tell from prose."""


def decimal(text: str) -> int:
    """Return the number that *text* writes without sign, leading zeros or blanks, or -1."""
    if text.isascii() and text.isdecimal() and (text[0] != "0" or text == "0"):
        return int(text)
    return -1


def scaled(number: int, factor: float, least: int) -> int:
    """Return *number* times *factor*, at least *least*."""
    return max(least, round(number * factor))
