"""Parts of a job that do not belong together, or to this crawl, are refused before the first request."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.job.inspect import inspect_job
from tests.support.engine import Engine, PlainSpider, opened, snapshot

if TYPE_CHECKING:
    from pathlib import Path

URLS = [f"http://host-{n // 5}.example/{n}" for n in range(10)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with pending requests, stopped cleanly."""
    with opened(tmp_path / "job") as engine:
        engine.push(*map(Request, URLS))
    return tmp_path / "job"


def content(job: Path) -> list[object]:
    """Return what is in the job; SQLite writes to its file on opening."""
    info = inspect_job(job)
    layers = [path.read_bytes() for path in sorted(job.rglob("*.bloom")) if path.is_file()]
    return [info.state, sorted(info.lanes), layers]


def test_another_spider_is_refused(job: Path) -> None:
    """It would use up the pending requests. The error names both; the job goes on with its own."""

    class Other(PlainSpider):
        name = "other"

    before = content(job)
    with pytest.raises(UnusableError, match=r"'site'.*'other'"):
        Engine(job, spider=Other)
    assert content(job) == before
    with opened(job) as engine:
        assert sorted(engine.drain()) == URLS


def test_other_url_rules_are_refused(job: Path) -> None:
    """Every URL would look new. The error names what has changed; with the old settings the job goes on."""
    with pytest.raises(UnusableError, match="rules"):
        Engine(job, {"BLOOM_URL_RULES": ["www"]})
    with opened(job) as engine:
        assert sorted(engine.drain()) == URLS


def test_another_fingerprinter_is_refused(job: Path) -> None:
    """As with other rules; also in a finished job, whose pages would all be fetched again."""

    class Mine:
        def fingerprint(self, request: Request) -> bytes:
            return request.url.encode()

    with opened(job) as engine:
        engine.drain()
    with pytest.raises(UnusableError, match="Mine"):
        Engine(job, {"REQUEST_FINGERPRINTER_CLASS": Mine})


def test_a_database_older_than_the_filter_is_refused(job: Path, tmp_path: Path) -> None:
    """Restored alone from a backup, it lacks requests whose pages the filter knows: they would never be fetched."""
    with opened(job) as engine:
        engine.push(Request("http://host-1.example/later"))
    later = tmp_path / "later"
    shutil.copytree(job, later)
    old = tmp_path / "old"
    shutil.copytree(job, old)
    with opened(job) as engine:
        engine.push(Request("http://host-1.example/latest"))
    for name in ("job.sqlite", "job.sqlite-wal", "job.sqlite-shm"):
        (job / "requests.bloom" / name).unlink(missing_ok=True)
    shutil.copy(old / "requests.bloom" / "job.sqlite", job / "requests.bloom" / "job.sqlite")
    with pytest.raises(UnusableError, match="verify --fix"):
        Engine(job)


@pytest.mark.parametrize("part", ["job.sqlite", "layer-000.bloom"])
def test_parts_of_two_jobs_are_refused(job: Path, tmp_path: Path, part: str) -> None:
    """Whichever of the two was swapped, the other's requests or pages do not go with it."""
    with opened(tmp_path / "other") as engine:
        engine.push(*map(Request, URLS[:3]))
    shutil.copy(tmp_path / "other" / "requests.bloom" / part, job / "requests.bloom" / part)
    with pytest.raises(UnusableError):
        Engine(job)


def test_a_filter_that_was_lost_learns_what_is_pending(job: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pages that were fetched are fetched again; those that are pending are not queued twice, and the log says so."""
    with opened(job) as engine:
        done = engine.start()
        assert done is not None
        engine.end(done)
    for path in (job / "requests.bloom").glob("layer-*"):
        path.unlink()
    with opened(job) as engine:
        assert any(record.levelname == "WARNING" for record in caplog.records)
        pushed = [url for url in URLS if engine.push(Request(url)) == [True]]
        assert pushed == [done.url]
        assert sorted(engine.drain()) == URLS


def test_a_filter_older_than_the_database_learns_what_is_pending(job: Path, tmp_path: Path) -> None:
    """A filter restored from a backup, or torn by a power failure, shows pages again, and loses none."""
    old = {path.name: path.read_bytes() for path in (job / "requests.bloom").glob("layer-*")}
    more = [f"http://host-3.example/{n}" for n in range(5)]
    with opened(job) as engine:
        engine.push(*map(Request, more))
    for name, content in old.items():
        (job / "requests.bloom" / name).write_bytes(content)
    with opened(job) as engine:
        assert not any(engine.push(*map(Request, URLS + more)))
        assert sorted(engine.drain()) == sorted(URLS + more)


@pytest.mark.parametrize("is_lost", [False, True])
def test_pages_of_unfiltered_requests_stay_new(tmp_path: Path, is_lost: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A link to the page of a pending unfiltered request is followed, whatever happened to the filter.

    A kill between a transaction and its watermark is no loss: the log says nothing of one.
    """
    with opened(tmp_path / "job") as engine:
        engine.push(Request(URLS[0], dont_filter=True))
        engine.commit(whole=False)
        snapshot(tmp_path / "job", tmp_path / "killed")
    if is_lost:
        for path in (tmp_path / "job" / "requests.bloom").glob("layer-*"):
            path.unlink()
    caplog.clear()
    with opened(tmp_path / ("job" if is_lost else "killed")) as engine:
        assert ("had lost" in caplog.text) == is_lost
        assert engine.push(Request(URLS[0])) == [True]
        assert engine.drain() == [URLS[0]] * 2


def test_a_job_that_was_moved_goes_on(job: Path, tmp_path: Path) -> None:
    """Nothing in it depends on its path."""
    shutil.move(job, tmp_path / "elsewhere")
    with opened(tmp_path / "elsewhere") as engine:
        assert sorted(engine.drain()) == URLS


def test_a_failed_opening_changes_and_locks_nothing(job: Path) -> None:
    """After any refusal, the right settings go on at once, in the same process."""
    wrong: list[dict[str, Any]] = [{"BLOOM_URL_RULES": ["www"]}, {"SCHEDULER_PRIORITY_QUEUE": "queue.Queue"}]
    for settings in wrong:
        before = content(job)
        with pytest.raises(BloomError):
            Engine(job, settings)
        assert content(job) == before
    copy = job.with_name("copy")
    with opened(job) as engine:
        snapshot(job, copy)
        assert sorted(engine.drain()) == URLS
