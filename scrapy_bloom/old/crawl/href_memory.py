"""What each raw ``href`` of a site came to, so that the same link on the next page costs a look-up.

On a link-rich site nearly every link is on a hundred pages, and resolving, quoting and checking it takes 25
microseconds each time. Knows neither Scrapy's extractors nor the filter: the caller passes the function that turns an
``href`` into a URL, and the one that makes the fingerprint. Does not know how an ``href`` is looked up (``href_page``).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MEMORY_BYTES = 32 * 1024 * 1024
"""Most bytes of one memory, some 60,000 links; beyond it, the folders not visited for longest are forgotten."""

_ENTRY_BYTES = 320
"""Bytes of one link besides the characters of its two strings (on average 250 over 45,000 links of one site)."""

_TABLE_BYTES = 700
"""Bytes of a folder's table without links, with its place among the others."""

_MOST_PAGES = 20_000
"""Most pages of a site known to all of its folders, 8 MiB; each folder keeps those it links to, whatever happens."""


class Known:
    """What an ``href`` came to, together with those that differ from it in their fragment only."""

    __slots__ = ("fingerprint", "is_wanted", "is_within_limits", "link_url", "seen_in", "takes_fragments", "url")

    def __init__(self, url: str, fingerprint: bytes | None, link_url: str | None = None) -> None:
        self.url = url
        self.link_url = url if link_url is None else link_url
        """The URL of the link that comes out."""
        self.fingerprint = fingerprint
        """None if none can be made: the link passes, and its request fails where the spider sees it."""
        self.seen_in: int | None = None
        """The epoch of the filter in which it was seen."""
        self.is_within_limits = False
        """Whether the limits of the loop guard are known to allow it."""
        self.is_wanted = True
        """Whether it is wanted without a fragment; if not, it may be wanted with one."""
        self.takes_fragments: bool | None = False
        """Whether a plain fragment passes unchanged from the ``href`` to the URL; None: not tried yet."""

    @classmethod
    def of(cls, url: str, fingerprint_url: Callable[[str], bytes] | None, link_url: str | None = None) -> Known:
        """Return what is known of a link to *url*, which comes out as *link_url*."""
        if fingerprint_url is None:
            return cls(url, None, link_url)
        try:
            return cls(url, fingerprint_url(url if link_url is None else link_url), link_url)
        except Exception:  # its request fails, or not, as without us
            return cls(url, None, link_url)


def _unwanted(*, takes_fragments: bool) -> Known:
    known = Known("", None)
    known.is_wanted = False
    known.takes_fragments = takes_fragments
    return known


UNWANTED = _unwanted(takes_fragments=False)
UNWANTED_PAGE = _unwanted(takes_fragments=True)
"""A page that is not wanted, whatever the fragment."""


@dataclass
class Stem:
    """What the directory in front of a file's name came to, if the name itself stays unchanged."""

    url: str
    """Its URL, with the slash; empty if each ``href`` in that directory must be resolved by itself."""
    table: Table | None
    """Where they can be remembered."""
    wanted: dict[str, bool] = field(default_factory=dict)
    """Whether names of files are wanted, by what they have from their first dot on."""


class Table(dict[str, Known]):
    """What the hrefs of one folder, or of one site, came to."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = _TABLE_BYTES
        self.stems: dict[str, Stem] = {}
        """By the directory in the ``href``."""
        self.wanted: dict[str, bool] = {}
        """Of a site: whether names of files are wanted there, by what they have from their first dot on."""
        self.pages: dict[str, Known] = {}
        """Of a site: what is known of the pages it links to, by URL; each of its folders spells their hrefs anew."""
        self.pages_nbytes = 0
        """How many of the bytes are those of the pages."""


class HrefMemory:
    """What raw hrefs came to on the pages of one crawl, within :data:`MEMORY_BYTES` and the links of one page.

    resolve           makes a URL, or None, of a raw href, the page's base URL, its URL and its encoding, and of nothing
                      else. It joins and quotes as the web does: a plain file name, or a plain fragment, comes out
                      unchanged.
    fingerprint_url   the fingerprint of a URL.
    is_wanted         whether a URL is asked for. Must not depend on the fragment; for a URL that ends in its path, only
                      on the site and on the file's name from its first dot on. If no name without a dot is wanted on
                      a site, nothing there is.
    fits              whether a URL with its fragment is asked for, in addition to *is_wanted*. None: all are.
    shares            whether URLs that differ only in their fragment certainly have one fingerprint.
    finish            turns a wanted URL into the one that comes out, without its fragment. None: left as it is.
    passes_unresolved whether hrefs of which no URL can be made are wanted.
    """

    def __init__(
        self,
        resolve: Callable[[str, str, str, str], str | None],
        fingerprint_url: Callable[[str], bytes],
        *,
        is_wanted: Callable[[str], bool] = lambda _: True,
        fits: Callable[[str], bool] | None = None,
        shares: bool = False,
        finish: Callable[[str], str] | None = None,
        passes_unresolved: bool = False,
    ) -> None:
        self.resolve = resolve
        self.fingerprint_url = fingerprint_url
        self.is_wanted = is_wanted
        self.fits = fits
        self.shares = shares
        self.keeps_fragments = finish is None
        self.unresolved = Known("", None) if passes_unresolved else UNWANTED
        self.nbytes = 0
        """What is remembered, in bytes, as estimated when it was learned."""
        self._finish = finish
        self._tables: OrderedDict[Hashable, Table] = OrderedDict()

    def known(self, url: str) -> Known:
        """Return what is known of a link to *url*, which is wanted."""
        return Known.of(url, self.fingerprint_url, None if self._finish is None else self._finish(url))

    def remember(self, table: Table, raw: str, known: Known) -> None:
        """Remember in *table* what *raw* came to."""
        table[raw] = known
        self.count(table, raw, known.url)

    def remember_page(self, site: Table, known: Known) -> None:
        """Let all folders of *site* know the page *known*."""
        if len(site.pages) >= _MOST_PAGES:
            site.pages.clear()
            site.nbytes -= site.pages_nbytes
            self.nbytes -= site.pages_nbytes
            site.pages_nbytes = 0
        site.pages[known.url] = known
        site.pages_nbytes += self.count(site, "", known.url)

    def count(self, table: Table, raw: str, url: str) -> int:
        """Count what is remembered in *table* of *raw* and its *url*, and return its bytes."""
        nbytes = _ENTRY_BYTES + (len(raw) if raw.isascii() else 4 * len(raw)) + len(url)
        table.nbytes += nbytes
        self.nbytes += nbytes
        return nbytes

    def table(self, context: Hashable) -> Table:
        """Return the table of *context*, and note that it is visited."""
        table = self._tables.get(context)
        if table is None:
            table = self._tables[context] = Table()
            self.nbytes += table.nbytes
        else:
            self._tables.move_to_end(context)
        return table

    def make_room(self) -> None:
        """Forget the folders not visited for longest if there is too much."""
        while self.nbytes > MEMORY_BYTES:
            _, table = self._tables.popitem(last=False)
            self.nbytes -= table.nbytes
