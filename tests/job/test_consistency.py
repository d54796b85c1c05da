"""Parts of a job that do not belong together, or to this crawl, are refused before the first request."""

from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.job.inspect import inspect_job
from tests.support.engine import Engine, PlainSpider, opened, snapshot

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


def test_another_fingerprinter_is_refused(job: Path) -> None:
    """As with other rules; also in a finished job, whose pages would all be fetched again."""

    class Mine:
        def fingerprint(self, request: Request) -> bytes:
            return request.url.encode()

    with opened(job) as engine:
        engine.drain()
    with pytest.raises(UnusableError, match="Mine"):
        Engine(job, {"REQUEST_FINGERPRINTER_CLASS": Mine})


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
