"""Disks without room, and slow ones: the crawl goes on, what is at risk is said, and no page or item is lost for it."""

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, Site, start
from tests.support.engine import Engine, opened, wait_for_job
from tests.support.feeds import LINES, FeedRun

resource = pytest.importorskip("resource", reason="no RLIMIT_FSIZE and no fork() on Windows")

FEEDS = {"items.jl": LINES, "items.csv": {"format": "csv"}, "batch-%(batch_id)d.jl": {**LINES, "batch_item_count": 7}}
URLS = [f"http://site.test/{number}" for number in range(60)]


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mount a file system of *size* on a new directory below *directory*."""
    mount, umount, disk = shutil.which("mount"), shutil.which("umount"), directory / "disk"
    disk.mkdir()
    mounting = [str(mount), "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if not (mount and umount) or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs takes root on Linux")
    try:
        yield disk
    finally:
        subprocess.run([umount, "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Fill the file system of *disk*; if it has none of its own, let no file of this process grow."""
    if not disk.is_mount():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)) == 4096:
            pass


def make_room(disk: Path) -> None:
    (disk / "ballast").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.fixture(params=["limit", pytest.param("tmpfs", marks=pytest.mark.slow)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk that can be filled: by a limit on the size of files, or a file system of 3 MB."""
    with nullcontext(tmp_path) if request.param == "limit" else small_disk(tmp_path, "3m") as disk:
        yield disk
        make_room(disk)


def fetch(run: FeedRun, most: int = len(URLS)) -> list[int]:
    """Fetch pending pages, each with an item, and commit after each third. Return their numbers."""
    fetched: list[int] = []
    while len(fetched) < most and (request := run.engine.start()) is not None:
        fetched.append(int(request.url.rpartition("/")[2]))
        with run.engine.within(request):
            run.scrape({"n": fetched[-1]})
        run.engine.end(request)
        if len(fetched) % 3 == 0:
            run.commit()
    return fetched


def count(caplog: pytest.LogCaptureFixture, level: str) -> int:
    return sum(record.levelname == level and record.name.endswith("commits") for record in caplog.records)


def check(disk: Path) -> None:
    for name in ("items.jl", "batch-*.jl"):
        lines = [line for path in disk.glob(name) for line in path.read_text().splitlines()]
        assert sorted(json.loads(line)["n"] for line in lines) == list(range(len(URLS)))
    assert sorted((disk / "items.csv").read_text().split()) == sorted(["n", *map(str, range(len(URLS)))])


@pytest.mark.parametrize("then", ["room", "killed", "ended"])
def test_a_full_disk_costs_nothing(disk: Path, then: str, caplog: pytest.LogCaptureFixture) -> None:
    """One ERROR says that it is full, and one WARNING that it is not any more; a kill after that loses nothing. What a
    run that ends before that could not write is fetched again, and no item is lost or comes twice; one that comes to
    its end says so in a last ERROR."""
    run = FeedRun(disk, FEEDS)
    run.engine.push(*map(Request, URLS))
    run.commit()
    fetched = fetch(run, 9)
    fill(disk)
    at_risk = fetch(run, 20)
    assert (count(caplog, "ERROR"), count(caplog, "WARNING")) == (1, 0)
    if then == "ended":
        run.end("shutdown")
        assert count(caplog, "ERROR") == 2
    make_room(disk)
    if then == "room":
        run.commit()
        assert (count(caplog, "ERROR"), count(caplog, "WARNING")) == (1, 1)
        fetched += at_risk
    run = run.next_run() if then == "ended" else run.kill()
    assert sorted(fetched + fetch(run)) == list(range(len(URLS)))
    run.end()
    check(disk)


def test_a_job_whose_feed_has_no_room_does_not_count_as_stopped(tmp_path: Path) -> None:
    """The file of the feed cannot grow, and the database can, which keeps the item for the next run."""
    (tmp_path / "items.jl").write_bytes(b"{}" + b" " * 1_500_000 + b"\n")
    run = FeedRun(tmp_path, {"items.jl": LINES})
    run.engine.push(Request(URLS[0]))
    run.commit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    try:
        assert fetch(run) == [0]
        run.end("shutdown")
    finally:
        make_room(tmp_path)
    assert not inspect_job(tmp_path / "job").state.clean
    run = run.next_run()
    assert fetch(run) == []
    run.end()
    assert run.items()[1:] == [{"n": 0}]


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_start_is_said_to_be(tmp_path: Path) -> None:
    """However little room it has; nothing is said of damage, and with some room the crawl begins."""
    with small_disk(tmp_path, "600k") as disk:
        for room in range(0, 320, 20):
            (disk / "others").write_bytes(bytes(1024 * (600 - room)))
            problem = ""
            try:
                Engine(disk / "job").stop()
            except UnusableError as error:
                problem = str(error)
            if not problem:
                break
            assert "full" in problem or "No space" in problem
            shutil.rmtree(disk / "job", ignore_errors=True)
        assert room > 100
        (disk / "others").unlink()
        with opened(disk / "job") as engine:
            assert engine.push(Request("http://site.example/")) == [True]


def test_a_job_directory_deleted_during_the_crawl_is_said(tmp_path: Path) -> None:
    """The crawl goes on to its end; its feed has every item."""
    feed = tmp_path / "items.jl"
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "FEEDS": {str(feed): {"format": "jsonlines"}}}
    with Site({"/": ["/1", "/held"], "/1": [], "/held": ["/2", "/3"], "/2": [], "/3": []}) as site:
        running = start(site, tmp_path, settings)
        site.wait_for("/held")
        wait_for_job(tmp_path / "job", lambda info: info.state.runs)
        shutil.rmtree(tmp_path / "job")
        site.release.set()
        outcome = running.finish()
        assert len(feed.read_text().splitlines()) == len(site.hits) == 5
    assert outcome.stats["finish_reason"] == "finished"
    (line,) = [line for line in outcome.lines("ERROR") if "[scrapy_bloom" in line]  # Scrapy's own spider.state fails
    assert "deleted" in line
    assert not outcome.lines("CRITICAL")


class Connection(sqlite3.Connection):
    """A database on a disk that takes long to sync, or has no room."""

    seconds, is_full = 0.0, False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            time.sleep(self.seconds)
            if self.is_full:
                raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *values)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have databases with these connections."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Connection, **kwargs))
    return monkeypatch


def test_what_is_taken_back_on_a_full_disk_stays_so(tmp_path: Path, patched: pytest.MonkeyPatch) -> None:
    """Though a commit with its fingerprint is under way, which fails. What else was in that is written in the end."""
    patched.setattr(commits, "COMMIT_SECONDS", 0.0)
    one, two, three = (Request(f"http://site.example/{number}") for number in "123")
    with opened(tmp_path) as engine:
        engine.push(one, two)
        engine.drain()
        patched.setattr(Connection, "is_full", True)
        engine.store.commit()  # which is under way
        engine.crawl.forget(one)
        engine.push(three)
        patched.setattr(Connection, "is_full", False)
    with opened(tmp_path) as engine:
        assert engine.push(one, two, three) == [True, False, False]
        assert sorted(engine.drain()) == [one.url, three.url]


@pytest.mark.slow
def test_a_loop_that_never_yields_waits_for_the_disk(tmp_path: Path, patched: pytest.MonkeyPatch) -> None:
    """The requests of one callback do not pile up in memory while commits are slow: nearly all are in the file."""
    patched.setattr(Connection, "seconds", 0.3)
    count = 3 * commits.COMMIT_ROWS
    with opened(tmp_path) as engine:
        engine.push(*[Request(f"http://site.example/{number}") for number in range(count)])
        assert inspect_job(tmp_path).state.pending >= count - 2 * commits.COMMIT_ROWS
    with opened(tmp_path) as engine:
        assert len(engine.scheduler) == count
