"""Canonicalization beyond w3lib's, by name. Knows URLs and one setting; does not know who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.settings import BaseSettings


@dataclass(frozen=True)
class Rules:
    """Rules in the order in which they are applied."""

    names: tuple[str, ...] = ()
    """Their names, as they stand in the key space of a filter."""

    def apply(self, url: str) -> str:
        """Return the URL that stands for *url* and all its equals."""
        return url


def resolve(names: Iterable[str]) -> Rules:
    """Return the rules called *names*.

    Raises:
        ValueError: There is no rule of such a name.

    """
    wanted = tuple(names)
    if wanted:
        raise ValueError(f"there is no URL rule {wanted[0]!r}")
    return Rules()


def rules_of(settings: BaseSettings) -> Rules:
    """Return the rules of ``BLOOM_URL_RULES``: the one place that says which rules a crawl uses."""
    return resolve(settings.getlist("BLOOM_URL_RULES"))
