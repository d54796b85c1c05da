"""Which pages need not be read: those of a crawl without loops that have a title of their own and lead to nothing new.

Reading for news is half of what the guard costs. A page that is *skimmed* is taken for news by its title. What it shows
is not remembered, so its copies look new; ``news`` says of the first of them that it cannot tell. Lists are read, since
filters show what was in them: a page is known to lead on when the first of its links is queued, and is read then.

Knows bodies and accounts, and not what is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.old.loops.account import EVIDENCE
from scrapy_bloom.old.loops.demotion import breeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.loops.account import Account

FIRST_PAGES = 16
"""Pages of a run that are all read."""

READ_ONE_OF = 4
"""Of the pages after these, one in that many is read in any case. It shows when a kind whose pages have new titles
brings nothing else; then they are all read. And a kind of copies runs dry after 25 pages whose originals were read, so
with 8 it took more than 200."""

MOST_BARREN = 0.1
"""Share of pages that bring nothing, past which all are read. Beside 35 traps it is reached after 250 to 400 pages, and
the first verdict comes after 760. Of 4,389 pages of documentation it is reached with the last 450."""

BARREN_PAGES = 128
"""Pages over which that share is taken."""

LONGEST = 1 << 17
"""Bytes of a page that may be skimmed."""

KEPT = 64
"""Pages that are kept until they are known to lead on, and again as many whose links have begun to come: 16 MB at most.
Pages that were skimmed before these stay unread."""

_Source = tuple[int, ...]


class Skimming:
    """Says of the pages of one run which may be skimmed, and keeps the last of these."""

    def __init__(self) -> None:
        self._has_loops = False
        self._pages = 0
        self._barren = 0.0
        self._unread: dict[str, bytes] = {}
        self._with_links: dict[_Source, tuple[str, bytes]] = {}

    def end(self) -> None:
        """Read all pages from now on: something has run dry."""
        self._has_loops = True

    def note(self, *, is_news: bool) -> None:
        """Count a page that has come back."""
        self._pages += 1
        self._barren += ((not is_news) - self._barren) / BARREN_PAGES

    def may_skim(self, body: bytes, accounts: Sequence[Account]) -> bool:
        """Whether the page with *body* may be skimmed, whose shapes have *accounts*.

        Pages with a query never are: most traps have one.
        """
        return (
            not self._has_loops
            and self._pages >= FIRST_PAGES
            and self._pages % READ_ONE_OF > 0
            and self._barren < MOST_BARREN
            and len(body) <= LONGEST
            and not accounts[0].is_of_query
            and all(map(_is_reliable, accounts))
            and not breeds(accounts)
        )

    def keep(self, url: str, body: bytes) -> None:
        """Keep the page at *url*, which was skimmed."""
        self._unread[url] = body
        if len(self._unread) > KEPT:
            del self._unread[next(iter(self._unread))]

    def links_begin(self, url: str, source: _Source) -> None:
        """Take note that the links of the page at *url* will come with *source*."""
        body = self._unread.pop(url, None)
        if body is None:
            return
        self._with_links[source] = url, body
        if len(self._with_links) > KEPT:
            del self._with_links[next(iter(self._with_links))]

    def leads_on(self, source: _Source) -> tuple[str, bytes] | None:
        """Return the URL and body of the page that a new link comes from, if it is unread: it is to be read now."""
        return self._with_links.pop(source, None)


def _is_reliable(account: Account) -> bool:
    """Whether its last page has brought something, and so did most before, each by itself."""
    return not account.dry and (account.fetched < EVIDENCE or account.has_own_news)
