"""Which of a page's hrefs may be new: :func:`sift` drops those that nobody wants and those seen before.

Knows how links are counted, and that links which differ behind the ``#`` lead to one page. Does not know how an
``href`` becomes a URL (``href_page``), nor what a filter is.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from scrapy_bloom.old.crawl.href_memory import UNWANTED_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_bloom.old.crawl.href_memory import Known
    from scrapy_bloom.old.crawl.href_page import Page

# Nothing in such a fragment is changed by joining and quoting.
_is_plain = re.compile(r"[A-Za-z0-9._\-]+").fullmatch
_find_odd_fragment = re.compile(r"#(?![A-Za-z0-9._\-]+(?:\n|\Z))").search


class Found(NamedTuple):
    """A link that may be new."""

    place: int
    """Index of its ``href`` among those given."""
    url: str
    """Its URL, with its own fragment."""
    known: Known
    """What is known of it, and of others that have the same fingerprint."""


def sift(
    page: Page, raws: Sequence[str | None], certain: int, *, is_unique: bool, names_seen: bool = False
) -> tuple[list[Found], list[str], int]:
    """Return those of *raws* that may be new, URLs seen in the epoch *certain*, and how many more were seen then.

    *raws* are the hrefs of *page*. Leaves out None, what nobody wants, and, if *is_unique*, all links to a URL but the
    first. With *names_seen* the URLs are those of all that were seen.
    """
    if names_seen or not page.memory.shares:
        found, seen = _sift_each(page, enumerate(raws), certain, is_unique=is_unique)
        return found, seen, 0
    # Most links of most pages were seen before, so hrefs are counted by the page they lead to, and looked at one by
    # one only where something is left to ask.
    hrefs = _Hrefs(page, raws)
    heads = hrefs.heads
    if not is_unique:
        heads = [raw.partition("#")[0] for raw in raws if raw is not None and raw not in hrefs.odd]
    settled, doubtful, n_seen = _settle(page, hrefs, Counter(heads), certain)
    if is_unique:
        n_seen = hrefs.count_once(settled, n_seen)
    rest = hrefs.odd
    if doubtful:
        rest = rest.union([raw for raw, head in zip(hrefs.all, hrefs.heads, strict=True) if head in doubtful])
        if "" in doubtful:
            rest.update(("", "#"))
    if not rest:
        return [], [], n_seen
    places = [(place, raw) for place, raw in enumerate(raws) if raw in rest]
    found, seen = _sift_each(page, places, certain, is_unique=is_unique)
    if is_unique and settled:
        counted = hrefs.among(settled, {*(one.url for one in found), *seen})
        found = [one for one in found if one.url not in counted]
        seen = [url for url in seen if url not in counted]
    return found, seen, n_seen


class _Hrefs:
    """The different hrefs of a page, in front of the ``#`` and behind it.

    Those whose fragment may matter, or may be changed by joining and quoting, are in *odd* only. Of the two that mean
    the page itself, the empty one is left.
    """

    __slots__ = ("_keeps_fragments", "all", "heads", "odd")

    def __init__(self, page: Page, raws: Iterable[str | None]) -> None:
        hrefs = cast("dict[str, None]", dict.fromkeys(raws))
        hrefs.pop(None, None)  # type: ignore[call-overload] # here they go
        self.odd: set[str] = set()
        self._keeps_fragments = page.memory.keeps_fragments
        if "" in hrefs and not page.is_plain:
            self.odd.add("")
        elif "#" in hrefs and page.memory.fits is None:
            del hrefs["#"]
            hrefs[""] = None
        if page.memory.fits is not None:
            self.odd.update([raw for raw in hrefs if "#" in raw])
        else:
            lines = "\n".join(hrefs)
            if _find_odd_fragment(lines) or lines.count("\n") >= len(hrefs):
                self.odd.update([raw for raw in hrefs if "#" in raw and not _is_plain(raw.partition("#")[2])])
        for raw in self.odd:
            del hrefs[raw]
        self.all = hrefs
        self.heads = [raw.partition("#")[0] for raw in hrefs]

    def count_once(self, settled: Mapping[str, str], n_seen: int) -> int:
        """Return how many URLs the *n_seen* of our hrefs come to whose heads are *settled*, by the URL of each."""
        n_urls = len(set(settled.values()))
        if not self._keeps_fragments:
            return n_urls
        if n_urls == len(settled):
            return n_seen
        n_each = Counter(settled.values())
        repeated = {head: url for head, url in settled.items() if n_each[url] > 1}
        pairs = zip(self.all, self.heads, strict=True)
        urls = [(repeated[head], raw.partition("#")[2]) for raw, head in pairs if head in repeated]
        return n_seen - len(urls) + len(set(urls))

    def among(self, settled: Mapping[str, str], urls: Iterable[str]) -> set[str]:
        """Return those of *urls* to which one of our hrefs comes whose head is *settled*."""
        heads: dict[str, list[str]] = {}
        for head, url in settled.items():
            heads.setdefault(url, []).append(head)
        had = set()
        for url in urls:
            page, mark, fragment = url.partition("#")
            same = heads.get(page, ())
            if any(not self._keeps_fragments or f"{head}{mark}{fragment}" in self.all for head in same):
                had.add(url)
        return had


def _settle(page: Page, hrefs: _Hrefs, heads: Mapping[str, int], certain: int) -> tuple[dict[str, str], set[str], int]:
    """Return the URLs of *heads* seen in the epoch *certain*, the heads to ask about, and how many links were seen.

    *heads* are those of *hrefs*, with how often each is there.
    """
    in_folder, in_origin, on_page = (table.get for table in page.tables)
    settled: dict[str, str] = {}
    doubtful: set[str] = set()
    n_seen = 0
    for head, n in heads.items():
        at = head or "#"
        known = in_folder(at) or in_origin(at) or on_page(at) or page.learn(at)
        if known is UNWANTED_PAGE:
            continue
        takes_fragments = known.takes_fragments or (
            (n == 1 and head in hrefs.all and "#" not in known.url)
            or (known.takes_fragments is None and page.takes_fragments(known, at))
        )
        if not takes_fragments or (known.is_wanted and known.seen_in != certain):
            doubtful.add(head)
        elif known.is_wanted:
            n_seen += n
            settled[head] = known.link_url
    return settled, doubtful, n_seen


def _sift_each(
    page: Page, places: Iterable[tuple[int, str | None]], certain: int, *, is_unique: bool
) -> tuple[list[Found], list[str]]:
    """Return what may be new and the URLs of all that were seen, of hrefs with their *places*."""
    in_folder, in_origin, on_page = (table.get for table in page.tables)
    memory = page.memory
    shares, fits, keeps_fragments = memory.shares, memory.fits, memory.keeps_fragments
    had: set[str] = set()
    urls: set[str] = set()
    found: list[Found] = []
    seen: list[str] = []
    for place, raw in places:
        if raw is None or raw in had:
            continue
        if is_unique:
            had.add(raw)
        head, mark, fragment = raw.partition("#") if shares else (raw, "", "")
        head = head or mark  # "" is the page with the fragment that its own URL may have
        known = in_folder(head) or in_origin(head) or on_page(head) or page.learn(head)
        if not mark:
            if not known.is_wanted:
                continue
            url = known.link_url
        elif (known.takes_fragments or page.takes_fragments(known, head)) and _is_plain(fragment):
            if known is UNWANTED_PAGE or (fits is not None and not fits(f"{known.url}#{fragment}")):
                continue
            url = f"{known.link_url}#{fragment}" if keeps_fragments else known.link_url
        else:
            known = in_folder(raw) or in_origin(raw) or on_page(raw) or page.learn(raw)
            if not known.is_wanted:
                continue
            url = known.link_url
        if is_unique:
            if url in urls:
                continue
            urls.add(url)
        if known.seen_in == certain:
            seen.append(url)
        else:
            found.append(Found(place, url, known))
    return found, seen
