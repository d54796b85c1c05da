"""Compares what made the fingerprints of a stored filter with what makes them now.

Does not know what a fingerprint is made from, nor where the filter is stored: a key space is a mapping of ingredients,
such as ``{"fingerprinter": "scrapy", "rules": "", "w3lib": "2.5.0"}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import KeySpaceError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A canonical form that changed a little makes a few URLs look new, which costs fetches. Refusing would cost the crawl.
_ADVISORY = frozenset({"w3lib"})


def check_key_space(where: str, stored: Mapping[str, str], ours: Mapping[str, str], *, advice: str) -> list[str]:
    """Compare the key space *stored* with the filter at *where* to *ours*, and return warnings to log.

    Args:
        where: The filter, as the subject of a sentence.
        stored: By ingredient, what the filter was filled under. An ingredient that is missing counts as empty.
        ours: The same for the crawl that wants to use the filter.
        advice: What to do if every URL would look new.

    Raises:
        KeySpaceError: An ingredient differs that makes every URL look new.

    """
    differences = {
        name: (stored.get(name, ""), ours.get(name, ""))
        for name in sorted({*stored, *ours})
        if stored.get(name, "") != ours.get(name, "")
    }
    if differences.keys() - _ADVISORY:
        raise KeySpaceError(where, differences, advice=advice)
    return [
        f"{where} was filled under {name} {was}, and this is {now}. A few URLs whose canonical form has changed may "
        "be fetched again."
        for name, (was, now) in differences.items()
    ]
