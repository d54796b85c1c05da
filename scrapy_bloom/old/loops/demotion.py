"""How far a URL goes back in the queue, by what is known about its shapes. Knows no request and no page.

Sections that grow without end share the crawl evenly, by the pages they have had; kinds whose pages bring news and lead
to no more of their kind come before them, and kinds whose pages bring nothing come last:

    steps = log2(rank * growth / FREE_RANK) + parameters + depth + barren pages on the way + barrenness

A query that is no page of a list, such as a filter, ranks as the next of all queries of its section.

A maze cannot be told from a large wiki while most of that is still unknown, so both get their turns. What tells them
apart is that a wiki's links lead to known pages one day. Until then neither may take more than its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.old.loops.account import DRY, EVIDENCE, KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.loops.account import Account


class Candidate(NamedTuple):
    """A URL that is to be fetched."""

    url: str
    rank: int
    """Its number among its kind."""
    accounts: Sequence[Account]
    """Those of its shapes, the most specific first."""
    folder: Account | None
    """For a URL with a query, that of the pages without one in its folder, if there are any."""
    barren: int
    """Pages in a row, up to the one that linked to it, that brought nothing."""


STEPS = 32
"""Different priorities that demotion makes of one: each is a queue in Scrapy's priority queue."""

RANK_STEPS = 24
"""Of these, the most for all but barrenness: as many as tell a maze of 2 million pages from a larger one. What is last
shares one queue, and among equals a LIFO queue takes the newest first, which are those of a maze. With 16 steps, that
of babble on a site of 91,517 pages came before 1,552 of these."""

MOST_AT_REST = 13
"""The same for a kind that does not grow, which comes before what does."""

FREE_RANK = 8
"""URLs of a kind, or pages of a section, that cost no step; from there on each doubling costs one."""

CHILDLESS = 16
"""How many URLs count as one where pages bring news and lead to no more of their kind: the items of a shop."""

KINDS = 16
"""How many kinds a folder may have: a shape that nothing is known of is ranked as if it had had its even part of
all URLs of its folder. Otherwise a maze that makes a shape of every page would always be at its first."""

PRIOR = 25
"""Pages for which the estimate of the wider shape counts, beside the shape's own pages."""

SUSPECT = 1.2
"""New URLs of its own kind on a page, past which its whole section counts for the rank of a kind. A pager has 1.

For a query these are all new URLs with a query in its section that may bring something: a filter leads to further
filters, which have more parameters and so are other kinds."""

MOST_GROWTH = 64.0
"""How many pages one of a kind that grows counts as, at most: a list may have a hundred links."""

MOST_OF_FOLDER = 4.0
"""New URLs of a folder on each of its pages, at most, that count for a kind in it of which nothing is known yet. Albums
lead to fifty photos each, and photos to none: 413 of these waited with the babble."""

SURE_GROWTH = 16.0
"""Growth that counts already when a URL is queued: of 128 pages or more, each has led to four new ones or more. That
spares three of ten requests the way back."""

SURE_PAGES = 8_192
"""Pages past which any growth does. A maze of 80,000 pages with two new ones on each was queued at the level where 413
photos waited that had been postponed, and among equals its newest came first."""

SURE = 8
"""Pages of a section for each unit of MOST_GROWTH: what has bred for 8 pages may, for 500 pages it goes on so."""

FREE_SEGMENTS = 4
"""Segments of a path that cost nothing; from there on each two cost a step. Mazes of relative links go down to where
the limit of ``depth`` ends them, and there they look like any section that has been crawled to its end."""

MOST_PARAMETERS = 6
"""Steps for the parameters of a query: one for a number, which is a page of a list or an item, and CHOICE for words."""

CHOICE = 3
"""Steps for a parameter that is no number: a filter, an order, a token. So a list's pages come before its filters,
which then show that they bring nothing."""

MOST_BARREN = 3
"""Steps for the pages in a row, from the second on, that led to a URL and brought nothing themselves. Where a calendar
has entries on one side, that side comes first."""

LATER = 3
"""Steps by which a request must have been queued too early to go back when it comes out of the queue. Each time costs
0.1 ms, and 0.4 ms through Scrapy's engine; 2 steps sent requests back half as often again, for the same pages. With 5
steps a third as many went back, and a shop's filters came before its lists: 619 of them instead of some 100."""

AT_ONCE = 4
"""Steps that it goes back then, at most: by its next turn the kind may have stopped growing."""


def rank_of(accounts: Sequence[Account]) -> int:
    """Return the number of a URL among its kind; *accounts* are those of its shapes, the most specific first."""
    kind = _kind(accounts)
    if kind.fetched >= DRY:
        return kind.queued
    return max(kind.queued, *(account.queued // KINDS for account in accounts))


def steps_of(candidate: Candidate, *, is_due: bool) -> int:
    """Return by how many steps to demote *candidate*, from 0 to STEPS - 1.

    When it *is_due*, which is when it has come out of the queue, growth counts in full. Before, it only does if it is
    sure: a request can be sent back, but not called forward when its kind has stopped growing.
    """
    accounts = candidate.accounts
    kind = _kind(accounts)
    rate = barrenness = known = 0.0
    judges = [account for account in accounts if account.is_of_query] if kind.is_of_query else accounts
    for account in reversed(judges):
        # A shape of many URLs is a kind by itself, of which nothing is known at first; one of few is like its folder.
        others = PRIOR / (account.queued + PRIOR)
        pages = account.lately
        weight = 1 / (pages + PRIOR)
        if kind.is_of_query:
            rate = (account.bred + PRIOR * (1 - others) + others * rate * PRIOR) * weight
        barrenness = (max(0, pages - account.brought) + others * barrenness * PRIOR) * weight
        known = (account.fetched * pages + known * PRIOR) * weight
    if not kind.is_of_query:
        rate = _own_growth(accounts[accounts.index(kind) :])
    pages = accounts[-1].fetched if rate > SUSPECT else kind.fetched
    growth = max(1.0, min(MOST_GROWTH, pages / SURE, rate * rate))
    if not is_due and growth < SURE_GROWTH and pages < SURE_PAGES:
        growth = 1.0
    rank = int(max(candidate.rank, pages * growth))
    if kind.is_of_query and not _is_of_list(candidate.url):
        rank = max(rank, accounts[-1].queued)  # all pages of a list first: its filters show nothing else
    if rate <= 1 and barrenness < 0.5 and known >= EVIDENCE:
        rank //= CHILDLESS
    folder = candidate.folder
    if folder is not None and folder.fetched < folder.queued and not folder.is_dry:
        rank = max(rank, folder.queued)  # plain addresses first: a query often shows the same page
    behind = (rank // FREE_RANK).bit_length() + _steps_of_address(candidate.url)
    behind += min(MOST_BARREN, max(0, candidate.barren - 1))
    most = RANK_STEPS if rate > SUSPECT else MOST_AT_REST
    return min(most, behind) + round((STEPS - 1 - RANK_STEPS) * barrenness)


def steps_later(candidate: Candidate, demoted: int) -> int:
    """Return by how many steps to demote *candidate* once more, which waited at *demoted* steps; 0: it is its turn."""
    more = steps_of(candidate, is_due=True) - demoted
    return min(more, AT_ONCE) if more >= LATER else 0


def breeds(accounts: Sequence[Account]) -> bool:
    """Whether the pages of a URL's kind lead to ever more of it; *accounts* are those of its shapes."""
    return _kind(accounts).breeds


def _steps_of_address(url: str) -> int:
    path, _, query = url.partition("?")
    parameters = 0
    for pair in query.split("&") if query else ():
        parameters += 1 if _is_number(pair) else CHOICE
    return min(MOST_PARAMETERS, parameters) + max(0, path.count("/") - 2 - FREE_SEGMENTS) // 2


def _is_of_list(url: str) -> bool:
    """Whether *url* has one parameter, which is a number: a page of a list, or an item."""
    return _is_number(url.partition("?")[2])


def _is_number(parameter: str) -> bool:
    return parameter.partition("=")[2].isdecimal()


def _kind(accounts: Sequence[Account]) -> Account:
    """Return the account of the URL's kind.

    With a query, that of the same parameters in any page of the folder. Without, that of its own shape; but a maze of
    words makes a shape of every depth (``/*/*``, ``/*/*/*``), so there it is that of the folder in which they begin.
    """
    own = accounts[0]
    if own.is_of_query:
        return accounts[1] if len(accounts) > 1 and accounts[1].is_of_query else own
    if "/*/*" in own.shape:
        folder = own.shape.rstrip("/*") + "/**"
        return next((account for account in accounts if account.shape == folder), own)
    return own


def _own_growth(accounts: Sequence[Account]) -> float:
    """Return how many new URLs of itself a page of the narrowest of *accounts* that is known leads to.

    What its pages lead to elsewhere is ranked there: the categories of a shop do not wait for their filters.
    """
    known = next((account for account in accounts if account.lately >= KNOWN), None)
    if known is None:
        return 0.0
    growth = known.loops / known.lately
    return growth if known is accounts[0] else min(growth, MOST_OF_FOLDER)
