"""A frontier and a filter that do not belong together are refused, or told of: never is a page lost silently."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files import frontier_mark
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.frontier import recovery
from scrapy_bloom.old.frontier.scheduler import DurableScheduler
from tests.old.support.schedulers import SCRAPY, EngineCalls, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BLOOM = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_CAPACITY": 1000, "BLOOM_SYNC_INTERVAL": 0}
GO_ON = {**BLOOM, "BLOOM_ACCEPT_LOST_REQUESTS": True}


def request(n: int) -> Request:
    return Request(f"http://example.com/{n}")


def urls(*numbers: int) -> set[str]:
    return {request(n).url for n in numbers}


def killed(jobdir: Path, *commits: list[int]) -> None:
    """Leave a job that was killed right after the last of several commits, each of new requests."""
    calls = EngineCalls(jobdir, **BLOOM)
    for commit in commits:
        calls.push(*map(request, commit))
        calls.commit()
    aside = jobdir.with_name("aside")
    shutil.copytree(jobdir, aside)  # as a kill leaves it: closing would fold the log into the file
    calls.die()
    shutil.rmtree(jobdir)
    aside.rename(jobdir)


@contextmanager
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine was started anew."""
    with monkeypatch.context() as patch:
        patch.setattr(frontier_mark, "boot_id", lambda: b"another boot, 16")
        yield


def shown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids after which pending requests are shown to the filter from now on."""
    after: list[int] = []
    show = recovery.show

    def noting(*arguments: Any, **options: Any) -> int:
        after.append(options["after"])
        return show(*arguments, **options)

    monkeypatch.setattr("scrapy_bloom.old.frontier.scheduler.show", noting)
    return after


# -- requests are missing --------------------------------------------------------------------------------------------


def lose_the_log(jobdir: Path) -> None:
    (jobdir / f"{FRONTIER_NAME}-wal").unlink()


def cut_the_log(jobdir: Path) -> None:
    log = jobdir / f"{FRONTIER_NAME}-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size - 5000])


def damage_the_log(jobdir: Path) -> None:
    log = jobdir / f"{FRONTIER_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[-5000] ^= 1
    log.write_bytes(data)


def delete_the_frontier(jobdir: Path) -> None:
    for path in jobdir.glob(f"{FRONTIER_NAME}*"):
        path.unlink()


def empty_the_frontier(jobdir: Path) -> None:
    delete_the_frontier(jobdir)
    (jobdir / FRONTIER_NAME).touch()


def restore_an_older_frontier(jobdir: Path) -> None:
    delete_the_frontier(jobdir)
    shutil.copy(jobdir.parent / "backup" / FRONTIER_NAME, jobdir)


def delete_the_mark_and_restore_an_older_frontier(jobdir: Path) -> None:
    (jobdir / "requests.bloom" / "frontier").unlink()
    restore_an_older_frontier(jobdir)


LOSSES = [
    delete_the_mark_and_restore_an_older_frontier,
    lose_the_log,
    cut_the_log,
    damage_the_log,
    delete_the_frontier,
    empty_the_frontier,
    restore_an_older_frontier,
]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_frontier_that_lacks_requests_is_refused_until_told_to_go_on(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """If the filter knows more than the frontier, the start is refused each time, and the whole restored goes on; told
    to go on without, it does, with a WARNING."""
    jobdir = tmp_path / "job"
    with opened(jobdir, **BLOOM) as calls:
        calls.push(request(0))
    shutil.copytree(jobdir, tmp_path / "backup")
    killed(jobdir, [1], [2, 3])
    shutil.copytree(jobdir, tmp_path / "whole")
    lose(jobdir)
    for _ in range(2):
        with pytest.raises(UnusableError, match=r"older than its filter.*BLOOM_ACCEPT_LOST_REQUESTS"):
            EngineCalls(jobdir, **BLOOM)
    with opened(tmp_path / "whole", **BLOOM) as calls:
        assert set(calls.drain()) == urls(0, 1, 2, 3)
    caplog.clear()
    with opened(jobdir, **GO_ON) as calls:
        assert "As BLOOM_ACCEPT_LOST_REQUESTS says" in caplog.text
        calls.push(request(4))
    with opened(jobdir, **BLOOM) as calls:
        assert request(4).url in calls.drain()


@pytest.mark.slow
@pytest.mark.parametrize(("found", "noticed"), [(3, "refused"), (1, "warned"), (2, "nothing")])
def test_what_is_noticed_of_two_copies_that_were_mixed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, found: int, noticed: str
) -> None:
    """The filter of one copy and the frontier of another that found two requests meanwhile: as docs/recovery.md says,
    it depends on which copy has got further whether the mixture is refused, warned of or not noticed at all."""
    for job, count in (("a", found), ("b", 2)):
        if job == "a":
            with opened(tmp_path / "a", **BLOOM) as calls:
                calls.push(request(0))
            shutil.copytree(tmp_path / "a", tmp_path / "b")
        with opened(tmp_path / job, **BLOOM) as calls:
            calls.push(*(Request(f"http://example.com/{job}/{n}") for n in range(count)))
    shutil.rmtree(tmp_path / "b" / "requests.bloom")
    shutil.copytree(tmp_path / "a" / "requests.bloom", tmp_path / "b" / "requests.bloom")
    caplog.clear()
    if noticed == "refused":
        with pytest.raises(UnusableError, match="is older than its filter"):
            EngineCalls(tmp_path / "b", **BLOOM)
        return
    with opened(tmp_path / "b", **BLOOM):
        assert ("The filter is older than" in caplog.text) == (noticed == "warned")


def test_the_frontier_of_another_filter_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A filter that knows pages and is not the one that the frontier was used with is noticed; no line says what
    a run begins or ends with that has not been."""
    for job in ("a", "b"):
        with opened(tmp_path / job, **BLOOM) as calls:
            calls.push(request(1))
    shutil.rmtree(tmp_path / "a" / "requests.bloom")
    shutil.copytree(tmp_path / "b" / "requests.bloom", tmp_path / "a" / "requests.bloom")
    caplog.clear()
    with caplog.at_level("INFO"), pytest.raises(UnusableError, match="was used with another filter"):
        EngineCalls(tmp_path / "a", **BLOOM)
    assert "The filter in" not in caplog.text
    assert "This run checked" not in caplog.text


# -- fingerprints are missing ------------------------------------------------------------------------------------------


def test_a_deleted_filter_is_said_and_fetches_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With requests.bloom deleted beside a frontier, a WARNING says that pages are fetched again; what is pending is
    not queued twice, and the next start says nothing."""
    with opened(tmp_path, **BLOOM) as calls:
        calls.push(request(1), request(2))
        calls.end(calls.start())
    shutil.rmtree(tmp_path / "requests.bloom")
    with opened(tmp_path, **BLOOM) as calls:
        assert "begins anew: pages that were fetched before may be fetched again" in caplog.text
        assert calls.push(request(1), request(2)) == [False, True]
    caplog.clear()
    with opened(tmp_path, **BLOOM):
        assert caplog.text == ""


def test_an_older_filter_is_said_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A filter restored from before is shown what is pending since then."""
    with opened(tmp_path / "job", **BLOOM) as calls:
        calls.push(request(1))
    shutil.copytree(tmp_path / "job" / "requests.bloom", tmp_path / "backup")
    with opened(tmp_path / "job", **BLOOM) as calls:
        calls.push(request(2), request(3))
        calls.end(calls.start())
    shutil.rmtree(tmp_path / "job" / "requests.bloom")
    shutil.copytree(tmp_path / "backup", tmp_path / "job" / "requests.bloom")
    with opened(tmp_path / "job", **BLOOM) as calls:
        assert "The filter is older than" in caplog.text
        assert calls.push(request(1), request(2), request(3)) == [False, False, True]


# -- killed, or without power ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["committed", "released", "noted"])
def test_a_kill_at_every_step_of_a_commit_loses_and_repeats_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between commit, release and noting, a job resumes with every request, and queues none twice."""
    calls = EngineCalls(tmp_path / "job", **BLOOM)
    calls.push(request(1), request(2))
    calls.commit()
    calls.push(request(3))

    def die(*_: object) -> None:
        monkeypatch.undo()
        shutil.copytree(tmp_path / "job", tmp_path / "killed")

    where = {
        "committed": (calls.scheduler.df, "release"),
        "released": (calls.scheduler.df, "note_frontier"),
        "noted": (calls.scheduler._handed_out, "reset"),
    }
    monkeypatch.setattr(*where[step], die)
    calls.commit()
    calls.stop()
    with opened(tmp_path / "killed", **BLOOM) as calls:
        assert calls.push(*map(request, (1, 2, 3))) == [False] * 3
        assert sorted(calls.drain()) == sorted(urls(1, 2, 3))


def test_after_a_kill_only_the_last_commit_is_shown_to_the_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the filter has noted is not shown again, what was committed after that is; a clean stop shows none."""
    killed(tmp_path / "a", [1, 2], [3])
    monkeypatch.setattr(DurableScheduler, "_note", lambda *_: None)
    killed(tmp_path / "b", [1, 2], [3])
    monkeypatch.undo()
    after = shown(monkeypatch)
    with opened(tmp_path / "a", **BLOOM):
        assert after == []
    with opened(tmp_path / "a", **BLOOM):
        assert after == []
    with opened(tmp_path / "b", **BLOOM) as calls:
        assert after == [-(2**63)]  # nothing was noted, so all
        assert calls.push(request(3)) == [False]


def test_after_a_power_failure_all_since_the_last_sync_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of the last sync, and a mark that is newer than they are, no request is lost or queued twice."""
    job = tmp_path / "job"
    calls = EngineCalls(job, **BLOOM)
    calls.push(request(1), request(2))
    calls.commit()
    calls.scheduler.df._chain.sync()
    bits = {path: path.read_bytes() for path in (job / "requests.bloom").glob("layer-*")}
    calls.push(request(3), request(4))
    calls.commit()
    calls.die()
    for path, content in bits.items():
        path.write_bytes(content)
    shutil.copytree(job, tmp_path / "twice")
    after = shown(monkeypatch)
    with another_boot(monkeypatch), opened(job, **BLOOM) as calls:
        assert after == [2]
        assert calls.push(*map(request, (1, 2, 3, 4))) == [False] * 4
        assert set(calls.drain()) == urls(1, 2, 3, 4)
    with another_boot(monkeypatch):
        with monkeypatch.context() as patch:  # killed before all was shown
            patch.setattr(DurableScheduler, "_show", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                EngineCalls(tmp_path / "twice", **BLOOM)
        with opened(tmp_path / "twice", **BLOOM) as calls:
            assert calls.push(*map(request, (1, 2, 3, 4))) == [False] * 4


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 1.0])
def test_a_power_failure_takes_back_unsynced_pages_of_filter_and_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: float
) -> None:
    """With the filter as of its last sync, and only a part of what the database wrote since its own, every request of a
    durable commit is pending, once; one of the commit that was cut off is new again, or whole if all of it was kept."""
    job, log = tmp_path / "job", tmp_path / "job" / f"{FRONTIER_NAME}-wal"
    calls = EngineCalls(job, **BLOOM)
    calls.push(request(1), request(2))
    calls.commit()
    calls.scheduler.df._chain.sync()
    bits = {path: path.read_bytes() for path in (job / "requests.bloom").glob("layer-*")}
    calls.push(request(3), request(4))
    calls.commit()
    synced = log.read_bytes()
    with monkeypatch.context() as patch:  # the power fails before the commit returns, so nobody is told of it
        patch.setattr(calls.scheduler._journal, "_committed", lambda *_: None)
        calls.push(request(5), request(6))
        calls.commit()
    unsynced = log.read_bytes()[len(synced) :]
    assert log.read_bytes().startswith(synced)
    assert unsynced
    shutil.copytree(job, tmp_path / "failed")
    calls.die()
    job = tmp_path / "failed"
    for path, content in bits.items():
        (job / path.relative_to(tmp_path / "job")).write_bytes(content)
    (job / log.name).write_bytes(synced + unsynced[: int(kept * len(unsynced))])
    (job / f"{FRONTIER_NAME}-shm").unlink(missing_ok=True)  # memory, which no power failure leaves
    after = shown(monkeypatch)
    whole = kept == 1.0
    with another_boot(monkeypatch), opened(job, **BLOOM) as calls:
        assert after == [2]
        assert calls.push(*map(request, range(1, 7))) == [False] * 4 + [not whole] * 2
        assert sorted(calls.drain()) == sorted(urls(*range(1, 7)))


# -- other filters, and brand-new jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dupefilter", ["scrapy.dupefilters.RFPDupeFilter", "scrapy.dupefilters.BaseDupeFilter"])
def test_a_new_job_with_scrapys_filter_is_not_warned_of_an_earlier_one(
    tmp_path: Path, dupefilter: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Scrapy's filter makes an empty requests.seen before the scheduler is open; one that remembers nothing cannot
    lose a page either."""
    with opened(tmp_path, DUPEFILTER_CLASS=dupefilter):
        pass
    assert "earlier crawl" not in caplog.text
    assert ("cannot hold fingerprints back" in caplog.text) == (dupefilter == "scrapy.dupefilters.RFPDupeFilter")


def test_scrapys_filter_works_as_ever(tmp_path: Path) -> None:
    """A frontier that was used with our filter goes on with Scrapy's, and back."""
    with opened(tmp_path, **BLOOM) as calls:
        calls.push(request(1), request(2))
    with opened(tmp_path, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter") as calls:
        calls.push(request(3))
    with opened(tmp_path, **BLOOM) as calls:
        assert calls.push(request(3)) == [False]
        assert set(calls.drain()) == urls(1, 2, 3)


# -- going back --------------------------------------------------------------------------------------------------------


def test_our_filter_alone_refuses_a_job_with_pending_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under another scheduler, BloomDupeFilter refuses a job whose pending requests that would not see; a job that has
    none is opened."""
    with opened(tmp_path, **BLOOM) as calls:
        calls.push(request(1))
    with pytest.raises(UnusableError, match=r"holds 1 pending request of scrapy_bloom\.DurableScheduler"):
        EngineCalls(tmp_path, SCRAPY, **BLOOM)
    assert "The crawl has not started" in caplog.text
    with opened(tmp_path, **BLOOM) as calls:
        calls.drain()
    with opened(tmp_path, SCRAPY, **BLOOM) as calls:
        assert calls.push(request(1), request(2)) == [False, True]


def test_scrapy_alone_fails_loudly_while_requests_of_ours_are_pending(tmp_path: Path) -> None:
    """Scrapy's own scheduler and filter cannot open a job that was theirs and has pending requests in the frontier;
    once there are none, they can."""
    theirs = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
    with opened(tmp_path, SCRAPY, **theirs) as calls:
        calls.push(request(1), request(2))
    with opened(tmp_path, **BLOOM) as calls:
        assert calls.push(request(1)) == [False]
    with pytest.raises(IsADirectoryError, match=r"requests\.queue/active\.json"):
        EngineCalls(tmp_path, SCRAPY, **theirs)
    assert not (tmp_path / "requests.seen").read_bytes()
    with opened(tmp_path, **BLOOM) as calls:
        assert set(calls.drain()) == urls(1, 2)
    with opened(tmp_path, SCRAPY, **theirs) as calls:
        assert calls.push(request(1)) == [True]


def test_a_request_that_a_subclass_replaces_is_done_at_a_clean_close(tmp_path: Path) -> None:
    """A scheduler whose next_request() returns another object than ours gave it: nothing is fetched again after a clean
    stop."""
    with opened(tmp_path, "tests.old.frontier.test_agreement.Replacing", **BLOOM) as calls:
        calls.push(request(1), request(2))
        calls.end(calls.start())
        assert len(calls.scheduler) == 1
    with opened(tmp_path, **BLOOM) as calls:
        assert calls.drain() == [request(1).url]


class Replacing(DurableScheduler):
    def next_request(self) -> Request | None:
        found = super().next_request()
        return None if found is None else found.replace(cookies={"session": "1"})
