"""What the database of a job holds: figures, feeds, the job's state, and the batch that a commit writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy_bloom.frontier.lanes import Lane
    from scrapy_bloom.frontier.page import FailedRow
    from scrapy_bloom.job.changes import ItemRow, PageRow


class Figures(NamedTuple):
    """How far the crawl was at one moment. Counts are of the whole job, over all its runs."""

    time: float = 0.0
    run: int = 0
    urls: int = 0
    duplicates: int = 0
    pages: int = 0
    failures: int = 0
    http_errors: int = 0
    spider_errors: int = 0
    pending: int = 0
    nbytes: int = 0
    expected_lost: float = 0.0


class FeedState(NamedTuple):
    """How far one feed of ``FEEDS`` has got with its file."""

    batch: int = 1
    """Number of the file among the batches of the feed, from 1."""
    items: int = 0
    """Items that the feed has written to the file."""
    is_enclosed: bool = False
    """Whether the exporter writes an end, such as the closing bracket of a JSON array."""
    exporter: bytes = b""
    """A pickle: the first item, and the attributes of the exporter that have changed since it began."""


class FeedLength(NamedTuple):
    """What a commit notes of a feed file: how long the file was, and which bytes the commit appends to it."""

    path: str
    """As Scrapy opens it: a relative path stays relative."""
    place: str
    """The path from the job directory, without symbolic links; "" if there is none."""
    length: int = 0
    """Size of the file in bytes when the commit began, without :attr:`data`."""
    number: int = 0
    """Counts the appends to the file."""
    cycle: int = 0
    """:attr:`JobState.cycle` of the job that wrote it."""
    feeds: Mapping[str, FeedState] = MappingProxyType({})
    """The feeds that write to the file, as they stand in ``FEEDS``."""
    data: bytes = b""
    """The items that this commit appends. After a kill the file may lack some of it."""
    end: bytes = b""
    """What the exporters wrote behind all items when they ended. A later run that has more items cuts it off."""
    is_finished: bool = False
    """Whether no more is written to the file, so that no later run goes on with it."""

    @property
    def key(self) -> str:
        """The name of the file in notes."""
        return self.place or self.path

    @property
    def size(self) -> int:
        """Size of the file in bytes with all of :attr:`data`, and without :attr:`end`."""
        return self.length + len(self.data)

    @property
    def items(self) -> int:
        """How many items all feeds have written to the file."""
        return sum(state.items for state in self.feeds.values())

    @property
    def batch(self) -> int:
        """Number of the file among the batches of its feed, from 1."""
        return max((state.batch for state in self.feeds.values()), default=1)

    @property
    def template(self) -> str:
        """The first feed that writes to the file, as it stands in ``FEEDS``."""
        return next(iter(self.feeds), "")


class Feeds:
    """Where the items of done pages go. This class has no feeds: the feed exporter overrides it."""

    def write(self, feed: str, item: Any, *, is_acknowledged: bool = False) -> bool:  # noqa: ARG002 - no feeds here
        """Write *item*, of a page that is done, to *feed*; return False if that fails.

        *is_acknowledged*: a fleet's server knows that the page is done.
        """
        return False

    def flush(self) -> None:
        """Hand what was written to the operating system."""

    def notes(self) -> list[FeedLength]:
        """Return what a commit that begins notes of the files. Raise OSError if the disk is full."""
        return []

    def committed(self) -> None:
        """Append what the last notes have: their transaction is written."""


@dataclass(frozen=True)
class JobState:
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

    def next_run(self) -> JobState:
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
    pages: list[PageRow] = field(default_factory=list)
    """With ``BLOOM_CHANGES``, like *items*."""
    items: list[ItemRow] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)
    outdated_figures: list[float] = field(default_factory=list)
    """Times of the rows that *figures* replace."""
    state: JobState = JobState()

    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return self == Batch(state=self.state)

    def add(self, id_: int, lane: Lane, body: bytes) -> None:
        """Write the new request *id_* of *lane*."""
        self.lanes.setdefault(lane.id, lane)
        self.added[id_] = lane.id, body

    def note(self, topic: str, bodies: Mapping[str, bytes]) -> None:
        """Write *bodies* on *topic*, by key."""
        self.notes.update({(topic, key): body for key, body in bodies.items()})

    def leave_out(self, topic: str, known: dict[str, bytes]) -> None:
        """Leave out notes on *topic* that are as those *known*; the others are known from now on."""
        for key in [key for noted_topic, key in self.notes if noted_topic == topic]:
            body = self.notes[topic, key]
            if known.get(key, b"") == body:
                del self.notes[topic, key]
            known[key] = body
