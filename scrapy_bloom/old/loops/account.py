"""What is known about one shape: how many of its pages came, what they brought, and what they led to.

Knows no other shape and decides nothing: ``demotion`` ranks by it, ``guard`` parks by it.
"""

from __future__ import annotations

from typing import NamedTuple

DRY = 25
"""Pages of a shape in a row that bring nothing, and link to nothing new, before it is parked. The longest such run
in one folder of 7,692 pages of documentation was 1."""

DRY_SOON = 8
"""The same for a shape that breeds, and for one that has run dry before and then brought something after all."""

BREEDS = 2
"""New URLs of its own kind on a page, past which a kind breeds: the pages of a list have about one each, those of a
shop's filters and of mazes four and more."""

KNOWN = 10
"""Pages of a shape after which its growth is taken from itself alone."""

EVIDENCE = 5
"""Pages of a shape that must have been fetched before it can speak for itself."""

LATELY = 128
"""Pages over which rates are taken: what a shape did a thousand pages ago says little about its next ones."""

RECENTLY = 16
"""Pages over which it is judged whether those under way are expected to bring something."""


class AccountRow(NamedTuple):
    """An account as it is stored; the fields are those of :class:`Account`."""

    id: int
    shape: str
    fetched: int
    dry: int
    queued: int
    tried: int
    strangers: int
    lately: int
    bred: int
    brought: int
    loops: int
    told: int
    pardoned: int
    example: str


class Account:
    """The counts of one shape."""

    __slots__ = (
        "bred",
        "brought",
        "dry",
        "example",
        "fetched",
        "has_bred",
        "has_run_dry",
        "id",
        "is_of_query",
        "lately",
        "loops",
        "pardoned",
        "queued",
        "recently",
        "shape",
        "strangers",
        "tried",
        "under_way",
    )

    def __init__(self, id_: int, shape: str) -> None:
        self.id = id_
        self.shape = shape
        self.is_of_query = "?" in shape and not shape.endswith("?*")
        """Whether it is a shape of certain parameters, and not of a path or folder."""
        self.fetched = 0
        """Pages that have come back."""
        self.dry = 0
        """Of the last ones in a row, those that brought nothing."""
        self.under_way: list[int] = []
        """For each page of it that is being fetched, if any are counted: when that is lost. Not stored."""
        self.recently = 0.0
        """Share of its last RECENTLY pages that brought something themselves, not by what they lead to. Not stored."""
        self.queued = 0
        """URLs that were new to the filter."""
        self.tried = 0
        """URLs that came out of the queue while the shape was dry."""
        self.strangers = 0
        """Of these, the ones whose own shape had not been fetched yet."""
        self.lately = 0
        """Pages that have come back; this and the next four are halved at LATELY, so that the last pages count most."""
        self.bred = 0
        """New URLs of the same section that were found on them, but for kinds that bring nothing."""
        self.loops = 0
        """New URLs of this very shape that were found on them."""
        self.brought = 0
        """Pages with news, of these and of those they have led to."""
        self.has_run_dry = False
        """Whether it has run dry at least once. The log has a line for the first time only."""
        self.has_bred = False
        """Whether it bred at a time when it was dry. Once its links have all been found, it seems not to any more."""
        self.pardoned = False
        """Whether a person has taken its verdict back."""
        self.example = ""

    @classmethod
    def of_row(cls, row: AccountRow) -> Account:
        """Return the account that was stored as *row*."""
        account = cls(row.id, row.shape)
        account.fetched, account.dry, account.queued, account.tried = row.fetched, row.dry, row.queued, row.tried
        account.strangers, account.lately = row.strangers, row.lately
        account.bred, account.brought, account.loops = row.bred, row.brought, row.loops
        account.has_run_dry, account.has_bred = row.told > 0, row.told > 1
        account.pardoned, account.example = bool(row.pardoned), row.example
        account.recently = 1.0  # it is not known: at worst some more are fetched
        return account

    def row(self) -> AccountRow:
        """Return what is to be stored."""
        return AccountRow(
            self.id,
            self.shape,
            self.fetched,
            self.dry,
            self.queued,
            self.tried,
            self.strangers,
            self.lately,
            self.bred,
            self.brought,
            self.loops,
            self.has_run_dry + self.has_bred,
            int(self.pardoned),
            self.example,
        )

    @property
    def limit(self) -> int:
        """How many of its pages in a row may bring nothing."""
        return DRY_SOON if self.has_run_dry or self.breeds else DRY

    @property
    def must_wait(self) -> bool:
        """Whether its pages are to come back before more are fetched: it is like a maze, and has run dry before."""
        return self.has_run_dry and self.is_like_a_maze

    @property
    def patience(self) -> int:
        """How many more of its pages may bring nothing before it has dried up.

        Where it must wait, those under way count as if they did, unless most of the last ones have brought something.
        """
        expected = len(self.under_way) if self.under_way and self.must_wait and not self.has_own_news else 0
        return self.limit - self.dry - expected

    @property
    def has_dried_up(self) -> bool:
        """Whether its last pages have brought nothing for long enough, whatever a person says of it."""
        return self.patience <= 0

    @property
    def is_dry(self) -> bool:
        """Whether to park its URLs."""
        return self.has_dried_up and not self.pardoned

    @property
    def breeds(self) -> bool:
        """Whether its pages lead to ever more of it."""
        return self.lately >= KNOWN and (self.bred if self.is_of_query else self.loops) > BREEDS * self.lately

    @property
    def is_like_a_maze(self) -> bool:
        """Whether it breeds, or bred at a time when it was dry."""
        return self.has_bred or self.breeds

    @property
    def is_productive(self) -> bool:
        """Whether most of its pages bring something, one of the last EVIDENCE ones among them."""
        return self.fetched >= EVIDENCE and self.dry < EVIDENCE and not self.is_barren

    @property
    def is_rich(self) -> bool:
        """Whether most of its last pages bring something themselves, or each leads to more than BREEDS that do.

        Of a calendar's days with entries, each counts for itself and for the day before: one in three is productive.
        """
        return self.is_productive and (self.has_own_news or self.brought > BREEDS * self.lately)

    @property
    def has_own_news(self) -> bool:
        """Whether half of its last RECENTLY pages or more have brought something themselves."""
        return self.recently >= 0.5

    @property
    def is_promising(self) -> bool:
        """Whether it is too new to be productive, and most of its few pages have brought something."""
        return 0 < self.fetched < EVIDENCE and self.brought > self.lately / 2

    @property
    def is_barren(self) -> bool:
        """Whether few of its pages bring news, themselves or by what they lead to."""
        return self.lately >= EVIDENCE and self.brought <= self.lately / 2

    def note(self, *, is_news: bool) -> None:
        """Count a page that has come back."""
        self.fetched += 1
        self.lately += 1
        if self.lately >= LATELY:
            self.lately //= 2
            self.bred //= 2
            self.loops //= 2
            self.brought //= 2
        self.brought += is_news
        self.recently += (is_news - self.recently) / min(self.fetched, RECENTLY)
        self.dry = 0 if is_news else self.dry + 1
