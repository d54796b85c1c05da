"""What can happen to the files of a job, in words, and how a crawl takes it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError
from scrapy_bloom.job import commits
from scrapy_bloom.job.records import Batch, FeedLength, FeedState
from scrapy_bloom.job.verify import problems_of
from tests.support.engine import Engine, snapshot

HOSTS = 5

REFUSED, SHOWN_AGAIN, WHOLE = "refused", "shown again", "whole"


def verify_job(jobdir: str | Path) -> list[str]:
    """Return all problems of the job in *jobdir*."""
    problems = problems_of(jobdir)
    return [*problems.of_filter, *problems.of_database]


@dataclass(frozen=True)
class Job:
    """A job directory, and what a crawl has asked for and not finished."""

    directory: Path
    pending: tuple[str, ...]

    @property
    def files(self) -> Path:
        return self.directory / "requests.bloom"

    @property
    def database(self) -> Path:
        return self.files / "job.sqlite"

    @property
    def log(self) -> Path:
        return self.files / "job.sqlite-wal"

    @property
    def layer(self) -> Path:
        return self.files / "layer-000.bloom"

    @property
    def feed(self) -> Path:
        return self.directory.parent / "items.jl"

    def copy(self, name: str) -> Job:
        """Return a copy beside the directory; there is one of that name at a time."""
        copied = Job(self.directory.with_name(name), self.pending)
        shutil.rmtree(copied.directory, ignore_errors=True)
        shutil.copytree(self.directory, copied.directory)
        return copied


def urls(numbers: Sequence[int], site: str = "example") -> list[str]:
    return [f"http://host-{number % HOSTS}.{site}/{number:06}" for number in numbers]


def begun(directory: Path, count: int = 300, done: int = 60, *, site: str = "example", moments: int = 1) -> list[Job]:
    """Return copies of a job of *count* pages, *done* of which are fetched: as a kill leaves it at so many moments.

    The last is followed by one that was stopped cleanly.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "COMMIT_SECONDS", 0.0)
        return _begun(directory, count, done, site, moments)


def _begun(directory: Path, count: int, done: int, site: str, moments: int) -> list[Job]:
    engine = Engine(directory / "running")
    feed = directory / "items.jl"
    feed.write_bytes(b"x" * 5_000)
    note = FeedLength(str(feed), "", 5_000, feeds={str(feed): FeedState(items=100)})
    engine.store.database.write(Batch(feeds=[note], state=engine.store.database.state))
    jobs, finished = [], set[str]()
    for moment in range(moments):
        numbers = range(count * moment // moments, count * (moment + 1) // moments)
        asked = urls(range(numbers.stop), site)
        engine.push(*[Request(url, priority=int(url[-2])) for url in asked[numbers.start :]])
        engine.commit()
        for _ in range(done // moments):
            request = engine.fetch()
            engine.end(request)
            finished.add(request.url)
        engine.commit()
        engine.commit()
        jobs.append(Job(directory / f"killed-{moment}", tuple(url for url in asked if url not in finished)))
        snapshot(engine.jobdir, jobs[-1].directory)
    engine.stop()
    return [*jobs, Job(directory / "running", jobs[-1].pending)]


def flip(path: Path, offset: int, mask: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= mask
    path.write_bytes(content)


def crawl(job: Job) -> tuple[str, list[str]]:
    """Crawl *job* to its end, and return how it was taken, and the pages that came.

    A page that neither comes nor is new when a link leads to it is lost, which fails.
    """
    try:
        engine = Engine(job.directory)
    except BloomError as error:
        return REFUSED if error.advice else "no advice", []
    try:
        came = engine.drain()
        if engine.crawl.core.has_failed:
            return REFUSED, came
        lacking = [url for url in job.pending if url not in set(came)]
        shown = engine.push(*map(Request, lacking))
        assert all(shown), f"{len(shown) - sum(shown)} of {len(job.pending)} pages are lost in silence"
        again = engine.push(*[Request(url) for url in job.pending])
        assert not any(again), "a page was shown twice"
        assert job.feed.stat().st_size == 5_000, "items were cut off"
        return SHOWN_AGAIN if lacking else WHOLE, came
    finally:
        engine.stop()
