"""Disks without room, and slow ones: the crawl goes on, what is at risk is said, and no page or item is lost for it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, Site, start
from tests.support.engine import Engine, opened, wait_for_job
from tests.support.killed_crawls import CrawlOfSite, make_room, run, run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE and no fork() there")

PAGES = 103


@pytest.fixture(params=["limit", pytest.param("tmpfs", marks=pytest.mark.slow)])
def crawl(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrawlOfSite]:
    """A crawl on a disk that can be filled: by a limit on the size of files, or a file system of 3 MB."""
    mount, umount, disk = shutil.which("mount"), shutil.which("umount"), tmp_path / "disk"
    crawl = CrawlOfSite(tmp_path, PAGES, patience=20)
    if request.param == "limit":
        yield crawl
        return
    if not (mount and umount):
        pytest.skip("there is no mount here")
    disk.mkdir()
    mounting = [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs takes root on Linux")
    try:
        yield replace(crawl, disk=str(disk))
    finally:
        subprocess.run([umount, str(disk)], check=True)


def said(crawl: CrawlOfSite, level: str) -> list[str]:
    return [line for line in crawl.log.splitlines() if f"[scrapy_bloom.job.commits] {level}" in line]


def test_a_full_disk_costs_nothing_once_there_is_room(crawl: CrawlOfSite) -> None:
    """One ERROR says that it is full, one WARNING that it is not any more; a kill after that loses nothing."""
    assert run([replace(crawl, full=(12, 36), kill_page=50)]) == [-9]
    assert len(said(crawl, "ERROR")) == len(said(crawl, "WARNING")) == 1
    finished, fetched = crawl.finished(), len(crawl.fetched())
    assert len(finished) > 20, "what waited in memory was written"
    run_to_the_end(crawl)
    crawl.check(may_fail=True)
    assert not finished & set(crawl.fetched()[fetched:])


@pytest.mark.slow
def test_a_kill_on_a_full_disk_resumes_from_the_last_commit(crawl: CrawlOfSite) -> None:
    """What could not be written is fetched again, and no item is lost or comes twice."""
    assert run([replace(crawl, full=(12, 0), kill_page=40)]) == [-9]
    assert len(said(crawl, "ERROR")) == 1
    make_room(crawl)
    run_to_the_end(crawl)
    crawl.check(may_fail=True)


@pytest.mark.slow
def test_a_crawl_that_ends_on_a_full_disk_says_so(crawl: CrawlOfSite) -> None:
    """It comes to its end, its last ERROR says what the next run does again, and that run does it."""
    assert run([replace(crawl, full=(12, 0))]) == [0]
    assert len(said(crawl, "ERROR")) == 2
    make_room(crawl)
    run_to_the_end(crawl)
    crawl.check(may_fail=True)


def problem_at_the_start(job: Path) -> str:
    try:
        Engine(job).stop()
    except UnusableError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_start_is_said_to_be(tmp_path: Path) -> None:
    """However little room it has; nothing is said of damage, and with some room the crawl begins."""
    mount, umount, disk = shutil.which("mount"), shutil.which("umount"), tmp_path / "disk"
    disk.mkdir()
    mounting = [str(mount), "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if not (mount and umount) or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs takes root on Linux")
    try:
        for room in range(0, 320, 20):
            (disk / "others").write_bytes(bytes(1024 * (600 - room)))
            problem = problem_at_the_start(disk / "job")
            if not problem:
                break
            assert "full" in problem or "No space" in problem
            shutil.rmtree(disk / "job", ignore_errors=True)
        assert room > 100
        (disk / "others").unlink()
        with opened(disk / "job") as engine:
            assert engine.push(Request("http://site.example/")) == [True]
    finally:
        subprocess.run([umount, str(disk)], check=True)


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


class SlowConnection(sqlite3.Connection):
    """A database on a disk that takes long to sync."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            time.sleep(0.3)
        return super().execute(sql, *values)


class FullConnection(sqlite3.Connection):
    """A database on a disk that has no room for some time."""

    is_full = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.is_full and sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *values)


def test_what_is_taken_back_on_a_full_disk_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a commit with its fingerprint is under way, which fails. What else was in that is written in the end."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=FullConnection, **kwargs))
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 0.0)
    one, two, three = (Request(f"http://site.example/{number}") for number in "123")
    with opened(tmp_path) as engine:
        engine.push(one, two)
        engine.drain()
        monkeypatch.setattr(FullConnection, "is_full", True)
        engine.store.commit()  # which is under way
        engine.crawl.decisions.forget(one)
        engine.push(three)
        monkeypatch.setattr(FullConnection, "is_full", False)
    with opened(tmp_path) as engine:
        assert engine.push(one, two, three) == [True, False, False]
        assert sorted(engine.drain()) == [one.url, three.url]


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=SlowConnection, **kwargs))


@pytest.mark.slow
def test_a_loop_that_never_yields_waits_for_the_disk(slow_disk: None, tmp_path: Path) -> None:
    """The requests of one callback do not pile up in memory while commits are slow: nearly all are in the file."""
    count = 3 * commits.COMMIT_ROWS
    with opened(tmp_path) as engine:
        engine.push(*[Request(f"http://site.example/{number}") for number in range(count)])
        assert inspect_job(tmp_path).state.pending >= count - 2 * commits.COMMIT_ROWS
    with opened(tmp_path) as engine:
        assert len(engine.scheduler) == count
