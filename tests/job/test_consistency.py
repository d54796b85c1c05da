"""Parts of a job that do not belong together, or to this crawl, are refused; and what is written before what."""

import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom import open_filter
from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.filter.layerfile import LayerFile
from scrapy_bloom.job.inspect import inspect_job
from tests.support.engine import PATIENCE, Engine, PlainSpider, opened, snapshot
from tests.support.feeds import FeedRun

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
    """It would use up the pending requests. The error names both; the job goes on with its own. So it is when the job
    has ended, and a delta crawl would begin it anew."""

    class Other(PlainSpider):
        name = "other"

    before = content(job)
    with pytest.raises(UnusableError, match=r"'site'.*'other'"):
        Engine(job, spider=Other)
    assert content(job) == before
    with opened(job) as engine:
        assert sorted(engine.drain()) == URLS
    with pytest.raises(UnusableError, match=r"'site'.*'other'"):
        Engine(job, {"BLOOM_DELTA": str(job.with_name("delta"))}, spider=Other)


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


# -- what a power failure or a failed crawl finds ----------------------------------------------------------------------

PAGES = [f"http://a.example/{n}" for n in range(300)]


def test_bits_that_a_power_failure_takes_are_redone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are as at their last sync, before all pages: the redo list has the commits since then."""
    is_fast, fsync = threading.Event(), LayerFile.fsync

    def slow(layer: LayerFile) -> None:
        assert is_fast.wait(PATIENCE)
        fsync(layer)

    engine = Engine(tmp_path / "job")
    [path] = (tmp_path / "job").rglob("layer-*.bloom")
    on_disk = path.read_bytes()
    monkeypatch.setattr(LayerFile, "fsync", slow)
    for n in range(0, len(PAGES), 150):
        engine.push(*map(Request, PAGES[n : n + 150]))
        engine.commit()
        engine.drain()
        engine.commit()
    snapshot(tmp_path / "job", tmp_path / "copy")
    is_fast.set()
    engine.stop()
    [path] = (tmp_path / "copy").rglob("layer-*.bloom")
    path.write_bytes(on_disk)
    with opened(tmp_path / "copy") as engine:
        assert not any(engine.push(*map(Request, PAGES)))


def test_what_counts_as_synced_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits that are set while a sync is under way, after it has written theirs, are not on disk yet."""
    on_disk: dict[str, bytes] = {}
    numbers, fsync = count(1), LayerFile.fsync

    def add_meanwhile(layer: LayerFile) -> None:
        fsync(layer)
        on_disk[layer.path.name] = layer.path.read_bytes()
        number = next(numbers)
        chain.add(b"%d" % number)
        chain.watermark = number

    with open_filter(tmp_path / "filter", 1_000, 1e-6) as chain:
        monkeypatch.setattr(LayerFile, "fsync", add_meanwhile)
        chain.add(b"0")
        chain.sync()
        chain.sync()
        synced = chain.synced
        assert synced > 0
        (tmp_path / "copy").mkdir()
        for name, body in on_disk.items():
            (tmp_path / "copy" / name).write_bytes(body)
        monkeypatch.undo()
    with open_filter(tmp_path / "copy", 1_000, 1e-6) as copy:
        assert all(b"%d" % number in copy for number in range(1, synced + 1))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing here says which file a descriptor is of")
def test_bytes_of_a_feed_are_on_disk_before_the_job_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of a commit has its own bytes. The file has all bytes before them, also after a power failure."""
    on_disk: dict[str, int] = {}
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        on_disk[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", note)
    run = FeedRun(tmp_path, {"items.jl": {"format": "jsonlines"}})
    for number in range(4):
        run.give({"n": number})
        run.commit()
        for feed in inspect_job(tmp_path / "job").feeds:
            assert on_disk.get(feed.path, 0) >= feed.length
    assert on_disk[str(tmp_path / "items.jl")] > 0
    run.end()


@pytest.mark.parametrize("has_failed", [False, True])
def test_scrapys_scheduler_is_kept_out_of_a_job_that_failed(tmp_path: Path, has_failed: bool) -> None:
    """Nothing is pending in either case; of a crawl that failed, pages may be missing that only the job knows."""
    engine = Engine(tmp_path / "job")
    engine.push(Request(PAGES[0]))
    engine.drain()
    if has_failed:
        engine.crawl.core.fail(UnusableError("The job", "cannot be gone on with", advice="Begin anew."))
    engine.stop()
    assert (tmp_path / "job" / "requests.queue").exists() == has_failed
