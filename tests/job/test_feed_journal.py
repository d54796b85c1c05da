"""The journal of a worker's feeds, over a kill between its steps: what the next run finds, and writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from scrapy_bloom.job.feeds import FeedJournal
from tests.support.engine import ItemList

CALLS = ("0 token 1", "0 token 2")


class Run:
    """One run of a worker, whose feed is a list."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.written: list[bytes] = []
        self.journal = FeedJournal(directory, ItemList(self.written))
        self.journal.open_feeds()

    def begin(self, call: str, *pages: bytes) -> None:
        """Begin a call that ends *pages*, each with one item."""
        held = {}
        for place, data in enumerate(pages):
            assert self.journal.hold("items.jl", data)
            held[place] = self.journal.taken()
        self.journal.begin(call, held)

    def killed(self) -> Run:
        """Return the next run, which finds the files as they are."""
        copy = self.directory.with_name(f"{self.directory.name}-")
        shutil.copytree(self.directory, copy)
        self.journal.close("shutdown")
        return Run(copy)


def test_what_is_refused_stays_so_whatever_comes_after(tmp_path: Path) -> None:
    """The server remembers what its last call refused; the journal what earlier calls refused."""
    run = Run(tmp_path / "job")
    run.begin(CALLS[0], b"refused", b"taken")
    run.journal.end(CALLS[0], [0])
    run.begin(CALLS[1], b"in doubt")
    again = run.killed()
    assert again.journal.in_doubt == [*CALLS]
    again.journal.end(CALLS[0], [])  # made before the last one that the server knows
    again.journal.drop(CALLS[1])
    again.journal.close("finished")
    assert again.written == [b"taken"]


def test_a_call_that_was_written_is_not_in_doubt(tmp_path: Path) -> None:
    """A commit drops the notes of the calls whose items it has, and no others."""
    run = Run(tmp_path / "job")
    for call in CALLS:
        run.begin(call, call.encode())
    run.journal.end(CALLS[0], [])
    run.journal.commit(is_last=True)
    again = run.killed()  # before the thread has written the commit
    assert again.journal.in_doubt == [*CALLS]
    again.journal.end(CALLS[0], [])
    again.journal.commit(is_last=True)
    again.journal.write()
    third = again.killed()
    assert third.journal.in_doubt == [CALLS[1]]
    assert again.written == [CALLS[0].encode()]
    third.journal.close("finished")


def test_a_call_that_is_made_again_is_noted_once(tmp_path: Path) -> None:
    """The answer got lost, say."""
    run = Run(tmp_path / "job")
    for _ in range(2):
        run.begin(CALLS[0], b"item")
    run.journal.end(CALLS[0], [])
    run.journal.close("finished")
    assert run.written == [b"item"]
