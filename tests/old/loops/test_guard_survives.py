"""What the guard has decided and parked outlives the process, and a person can take it back."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.old.errors import DamagedError, InUseError, UnknownFormatError, UnusableError, counted
from scrapy_bloom.old.loops.account import DRY, Account
from scrapy_bloom.old.loops.guard import LAST_TRIES, QUEUED
from scrapy_bloom.old.loops.judging import judge_of, number_of
from scrapy_bloom.old.loops.parked import ParkedFile, guard_file, lacks_some
from scrapy_bloom.old.loops.verdicts import parked_shapes, take_back
from tests.old.support.crawling import crawl, start_crawl
from tests.old.support.guarding import fetch, opened_guard
from tests.old.support.loopsite import LoopSite, prose
from tests.old.support.schedulers import opened
from tests.old.support.scheduling import finish, open_scheduler

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

GUARDED = {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_LOOP_GUARD": True, "ROBOTSTXT_OBEY": False}
CALENDAR = "/calendar/"


def shapes(jobdir: Path) -> dict[str, int]:
    return {re.sub(r"^127\.0\.0\.1:\d+", "", found.shape): found.waiting for found in parked_shapes(jobdir)}


def parked_in(directory: Path) -> Counter[int]:
    """Return how many requests wait in the job of *directory*, by account."""
    lot = ParkedFile.open(directory, None)
    lot.close(queue_is_kept=False)
    return lot.waiting


def test_a_resumed_crawl_holds_on_to_its_verdicts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next run of a finished job tries a few pages of the trap, and the others that were parked still are. A run
    without the guard warns of them."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 1}  # in the same order every time
    with LoopSite() as site:
        first = crawl(site.url(), settings)
        fetched, waiting = site.hits(CALENDAR), sum(shapes(tmp_path).values())
        assert waiting == first.stats["bloom/loop/waiting"] > 0
        *_, last = (line for line in first.log.splitlines() if "[scrapy_bloom" in line)
        assert f"WARNING: The loop guard has parked {counted(waiting, 'request')}, whose pages are not fetched" in last
        assert first.log.count("The loop guard has parked") == 1
        second = crawl(site.url(), settings)
        tried = second.stats["bloom/loop/tried"]
        assert site.hits(CALENDAR) == fetched + tried
        assert tried <= 2 * LAST_TRIES * len(shapes(tmp_path))  # with those that these led to
        assert second.stats["bloom/loop/waiting"] >= waiting - tried
        waiting = second.stats["bloom/loop/waiting"]
    finish(open_scheduler(JOBDIR=str(tmp_path)))
    assert f"parked {counted(waiting, 'request')} in {tmp_path}, and BLOOM_LOOP_GUARD is off" in caplog.text
    guard_file(tmp_path).write_bytes(b"no database")
    finish(open_scheduler(JOBDIR=str(tmp_path)))
    assert "What the loop guard has parked there is not fetched and counts as seen" in caplog.text


@pytest.mark.slow
def test_a_killed_crawl_loses_no_honest_page_and_forgets_no_verdict(tmp_path: Path) -> None:
    """A crawl that is killed three times while it parks the trap, and then resumed, fetches all honest pages and few of
    the trap."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 4}
    with LoopSite() as site:
        for hits in (40, 90, 140):
            running = start_crawl(site.url(), settings)
            site.wait_for_hits(hits)
            running.process.kill()
            running.process.communicate()
        outcome = crawl(site.url(), settings)
        assert outcome.stats["finish_reason"] == "finished"
        assert site.hits("/good/") == LoopSite.GOOD
        assert site.hits("/record/") == 2 * LoopSite.LISTS
        assert site.hits(CALENDAR) < 200


@pytest.mark.parametrize("way", ["take_back", pytest.param("allow", marks=pytest.mark.slow)])
def test_a_verdict_can_be_taken_back(way: str, tmp_path: Path) -> None:
    """The next run fetches all that was parked, and parks nothing of it again."""
    settings: dict[str, Any] = {**GUARDED, "JOBDIR": str(tmp_path), "CLOSESPIDER_PAGECOUNT": 600}
    with LoopSite() as site:
        crawl(site.url(), settings)
        fetched, parked = site.hits(CALENDAR), sum(shapes(tmp_path).values())
        if way == "allow":
            settings["BLOOM_LOOP_GUARD"] = {"allow": ["/calendar/"]}
        else:
            moved = sum(take_back(tmp_path, found.shape) for found in parked_shapes(tmp_path))
            assert moved == parked
            assert all(found.is_taken_back for found in parked_shapes(tmp_path))
        second = crawl(site.url(), settings)
        assert second.stats["bloom/loop/released"] >= min(64, parked)
        assert site.hits(CALENDAR) > fetched + parked // 2
        assert "bloom/loop/parked" not in second.stats


@pytest.mark.slow
def test_news_releases_what_is_parked(tmp_path: Path) -> None:
    """When the calendar gets events, one of its URLs that is tried brings news, and the others come too."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path)}
    with LoopSite() as site:
        crawl(site.url(), settings)
        fetched, parked = site.hits(CALENDAR), sum(shapes(tmp_path).values())
        site.fill()
        connection = sqlite3.connect(guard_file(tmp_path))
        with connection:  # the next URL to come up is one to try
            connection.execute("UPDATE accounts SET tried = 63 WHERE tried")
            (row,) = connection.execute(
                "SELECT account, count(*) FROM parked GROUP BY account ORDER BY 2 DESC"
            ).fetchmany(1)
            connection.execute(
                "UPDATE parked SET account = 0 WHERE id = (SELECT max(id) FROM parked WHERE account = ?)", row[:1]
            )
        connection.close()
        second = crawl(site.url(), {**settings, "CLOSESPIDER_PAGECOUNT": 300})
        assert second.stats["bloom/loop/released"] >= parked > 1
        assert site.hits(CALENDAR) >= fetched + min(parked, 100)


def test_a_request_that_came_out_of_the_queue_stays_until_the_queue_is_on_disk(tmp_path: Path) -> None:
    """A released request is still in the file after a kill between its leaving the queue and the commit of the
    queue."""
    lot = ParkedFile.open(tmp_path, None)
    lot.hold_back()
    lot.park(5, Request("http://example.com/a"))
    ((number, _),) = lot.release(5, 64)
    lot.seal()  # a commit begins, without what comes out of the queue now
    lot.drop(number)
    lot.checkpoint()
    lot.close(queue_is_kept=False)  # as a kill leaves it
    lot = ParkedFile.open(tmp_path, None)
    lot.hold_back()
    assert lot.waiting[5] == 1
    lot.drop(number)
    lot.seal()
    lot.checkpoint()
    lot.close(queue_is_kept=False)
    assert not parked_in(tmp_path)


def test_no_two_parked_requests_have_the_same_number(tmp_path: Path) -> None:
    """Dropping a request that an earlier run released, by its number, does not drop one that was parked since."""
    lot = ParkedFile.open(tmp_path, None)
    lot.park(5, Request("http://example.com/a"))
    ((number, _),) = lot.release(5, 64)
    lot.close(queue_is_kept=True)
    lot = ParkedFile.open(tmp_path, None)
    lot.park(5, Request("http://example.com/b"))
    lot.drop(number)
    assert [request.url for _, request in lot.release(5, 64)] == ["http://example.com/b"]
    lot.close(queue_is_kept=True)


def test_a_parked_request_that_cannot_be_read_stays(tmp_path: Path) -> None:
    """A parked request whose class or callback is missing stays in the file, for a later run that has it."""
    lot = ParkedFile.open(tmp_path, None)
    lot.park(5, Request("http://example.com/a"))
    lot._connection.execute("UPDATE parked SET body = ?", (b"no pickle",))
    assert lot.release(5, 64) == []
    lot.close(queue_is_kept=True)
    assert parked_in(tmp_path)[5] == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write to a file fail, as it does on a full disk."""
    resource = pytest.importorskip("resource", reason="Windows has no RLIMIT_FSIZE")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_loses_nothing_that_is_parked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk nothing can be parked, released or deleted. The guard logs that, raises nothing, and loses no
    request."""
    guard = opened_guard(tmp_path)
    lot = guard._lot
    assert isinstance(lot, ParkedFile)
    lot.park(5, Request("http://example.com/a"))
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    with full_disk():
        assert guard.release_all_due() == 0
        assert not lot.park(5, Request("http://example.com/b"))
    assert "cannot be released" in caplog.text
    assert guard.release_all_due() == 1
    with full_disk():
        assert not guard.out_of_queue(sent_back[0])
    assert f"What has left {tmp_path}" in caplog.text
    lot.close(queue_is_kept=False)  # as a kill leaves it
    assert parked_in(tmp_path)[5] == 1


def test_a_full_disk_at_the_end_leaves_no_file_open(tmp_path: Path) -> None:
    """A guard that cannot write at its end raises and closes its files, so that the next run can open them."""
    guard = opened_guard(tmp_path)
    lot = guard._lot
    assert isinstance(lot, ParkedFile)
    lot.park(5, Request("http://example.com/a"))
    lot.release(5, 64)
    with full_disk(), pytest.raises(sqlite3.OperationalError):
        guard.close()
    assert parked_in(tmp_path)[5] == 1
    opened_guard(tmp_path).close()


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_guard_file_that_was_deleted_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """If the file of an earlier run was deleted, or is empty after a copy to a full disk, the log says that what was
    parked in it is gone. It says nothing about a new job."""
    opened_guard(tmp_path).close()
    assert "is gone" not in caplog.text
    shutil.rmtree(tmp_path / "requests.loops")
    if how == "emptied":
        (tmp_path / "requests.loops").mkdir()
        guard_file(tmp_path).touch()
    opened_guard(tmp_path).close()
    assert f"{guard_file(tmp_path)} of an earlier run is gone" in caplog.text


def test_a_guard_file_without_what_was_parked_last_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the guard's file is from an older backup, lacks its log, or was deleted alone, `verify`, `info` and the
    log of the next crawl say so; if all that was parked since has been fetched, there is nothing to say."""
    job = tmp_path / "job"
    chain = open_filter(job / "requests.bloom", 1000, 1e-3)
    chain.add(b"a fingerprint")
    chain.close()
    lot = ParkedFile.open(job, None)
    lot.park(5, Request("http://example.com/a"))
    lot.close(queue_is_kept=True)
    backup = shutil.copytree(job / "requests.loops", tmp_path / "backup")

    lot = ParkedFile.open(job, None)
    lot.park(5, Request("http://example.com/b"))
    for name in ("without its log", "older", "deleted"):
        shutil.copytree(job, tmp_path / name)
    lot.release(5, 64)
    lot.close(queue_is_kept=True)
    shutil.copytree(job, tmp_path / "older, and all fetched")

    (log,) = (tmp_path / "without its log" / "requests.loops").glob("*-wal")
    log.unlink()
    shutil.rmtree(tmp_path / "deleted" / "requests.loops")
    for name in ("older", "older, and all fetched"):
        shutil.rmtree(tmp_path / name / "requests.loops")
        shutil.copytree(backup, tmp_path / name / "requests.loops")

    for name in ("without its log", "older", "deleted", "older, and all fetched"):
        copy, is_missed = tmp_path / name, name != "older, and all fetched"
        said = lacks_some(copy)
        for command in ("verify", "info"):
            assert main([command, str(copy)]) == (WRONG if is_missed else OK)
            assert (said in capsys.readouterr().out) == is_missed
        opened_guard(copy).close()
        assert (said in caplog.text) == is_missed
        assert main(["verify", str(copy)]) == OK  # it is said once


def test_a_worker_without_a_job_directory_parks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Beside a shared filter and without a job directory, the guard demotes requests, parks none, and says so in the
    log."""
    caplog.set_level("INFO")
    guard = opened_guard(None, filter_is_shared=True)
    demoted = []
    for number in range(200):
        request = Request(f"http://example.com/calendar/{number}")
        guard.queued(request)
        demoted.append(-request.priority)
        if guard.out_of_queue(request):
            raise AssertionError(f"{request} is kept, and nobody would release it")
        guard.saw(HtmlResponse(request.url, body=b"<p>There are no events in this month.</p>"), request)
    assert demoted[-1] > demoted[0] == 0
    assert "demotes and does not park" in caplog.text


def test_a_file_of_the_last_form_of_version_1_is_upgraded(tmp_path: Path) -> None:
    """Opening a file of version 1 keeps its verdicts and parked requests, and sets the counts that it took in another
    way to 0."""
    lot = ParkedFile.open(tmp_path, None)
    lot.park(5, Request("http://example.com/a"))
    row = Account(5, "example.com/**").row()._replace(fetched=40, dry=30, told=1, loops=7)
    lot.save([row], [])
    lot._connection.executescript("PRAGMA user_version = 1")
    lot.close(queue_is_kept=True)
    lot = ParkedFile.open(tmp_path, None)
    assert lot.accounts() == [row._replace(loops=0)]
    assert lot.waiting[5] == 1
    lot.close(queue_is_kept=True)


# By version: pages of its calendar before it ran dry, and the days of the three requests that are parked.
GOLDEN = {1: (31, (27, 29, 30)), 2: (28, (28, 30, 31))}


def job_of_version(version: int, directory: Path) -> Path:
    """Return *directory* as a job whose calendar has run dry under an older loop guard, with three requests parked."""
    with open_filter(directory / "requests.bloom", key_space={"fingerprinter": "scrapy"}):
        pass
    guard_file(directory).parent.mkdir()
    shutil.copy(Path(__file__).with_name("golden") / f"version-{version}.sqlite", guard_file(directory))
    return directory


@pytest.fixture
def job_of_version_1(tmp_path: Path) -> Path:
    return job_of_version(1, tmp_path)


@pytest.mark.parametrize("version", GOLDEN)
def test_a_golden_file_is_upgraded(version: int, tmp_path: Path) -> None:
    """A crawl that opens the file of an older loop guard still parks by its verdict, and releases the requests parked
    in it."""
    job = job_of_version(version, tmp_path)
    guard = opened_guard(job)
    request = Request("http://example.com/calendar/99")
    guard.queued(request)
    assert guard.out_of_queue(request)
    guard.close()
    lot = ParkedFile.open(job, None)
    (account,) = lot.waiting
    released = [request.url for _, request in lot.release(account, 64)]
    assert released == [f"http://example.com/calendar/{day}" for day in (*GOLDEN[version][1], 99)]
    lot.close(queue_is_kept=True)


@pytest.mark.parametrize("version", GOLDEN)
def test_commands_read_a_golden_file(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Info, verify and check show what a file of an older version holds and find nothing wrong with it. None of them,
    nor release, changes its version: the next crawl does."""
    shape, job = "example.com/calendar/N", str(job_of_version(version, tmp_path))
    pages = GOLDEN[version][0]
    answers = {}
    for command in (["info", job], ["verify", job], ["check", job, "http://example.com/calendar/99"]):
        main([*command, "--json"])
        answers[command[0]] = json.loads(capsys.readouterr().out)
    assert [(each["shape"], each["waiting"], each["dry"]) for each in answers["info"]["verdicts"]] == [
        (shape, 3, pages)
    ]
    assert answers["info"]["findings"] == answers["verify"]["findings"] == []
    assert {"part": "loop guard", "what": "1 shape that has run dry, 3 parked requests"}.items() <= (
        answers["verify"]["read"][-1].items()
    )
    assert answers["check"][0]["guard"].startswith(f"{shape} has run dry: of {pages} pages the last {pages}")
    assert main(["release", job, shape]) == OK
    assert "3 parked requests go" in capsys.readouterr().out
    connection = sqlite3.connect(guard_file(tmp_path))
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()


def test_commands_leave_a_file_of_a_newer_version_alone(
    job_of_version_1: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command tells the user to upgrade scrapy-bloom, and writes nothing to the file."""
    path, job = guard_file(job_of_version_1), str(job_of_version_1)
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE accounts; PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    for command in (["info", job], ["verify", job], ["release", job, "example.com/calendar/N"], ["requeue", job]):
        assert main(command) in {WRONG, USAGE}
        said = capsys.readouterr()
        assert "99" in said.out + said.err
        assert "Upgrade" in said.out + said.err
    assert main(["check", job, "http://example.com/"]) == USAGE
    assert "`scrapy bloom verify` says more" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    """A file that another process holds, of a newer version, of another program, or that is missing: each raises an
    error that says which."""
    path = guard_file(tmp_path)
    with pytest.raises(UnusableError, match="cannot be opened"):
        parked_shapes(tmp_path)
    lot = ParkedFile.open(tmp_path, None)
    with pytest.raises(InUseError):
        ParkedFile.open(tmp_path, None)
    with pytest.raises(InUseError):
        parked_shapes(tmp_path)
    lot.close(queue_is_kept=True)
    assert parked_shapes(tmp_path) == []
    with pytest.raises(UnusableError, match="has no verdict on"):
        take_back(tmp_path, "example.com/**")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UnknownFormatError, match="has format version 99"):
        ParkedFile.open(tmp_path, None)
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(DamagedError):
        ParkedFile.open(tmp_path, None)


def test_a_job_whose_guard_file_is_damaged_does_not_start(tmp_path: Path) -> None:
    """A crawl with a damaged guard file ends before its first request, and its log says what to do."""
    guard_file(tmp_path).parent.mkdir()
    guard_file(tmp_path).write_bytes(b"something else" * 1000)
    with LoopSite() as site:
        running = start_crawl(site.url(), {**GUARDED, "JOBDIR": str(tmp_path)}).finish()
        assert site.hits() == 0
    assert "is damaged" in running.log
    assert "what is parked there is lost" in running.log
    assert json.dumps(running.stats)


@pytest.mark.parametrize("is_full", [True, False])
def test_what_was_sent_back_to_a_queue_that_is_never_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    """A request released while the disk is full stays parked, since the queue could not be written. A request in a
    queue that was written is not parked any more."""
    with opened(tmp_path, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter", BLOOM_LOOP_GUARD=True) as calls:
        lot = calls.scheduler.df._guard._lot
        lot.park(5, Request("http://example.com/a"))
        ((_, released),) = lot.release(5, 64)
        calls.push(released.replace(dont_filter=True))

        def write(_batch: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        if is_full:
            monkeypatch.setattr(calls.scheduler._journal.database, "write", write)
    monkeypatch.undo()
    assert parked_in(tmp_path)[5] == is_full


def test_a_released_request_is_in_the_queue_again_before_it_leaves_the_file(tmp_path: Path) -> None:
    """If its kind has grown when a released request comes out of the queue, it is sent back at once and dropped after
    that: whoever takes what else goes back, later, does not get it."""
    guard = opened_guard(tmp_path)
    lot = guard._lot
    assert isinstance(lot, ParkedFile)
    lot.park(5, Request("http://example.com/list/1"))
    waiting: list[int] = []
    sent_back: list[Request] = []

    def send_back(request: Request) -> None:
        waiting.append(lot._connection.execute("SELECT count(*) FROM parked").fetchone()[0])
        sent_back.append(request)

    guard.sends_back_by(send_back)
    assert guard.release_all_due() == 1
    for number in range(2, 2000):  # by now far more URLs are queued than when it was released
        guard.queued(Request(f"http://example.com/list/{number}"))
    released = sent_back.pop()
    released.meta[QUEUED] = (0, 2000, True)
    later: list[Request] = []
    assert guard.out_of_queue(released, later.append)
    assert not later
    assert [request.url for request in sent_back] == [released.url]
    assert waiting == [1, 1]
    assert not lot._connection.execute("SELECT count(*) FROM parked").fetchone()[0]
    guard.close()


def test_a_site_that_is_crawled_anew_brings_news_again(tmp_path: Path) -> None:
    """With the filter deleted, as its messages advise, no page is a copy of what the job has fetched before."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path)}
    with LoopSite() as site:
        crawl(site.url(), settings)
        assert site.hits("/good/") == LoopSite.GOOD
        shutil.rmtree(tmp_path / "requests.bloom")
        crawl(site.url(), settings)
        assert {n for path, n in site.asked().items() if path.startswith(("/good/", "/record/"))} == {2}


def test_pages_that_are_fetched_again_say_nothing(tmp_path: Path) -> None:
    """After a kill the last pages are fetched again. They are no copies of other pages, so nothing runs dry, though
    the guard remembers all that they have shown; copies under other addresses still do."""
    guard = opened_guard(tmp_path)
    items = [f"http://example.com/item/{number}" for number in range(2 * DRY)]
    for again in range(2):
        for item in items:
            fetch(guard, item, prose(item), [])
        assert judge_of("http://example.com/item/999", guard._shapes, guard._accounts) is None, again
    for item in items[:DRY]:
        fetch(guard, f"{item}999", prose(item), [])
    assert judge_of("http://example.com/item/999", guard._shapes, guard._accounts) is not None
    guard.close()


def test_what_a_page_showed_is_forgotten_before_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under BLOOM_MAX_AGE a page that is fetched again brings what it brought the first time."""
    now = [1e9]
    monkeypatch.setattr("scrapy_bloom.old.loops.guard.time", lambda: now[0])
    monkeypatch.setattr("scrapy_bloom.old.loops.guard.monotonic", lambda: now[0])
    guard = opened_guard(max_age=120)
    brought = []
    for seconds in (0, 1, 1, 98):  # the filter forgets a URL after 105 seconds at the soonest
        now[0] += seconds
        fetch(guard, "https://example.com/other", prose(now[0]), [])
        fetch(guard, "https://example.com/page", prose(1), [])
        brought.append(guard._accounts[number_of("example.com/page")].brought)
    assert brought == [1, 1, 1, 2]
    guard.close()
