"""DurableScheduler: what is durable when, what it says, and what it does with files that are not as they should be."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.crawl.in_progress import WatchedSet
from scrapy_bloom.old.errors import (
    DamagedError,
    InUseError,
    UnknownFormatError,
    UnusableError,
)
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.frontier import journal
from scrapy_bloom.old.frontier.database import Batch, Database
from tests.old.support.killed_crawling import ROOT
from tests.old.support.schedulers import SCRAPY, EngineCalls, PlainSpider, opened

if TYPE_CHECKING:
    from pathlib import Path

# Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def request(n: int, **options: Any) -> Request:
    return Request(f"http://example.com/{n}", **options)


def urls(*numbers: int) -> list[str]:
    return [f"http://example.com/{n}" for n in numbers]


def rows(jobdir: Path) -> int:
    """Requests in the closed file."""
    database = sqlite3.connect(jobdir / FRONTIER_NAME)
    try:
        return database.execute("SELECT count(*) FROM requests").fetchone()[0]
    finally:
        database.close()


# -- what is durable when ----------------------------------------------------------------------------------------------


def test_no_fingerprint_is_durable_before_its_request(tmp_path: Path) -> None:
    """What was pushed but not committed is unknown to the filter after a kill; what was committed is in the queue."""
    calls = EngineCalls(tmp_path)
    calls.push(request(1))
    calls.commit()
    calls.push(request(2))
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.push(request(1), request(2)) == [False, True]
        assert calls.drain() == urls(2, 1)


def test_a_kill_between_the_commit_and_the_release_queues_nothing_twice(tmp_path: Path) -> None:
    """Requests that were committed but whose fingerprints never reached the filter's file are shown to it again."""
    calls = EngineCalls(tmp_path)
    calls.push(request(1), request(2, dont_filter=True))
    calls.scheduler.df.held.clear()  # the process dies before it can write them
    calls.commit()
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.push(request(1), request(2)) == [False, True]
        assert sorted(calls.drain()) == urls(1, 2, 2)


def test_a_request_counts_as_done_only_when_the_engine_is_done_with_it(tmp_path: Path) -> None:
    """Of four requests, the one that ended is gone after a kill; those in progress, never begun or waiting are not."""
    calls = EngineCalls(tmp_path)
    calls.push(*map(request, range(4)))
    done, _busy = calls.start(), calls.start()
    assert calls.scheduler.next_request().url == urls(1)[0]  # taken by somebody who is not the engine
    calls.end(done)
    calls.commit()
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/recovered") == 3
        assert calls.stats.get_value("bloom/frontier/in_flight") == 2
        assert calls.drain() == urls(2, 1, 0)


def test_a_request_is_never_done_without_what_came_from_it(tmp_path: Path) -> None:
    """At every commit, either the parent is pending or all of its children are durable."""
    calls = EngineCalls(tmp_path)
    calls.push(request(0))
    parent = calls.start()
    calls.push(request(1))
    calls.commit()
    calls.push(request(2))
    calls.end(parent)
    shutil.copytree(tmp_path, tmp_path / "before")
    calls.commit()
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.drain() == urls(2, 1)
    with opened(tmp_path / "before") as calls:
        assert calls.drain() == urls(1, 0)
        assert calls.push(request(2)) == [True]


def test_a_request_downloaded_within_its_own_callback_is_not_done_by_that() -> None:
    """A request that enters the engine twice is done only when it has left twice."""
    left: list[Request] = []
    watched = WatchedSet(left.append)
    one, stranger = request(1), request(2)
    watched.add(one)
    watched.add(one)
    watched.remove(one)
    assert left == []
    with pytest.raises(KeyError):
        watched.remove(one)  # as with Scrapy's own set, which the engine logs
    assert left == [one]
    with pytest.raises(KeyError):
        watched.remove(stranger)
    assert left == [one]


def test_what_is_done_between_two_commits_is_never_written(tmp_path: Path) -> None:
    """A request pushed and finished before the next commit costs no row."""
    with opened(tmp_path) as calls:
        calls.push(request(1), request(2))
        calls.end(calls.start())
        assert list(calls.scheduler._journal._added) == [1]


def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a commit is in the hands of the disk, requests are pushed, handed out and finished, and later commits wait
    their turn; no fingerprint gets out before its commit is complete, and a kill in the meantime loses nothing."""
    calls = EngineCalls(tmp_path / "job")
    journal, dupefilter = calls.scheduler._journal, calls.scheduler.df
    disk, write = threading.Event(), journal.database.write

    def wait_for_disk(batch: Batch) -> None:
        assert threading.current_thread() is not threading.main_thread()
        disk.wait()
        write(batch)

    monkeypatch.setattr(journal.database, "write", wait_for_disk)
    calls.push(*map(request, range(3000)))  # more than one commit's worth
    for _ in range(500):
        calls.end(calls.start())
    calls.push(*map(request, range(3000, 6000)))
    assert dupefilter.path.stat().st_size == 0
    assert journal.commits == 0
    shutil.copytree(tmp_path / "job", tmp_path / "killed")
    disk.set()
    calls.commit()
    assert journal.commits == 2
    assert dupefilter.path.stat().st_size == 6000 * 20
    assert sorted(calls.drain()) == sorted(urls(*range(2500), *range(3000, 6000)))
    calls.stop()
    with opened(tmp_path / "killed") as calls:
        assert calls.push(request(1)) == [True]


# -- what it says ------------------------------------------------------------------------------------------------------


def test_it_says_what_it_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After an unclean stop the log has the numbers of requests recovered and fetched again; after a clean one,
    nothing."""
    calls = EngineCalls(tmp_path)
    calls.push(*map(request, range(3)))
    calls.start()
    calls.commit()
    calls.die()
    calls = EngineCalls(tmp_path)
    assert "Recovered 3 pending requests. Pages that are fetched again because of that: at most 1 (" in caplog.text
    caplog.clear()
    calls.stop()
    with opened(tmp_path) as calls:
        assert "Recovered" not in caplog.text
        assert calls.stats.get_value("bloom/frontier/recovered") is None


def test_a_filter_that_cannot_wait_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a filter that writes fingerprints at once, a WARNING says what a kill may cost; with ours, none does."""
    with opened(tmp_path / "a"):
        assert "cannot hold fingerprints back" not in caplog.text
    with opened(tmp_path / "b", DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter"):
        assert "RFPDupeFilter cannot hold fingerprints back" in caplog.text


def test_without_a_job_directory_it_is_scrapys_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    """Without JOBDIR requests are kept in memory, in Scrapy's order, and the log says so once."""
    caplog.set_level(logging.INFO)
    calls = EngineCalls(None)
    calls.push(request(1), request(2), request(3, priority=-1))
    assert calls.drain() == urls(2, 1, 3)
    calls.stop()
    assert caplog.text.count("No JOBDIR: pending requests are kept in memory") == 1


def test_requests_that_cannot_be_serialized_go_to_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are queued in memory with Scrapy's warning and stat, and a stop says how many are lost."""
    calls = EngineCalls(tmp_path, SCHEDULER_DEBUG=True)
    calls.push(request(1, meta={"f": lambda: None}), request(2, callback=print), request(3))
    assert calls.stats.get_value("scheduler/unserializable") == calls.stats.get_value("scheduler/enqueued/memory") == 2
    assert caplog.text.count("Unable to serialize request") == 1
    assert len(calls.scheduler) == 3
    calls.stop()
    assert "2 pending requests could not be serialized, existed in memory only, and will be lost" in caplog.text
    assert rows(tmp_path) == 1


@pytest.mark.parametrize("dupefilter", ["scrapy_bloom.BloomDupeFilter", "tests.old.support.exactfilter.ExactFilter"])
def test_the_fingerprint_of_a_request_in_memory_does_not_outlive_it(tmp_path: Path, dupefilter: str) -> None:
    """A request that cannot be serialized is lost with the process; the next run takes a link to its page for new."""
    unserializable = {"meta": {"f": lambda: None}}
    with opened(tmp_path, DUPEFILTER_CLASS=dupefilter) as calls:
        assert calls.push(request(1, **unserializable), request(2)) == [True, True]
        calls.commit()
        assert calls.push(request(1), request(1, **unserializable)) == [False, False], "known as long as it is there"
    with opened(tmp_path, DUPEFILTER_CLASS=dupefilter) as calls:
        assert calls.push(request(1), request(2)) == [True, False]


def test_the_fingerprint_of_a_request_in_memory_ages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With BLOOM_MAX_AGE, a page whose requests cannot be serialized comes up again as late as any other."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    both = [request(1, meta={"f": lambda: None}), request(2)]
    with opened(tmp_path, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter", BLOOM_MAX_AGE="8h") as calls:
        assert calls.push(*both) == [True, True]
        calls.commit()
        now += 6.9 * 3600
        assert calls.push(*both) == [False, False]
        now += 1.1 * 3600
        assert calls.push(*both) == [True, True]


def test_scrapys_stats_are_scrapys(tmp_path: Path) -> None:
    """The scheduler stats of a run are those of Scrapy's scheduler with JOBDIR."""
    stats = []
    for scheduler in (SCRAPY, "scrapy_bloom.DurableScheduler"):
        calls = EngineCalls(tmp_path / scheduler, scheduler)
        calls.push(request(1), request(2), request(1), request(3, meta={"f": lambda: None}))
        calls.drain()
        calls.stop()
        stats.append({k: v for k, v in calls.stats.get_stats().items() if k.startswith("scheduler/")})
    assert stats[0] == stats[1]
    assert len(stats[0]) == 7


# -- files that are not as they should be ------------------------------------------------------------------------------


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """While one process has the job directory open another one gets InUseError, and the first is unharmed."""
    script = (
        "import sys, pathlib; from scrapy_bloom.old.frontier.database import Database\n"
        "from scrapy_bloom.old.errors import InUseError\n"
        "try: Database.open(pathlib.Path(sys.argv[1]))\n"
        "except InUseError as error: print(error)"
    )
    with opened(tmp_path) as calls:
        calls.push(request(1))
        command = [sys.executable, "-c", script, str(tmp_path / FRONTIER_NAME)]
        found = subprocess.run(
            command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
        )
        assert "is in use by another process" in found.stdout
        with pytest.raises(InUseError):
            Database.open(tmp_path / FRONTIER_NAME)
        assert calls.drain() == urls(1)


def filled(jobdir: Path, count: int = 300) -> Path:
    with opened(jobdir) as calls:
        calls.push(*map(request, range(count)))
    return jobdir / FRONTIER_NAME


@pytest.mark.parametrize("keep", [1, 50, 5000])
def test_a_truncated_file_is_refused_before_the_crawl(
    tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A file cut short raises DamagedError, with a way on, and is left as it is."""
    path = filled(tmp_path)
    data = path.read_bytes()[:keep]
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"is damaged: .* empty JOBDIR"):
        EngineCalls(tmp_path)
    assert path.read_bytes() == data
    assert "is damaged" in caplog.text


def test_text_in_its_place_is_refused(tmp_path: Path) -> None:
    """A file that is no database raises DamagedError."""
    (tmp_path / FRONTIER_NAME).write_text("not a database " * 500)
    with pytest.raises(DamagedError, match="file is not a database"):
        EngineCalls(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """An SQLite database of something else raises UnusableError and is not written to."""
    database = sqlite3.connect(tmp_path / FRONTIER_NAME)
    database.execute("CREATE TABLE requests (id)")
    database.close()
    before = (tmp_path / FRONTIER_NAME).read_bytes()
    with pytest.raises(UnusableError, match="not one of scrapy-bloom's"):
        EngineCalls(tmp_path)
    assert (tmp_path / FRONTIER_NAME).read_bytes() == before


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """A file of a later format version raises UnknownFormatError that names both versions."""
    database = sqlite3.connect(filled(tmp_path, 1))
    database.execute("PRAGMA user_version = 4")
    database.close()
    with pytest.raises(UnknownFormatError, match=r"format version 4.*format versions up to 3"):
        EngineCalls(tmp_path)


def test_the_job_of_another_spider_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spider of another name does not get the pending requests, nor does anything change, until the job is told."""
    with opened(tmp_path) as calls:
        calls.push(request(1))
    before = (tmp_path / FRONTIER_NAME).read_bytes()
    monkeypatch.setattr(PlainSpider, "name", "renamed")
    with pytest.raises(UnusableError, match=r"belongs to the spider 'site', and this is 'renamed'") as error:
        EngineCalls(tmp_path)
    assert (tmp_path / FRONTIER_NAME).read_bytes() == before
    command = re.search(r'sqlite3 (\S+) "(.+)"', str(error.value))
    assert command
    database = sqlite3.connect(command[1])
    with database:
        database.execute(command[2])
    database.close()
    with opened(tmp_path) as calls:
        assert calls.start().url == request(1).url


def test_a_full_disk_stops_nothing_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the disk is full the crawl goes on in memory and no fingerprint gets out; with room again all is
    written."""
    calls = EngineCalls(tmp_path)
    frontier = calls.scheduler._journal
    pragma = frontier.database._writer.execute
    calls.push(request(0))
    calls.commit()
    pragma(f"PRAGMA max_page_count = {pragma('PRAGMA page_count').fetchone()[0]}")  # SQLite's own way of being full
    calls.push(*(request(n, meta={"bulk": "x" * 500}) for n in range(1, 2 * journal.COMMIT_ROWS)))
    assert not frontier.commit()
    assert caplog.text.count("cannot be written to") == 1
    assert "database or disk is full" in caplog.text
    assert len(calls.scheduler.df.sealed) == 2 * journal.COMMIT_ROWS - 1
    for _ in range(10):
        calls.end(calls.start())
    shutil.copytree(tmp_path, tmp_path / "killed")
    pragma("PRAGMA max_page_count = 1073741823")
    calls.commit()
    assert "are written to" in caplog.text
    assert calls.scheduler.df.held == calls.scheduler.df.sealed == []
    calls.stop()
    assert rows(tmp_path) == 2 * journal.COMMIT_ROWS - 10
    with opened(tmp_path / "killed") as calls:
        assert calls.push(request(1)) == [True]
        assert calls.drain() == urls(1, 0)


def test_a_disk_full_to_the_end_leaves_the_last_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the last requests cannot be written at the end either, it says so, and neither can their fingerprints be."""
    calls = EngineCalls(tmp_path)
    calls.push(request(0))
    calls.commit()
    pragma = calls.scheduler._journal.database._writer.execute
    pragma(f"PRAGMA max_page_count = {pragma('PRAGMA page_count').fetchone()[0]}")
    calls.push(*(request(n, meta={"bulk": "x" * 500}) for n in range(1, 100)))
    calls.stop()
    assert "could not be written" in caplog.text
    with opened(tmp_path) as calls:
        assert calls.push(request(50)) == [True]
        assert calls.drain() == urls(50, 0)


def test_a_request_that_cannot_be_read_waits_for_a_later_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose callback is gone is told of, left out, and crawled by a run whose spider has it again."""
    calls = EngineCalls(tmp_path)
    calls.push(request(1, callback=calls.crawler.spider.parse_other), request(2))
    calls.stop()
    with monkeypatch.context() as patch:
        patch.delattr(PlainSpider, "parse_other")
        calls = EngineCalls(tmp_path)
        assert calls.drain() == urls(2)
        assert not calls.scheduler.has_pending_requests()
        calls.stop()
    assert "cannot be read: ValueError" in caplog.text
    assert calls.stats.get_value("bloom/frontier/unreadable") == 1
    with opened(tmp_path) as calls:
        assert calls.drain() == urls(1)


# -- job directories of others -----------------------------------------------------------------------------------------

HOSTS = ("a", "b")


def fill_scrapys(jobdir: Path, count: int = 60, **settings: Any) -> None:
    calls = EngineCalls(jobdir, SCRAPY, **settings)
    for n in range(count):
        meta = {"is_start_request": True} if n % 5 == 0 else {}
        calls.push(Request(f"http://{HOSTS[n % 2]}.example/{n}", priority=n % 3, meta=meta))
    calls.stop()


def test_an_imported_crawl_is_resumed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's scheduler reads its queue for us, and does not say that it resumes the crawl, too."""
    fill_scrapys(tmp_path)
    with caplog.at_level(logging.INFO), opened(tmp_path):
        pass
    assert [message for message in caplog.messages if "Resuming" in message] == [
        "Resuming crawl (60 requests scheduled)"
    ]


@pytest.mark.parametrize("pqueue", ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"])
@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
def test_scrapys_own_queue_is_imported(tmp_path: Path, pqueue: str, order: str) -> None:
    """A cleanly stopped queue of Scrapy's comes out of ours in the order it would have come out of Scrapy's."""
    settings = {
        "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{pqueue}",
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue",
    }
    fill_scrapys(tmp_path / "theirs", **settings)
    fill_scrapys(tmp_path / "ours", **settings)
    with opened(tmp_path / "theirs", SCRAPY, **settings) as calls:
        expected = calls.drain()
    with opened(tmp_path / "ours", **settings) as calls:
        assert calls.stats.get_value("bloom/frontier/imported") == len(calls.scheduler) == 60
    with opened(tmp_path / "ours", **settings) as calls:
        assert calls.stats.get_value("bloom/frontier/imported") is None
        assert calls.drain() == expected
    assert not (tmp_path / "ours" / "requests.queue").exists()


def test_an_import_that_was_killed_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process dies in the middle of an import, Scrapy's queue is still whole and the frontier empty."""
    fill_scrapys(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_set_state", die)
        with pytest.raises(KeyboardInterrupt):
            EngineCalls(tmp_path)
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/imported") == 60
        assert len(set(calls.drain())) == 60


def test_a_killed_queue_of_scrapys_is_refused(tmp_path: Path) -> None:
    """A job directory of Scrapy's scheduler that was not stopped cleanly is an error that says what to do."""
    fill_scrapys(tmp_path)
    (tmp_path / "requests.queue" / "active.json").unlink()
    with pytest.raises(UnusableError, match=r"without a clean stop.* Begin again with an empty JOBDIR"):
        EngineCalls(tmp_path)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_queue_of_scrapys_that_was_killed_when_empty_is_refused(at_once: bool, tmp_path: Path) -> None:
    """A resumed run that took all out of a queue and was killed has deleted its file: none is newer than the state."""
    fill_scrapys(tmp_path)
    queue = tmp_path / "requests.queue"
    if at_once:  # the clock does not tell, but the state names queues that are not there
        shutil.rmtree(next(path for path in queue.iterdir() if path.is_dir()))
    else:
        for path in queue.rglob("*"):
            os.utime(path, (0, 0))
        next(path for path in queue.rglob("*") if path.is_file() and path.name != "active.json").unlink()
    for _ in range(2):  # not taken for imported the second time
        with pytest.raises(UnusableError, match=r"without a clean stop.* Begin again with an empty JOBDIR"):
            EngineCalls(tmp_path)


def test_a_clean_queue_whose_file_times_were_lost_is_imported_when_told(tmp_path: Path) -> None:
    """A copy that lost the times of its files looks killed; the advice in the error makes it go on."""
    fill_scrapys(tmp_path)
    state = tmp_path / "requests.queue" / "active.json"
    os.utime(state, (0, 0))
    with pytest.raises(UnusableError, match=rf"touch {re.escape(str(state))}"):
        EngineCalls(tmp_path)
    subprocess.run(["touch", state], check=True)
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/imported") == 60


def test_fingerprints_without_a_queue_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A filter's file without any pending requests gives a WARNING: pages may have been pending."""
    (tmp_path / "requests.seen").write_bytes(b"x" * 22)
    with opened(tmp_path):
        assert "holds fingerprints of an earlier crawl but no pending requests" in caplog.text


def test_another_priority_queue_takes_over_what_is_pending(tmp_path: Path) -> None:
    """Requests queued under one priority queue class come out under another, each once."""
    for pqueue, count in (
        ("ScrapyPriorityQueue", 40),
        ("DownloaderAwarePriorityQueue", 20),
        ("ScrapyPriorityQueue", 0),
    ):
        with opened(tmp_path, SCHEDULER_PRIORITY_QUEUE=f"scrapy.pqueues.{pqueue}") as calls:
            first = 100 * count
            calls.push(*(Request(f"http://{HOSTS[n % 2]}.example/{first + n}", priority=n % 3) for n in range(count)))
            assert len(calls.scheduler) == {40: 40, 20: 60, 0: 60}[count]
    with opened(tmp_path, SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.DownloaderAwarePriorityQueue") as calls:
        found = calls.drain()
    assert len(found) == len(set(found)) == 60
