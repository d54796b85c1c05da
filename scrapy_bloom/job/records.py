"""What the database of a job holds: figures, feeds, the job's state, and the batch that a commit writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy_bloom.frontier.lanes import Lane


class Figures(NamedTuple):
    """How far the crawl was at one moment. Counts are of the whole job, over all its runs."""

    time: float
    run: int
    urls: int
    duplicates: int
    pages: int
    failures: int
    http_errors: int
    spider_errors: int
    pending: int
    nbytes: int
    expected_lost: float


class FailedRow(NamedTuple):
    """A request that has failed for good."""

    url: str
    host: str
    reason: str
    time: float
    """Seconds since 1970."""
    body: bytes | None = None
    """The request as bytes, as it was stored while it was pending; None if it cannot be serialized."""


class FeedLength(NamedTuple):
    """What a commit notes of a feed file: how long the file was, and which bytes the commit appends to it."""

    path: str
    """As Scrapy opens it: a relative path stays relative."""
    length: int
    """Size of the file in bytes when the commit began, without :attr:`data`."""
    batch: int
    """Number of the file among the batches of its feed, from 1."""
    items: int
    """Items in the file, those of :attr:`data` included."""
    template: str
    """The feed, as it stands in ``FEEDS``."""
    place: str = ""
    """The path from the job directory."""
    cycle: int = 0
    """:attr:`State.cycle` of the job that wrote it."""
    columns: Any = None
    """The fields that the exporter took from the first item: a list, or a mapping to output names."""
    data: bytes = b""
    """What this commit appends to the file. After a kill the file may lack some of it."""
    is_finished: bool = False
    """Whether no more is written to the file, so that no later run goes on with it."""

    @property
    def size(self) -> int:
        """Size of the file in bytes with all of :attr:`data`."""
        return self.length + len(self.data)


class Feed(Protocol):
    """A feed exporter that writes the items of a page when the page is committed."""

    def flush(self) -> None:
        """Hand what was written to the operating system."""

    def lengths(self) -> list[FeedLength]:
        """Flush the files that are part of the commit, and return how long they are, if that has changed."""


@dataclass(frozen=True)
class State:
    """What a job knows of itself, written with each commit."""

    spider: str = ""
    """Name of the spider whose job it is; "" before its first run."""
    filter: str = ""
    """Id of the chain beside the database."""
    key_space: Mapping[str, str] | None = None
    """What makes the fingerprints; None if they are not ours."""
    last_id: int = 0
    """The largest id ever given to a request."""
    pending: int = 0
    """Rows in the table of requests."""
    in_flight: int = 0
    """How many requests were handed out and not done."""
    runs: int = 0
    """How often the job was opened."""
    cycle: int = 0
    """How often a finished job was begun anew. In one cycle, each start request is made once."""
    clean: bool = True
    """Whether the last run closed it."""
    pages_per_host: Mapping[str, int | None] | None = None
    """``BLOOM_PAGES_PER_HOST`` of the last run."""
    finish_reason: str = ""
    """Why the last run ended, in Scrapy's words; "" while it runs, and after a kill."""

    def next_run(self) -> State:
        """Return the state while the next run goes on with the job, or begins it anew if it is finished."""
        return replace(self, runs=self.runs + 1, cycle=self.cycle + self.is_finished, clean=False, finish_reason="")

    @property
    def is_finished(self) -> bool:
        """Whether the next run begins anew: the last one ended by itself, with nothing pending."""
        return self.clean and not self.pending and self.finish_reason in {"", "finished"}


@dataclass
class Batch:
    """What one transaction writes."""

    lanes: dict[int, Lane] = field(default_factory=dict)
    """Those of *added*, by id."""
    added: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Requests by id: their lane and body."""
    done: list[tuple[int, int]] = field(default_factory=list)
    """Rows to delete: lane, id."""
    fingerprints: dict[bytes, None] = field(default_factory=dict)
    """New fingerprints, in order. Until their bits are synced, the redo list is the only safe place that knows them."""
    feeds: list[FeedLength] = field(default_factory=list)
    notes: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Other notes, by topic and key."""
    failed: list[FailedRow] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    """Fingerprints that are taken back with this commit. The filter forgets them once it is written."""
    put_back: list[int] = field(default_factory=list)
    """Ids of failed requests that are pending again."""
    figures: list[Figures] = field(default_factory=list)
    outdated_figures: list[float] = field(default_factory=list)
    """Times of the rows that *figures* replace."""
    state: State = State()

    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        changes = self.added, self.done, self.fingerprints, self.feeds
        return not any(changes) and not any((self.notes, self.failed, self.forgotten, self.put_back, self.figures))

    def note(self, topic: str, bodies: Mapping[str, bytes]) -> None:
        """Write *bodies* on *topic*, by key."""
        self.notes.update({(topic, key): body for key, body in bodies.items()})
