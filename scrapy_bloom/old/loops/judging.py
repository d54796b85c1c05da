"""Which shape of a URL decides whether it is fetched: :func:`judge_of`.

Of the shapes of a URL the most specific one that has brought something lately decides: then nothing is held back. One
that is dry has a say only if none below it is productive, so a good list in a dry folder goes on, and a trap that makes
a shape of every page is caught by its folder. Below a folder that breeds or bred, and has run dry, a shape needs more
news to go on, and another folder more pages: a calendar has entries on some days, and a shop's filters find the last
products now and then, each under another one. Knows no request and no page, and changes no account.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import mmh3

from scrapy_bloom.old.loops.account import DRY, EVIDENCE, Account

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_bloom.old.loops.account import AccountRow
    from scrapy_bloom.old.loops.shapes import Shapes


@lru_cache(20_000)
def number_of(shape: str) -> int:
    """Return the number of the account of *shape*: 64 bits of its MurmurHash3."""
    number: int = mmh3.hash64(shape)[0]
    return number


def accounts_in(rows: Iterable[AccountRow]) -> dict[int, Account]:
    """Return the accounts that were stored as *rows*, by their numbers."""
    return {row.id: Account.of_row(row) for row in rows}


def known_accounts(
    url: str, shapes: Shapes, accounts: Mapping[int, Account]
) -> tuple[list[Account], list[Account], list[Account]]:
    """Return those of *accounts* that judge *url*, in the three groups of :meth:`Shapes.judges_of`."""
    own, fewer, others = (
        [accounts[number] for number in map(number_of, some) if number in accounts] for some in shapes.judges_of(url)
    )
    return own, fewer, others


def folder_of(own: Account, accounts: Mapping[int, Account]) -> Account | None:
    """Return which of *accounts* is of the pages without a query in the folder of a URL, whose shape has *own*."""
    folder = own.shape.partition("?")[0].rstrip("/").rpartition("/")[0]
    return accounts.get(number_of(f"{folder}/**"))


def judge_of(url: str, shapes: Shapes, accounts: Mapping[int, Account]) -> Account | None:
    """Return which of *accounts* has run dry and parks *url*, or None."""
    own, fewer, others = known_accounts(url, shapes, accounts)
    return judge_among(own, fewer, others, accounts)


def judge_among(
    own: Sequence[Account], fewer: Sequence[Account], others: Sequence[Account], accounts: Mapping[int, Account]
) -> Account | None:
    """Return which of the accounts of a URL has run dry and parks it, or None.

    The first three are what :func:`known_accounts` returns, *accounts* all that there are.
    """
    judge = _first_dry(own, fewer, others)
    return None if judge is None or _is_pardoned((*own, *others), accounts) else judge


def _is_pardoned(some: Iterable[Account], accounts: Mapping[int, Account]) -> bool:
    """Whether a person has taken back the verdict on one of *some*; that on a folder holds for queries in it, too."""
    for account in some:
        folder = accounts.get(number_of(account.shape[:-2])) if account.shape.endswith("/**?*") else None
        if account.pardoned or (folder is not None and folder.pardoned):
            return True
    return False


def _first_dry(own: Sequence[Account], fewer: Sequence[Account], others: Sequence[Account]) -> Account | None:
    if own and own[0].is_promising:
        return None
    # Other queries say nothing for one whose own kind has brought nothing lately: pages of a list for its filters.
    has_failed = any(account.is_of_query and account.dry >= EVIDENCE for account in own)
    for accounts, may_protect in ((own, True), (fewer, False), (others, not has_failed)):
        for account in accounts:
            if account.has_dried_up:
                return account
            if may_protect and account.is_productive and not _is_outweighed(account, others):
                return None
    return None


def _is_outweighed(account: Account, folders: Sequence[Account]) -> bool:
    """Whether *account* is too weak to go on below one of *folders* that is like a maze and has run dry."""
    is_weak = not account.is_rich or (account in folders and account.fetched < DRY)
    return is_weak and any(folder.has_dried_up and folder.is_like_a_maze for folder in folders)


def with_evidence(accounts: Sequence[Account]) -> Account | None:
    """Return the account that says how to rank a URL: its shape's own, or the next wider one with DRY pages."""
    if accounts[0].fetched >= EVIDENCE:
        return accounts[0]
    return next((account for account in accounts if account.fetched >= DRY), None)
