"""``release`` and ``requeue``: what a person gives back to a crawl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.loops.account import Account
from scrapy_bloom.old.loops.parked import ParkedFile
from scrapy_bloom.old.loops.verdicts import parked_shapes
from tests.old.commands.conftest import FIFO, GUARDED
from tests.old.support.crawling import crawl, start_crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.loopsite import LoopSite
from tests.old.support.redis_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
def test_release_takes_back_one_verdict(guarded_job: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """The shape that is named is not parked any more, the others are; the number says what that lets through."""
    lot = ParkedFile.open(guarded_job, None)
    lot.save([Account(5, "example.com/other/**").row()._replace(fetched=40, dry=30, told=1)], [])
    lot.park(5, Request("http://example.com/other/a"))
    lot.close(queue_is_kept=True)
    first, *others = parked_shapes(guarded_job)
    assert first.waiting
    assert others
    assert answer("release", guarded_job, first.shape) == (
        OK,
        {"directory": str(guarded_job), "shape": first.shape, "released": first.waiting},
    )
    after = {found.shape: found for found in parked_shapes(guarded_job)}
    assert (after[first.shape].is_taken_back, after[first.shape].waiting) == (True, 0)
    assert [after[found.shape] for found in others] == others


@pytest.mark.slow
def test_a_verdict_that_there_is_not_is_named_with_those_that_there_are(
    guarded_job: Path, answer: Callable[..., tuple[int, Any]]
) -> None:
    """A shape with a slip is an error that shows the shapes most like it; nothing changes."""
    before = parked_shapes(guarded_job)
    code, error = answer("release", guarded_job, f"{before[0].shape}x")
    assert code == USAGE
    assert repr(before[0].shape) in error
    assert parked_shapes(guarded_job) == before


@pytest.mark.slow
def test_requeue_puts_back_all_that_is_parked(guarded_job: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """No verdict is left, and a second time there is nothing more to put back than is waiting already."""
    waiting = sum(found.waiting for found in parked_shapes(guarded_job))
    for _ in range(2):
        assert answer("requeue", guarded_job) == (OK, {"directory": str(guarded_job), "requeued": waiting})
        assert parked_shapes(guarded_job) == []


@pytest.mark.slow
def test_a_job_that_a_crawl_holds_is_left_alone(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """Both commands refuse, in one line that says who has it, while a crawl without the guard runs there, too."""
    with LocalSite() as site:
        running = start_crawl(site.url("/held/it"), {"JOBDIR": str(tmp_path), "DOWNLOAD_TIMEOUT": 60})
        site.wait_for_hits(1, "/held/it")
        try:
            for command in (["requeue"], ["release", "example.com/**"]):
                code, error = answer(command[0], tmp_path, *command[1:])
                assert code == USAGE
                assert f"{tmp_path / 'requests.bloom'} is in use by process {running.process.pid} on " in error
        finally:
            running.process.kill()
            running.process.communicate()
    assert answer("requeue", tmp_path) == (OK, {"directory": str(tmp_path), "requeued": 0})


def test_what_a_worker_of_a_fleet_has_parked_is_shown_and_given_back(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its filter and its queue are on the server; info, verify and requeue find what is in its job directory."""
    lot = ParkedFile.open(tmp_path, None)
    account = Account(7, "example.com/a/**")
    account.has_run_dry = True
    lot.save([account.row()], [])
    lot.park(account.id, Request("http://example.com/a/1"))
    lot.close(queue_is_kept=True)
    code, found = answer("info", tmp_path)
    assert (code, found["exists"], found["pending"], found["findings"]) == (OK, False, 0, [])
    assert [(each["shape"], each["waiting"]) for each in found["verdicts"]] == [("example.com/a/**", 1)]
    assert main(["info", str(tmp_path)]) == OK
    shown = capsys.readouterr().out
    assert f"{tmp_path / 'requests.bloom'}: none, as with a fleet's worker" in shown
    assert "example.com/a/**" in shown
    assert answer("verify", tmp_path)[1]["findings"] == []
    assert answer("requeue", tmp_path)[1]["requeued"] == 1


def test_no_job_is_an_error(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """An empty directory is no job, and neither is an address; a password in it is not repeated."""
    assert answer("requeue", tmp_path)[0] == USAGE
    code, error = answer("release", "ftp://me:secret@host/", "example.com/**")
    assert code == USAGE
    assert "secret" not in error


@pytest.mark.slow
def test_requeued_pages_are_tried_again(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """The next run fetches some of what was parked, finds that it still brings nothing, and parks the rest again; once
    it brings something, all of it is fetched."""
    settings = {**GUARDED, **FIFO, "JOBDIR": str(tmp_path), "CLOSESPIDER_PAGECOUNT": 400}
    with LoopSite() as site:
        crawl(site.url(), settings)
        fetched = site.hits("/calendar/")
        requeued = answer("requeue", tmp_path)[1]["requeued"]
        assert requeued > 10
        second = crawl(site.url(), settings)
        assert second.stats["finish_reason"] == "finished"
        assert second.stats["bloom/loop/released"] >= requeued
        assert site.hits("/calendar/") >= fetched + 25
        assert "has run dry and is parked" in second.log
        site.fill()
        fetched = site.hits("/calendar/")
        requeued = answer("requeue", tmp_path)[1]["requeued"]
        third = crawl(site.url(), settings)
        assert third.stats["bloom/loop/released"] >= min(64, requeued)
        assert "bloom/loop/verdicts" not in third.stats
        assert site.hits("/calendar/") > fetched + 100


@pytest.mark.parametrize(
    "arguments", [["requeue", "--list"], ["requeue", "--id", "7"], ["requeue", "--key", "k"], ["info", "--spider", "s"]]
)
def test_options_of_a_server_are_refused_for_a_directory(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], arguments: list[str]
) -> None:
    """Above all `--list`, which must not put anything back."""
    code, error = answer(*arguments, tmp_path)
    assert code == USAGE
    assert error.startswith(f"{arguments[1]} can be asked of a fleet's server only, and {tmp_path} is a job directory.")


def test_a_server_that_is_not_there_is_a_sentence(answer: Callable[..., tuple[int, Any]]) -> None:
    """It ends in one full stop, and names no setting: the address was on the command line."""
    code, error = answer("info", f"redis://127.0.0.1:{free_port()}")
    assert code == USAGE
    assert ".." not in error
    assert error.endswith(". Start the server, or put the right host and port into the address.")


@pytest.mark.parametrize(
    "command", ["info", "verify", "check", "report", "plot", "requeue", "release", "import", "merge"]
)
def test_the_job_of_several_workers_is_recognised(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], command: str
) -> None:
    """A command that cannot read it says what it is, and how to go on with it or look into it."""
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "spider").write_text("books\n", encoding="utf-8")
    more = {
        "check": ["https://example.com/"],
        "report": ["-o", tmp_path / "r.html"],
        "plot": ["-o", tmp_path / "p.svg"],
        "release": ["example.com/**"],
        "import": [__file__],
    }
    places = [tmp_path / "out", tmp_path] if command == "merge" else [tmp_path]
    code, error = answer(command, *places, *more.get(command, []))
    assert code == USAGE
    assert "holds a crawl of several workers (spider books)" in error
    assert "BLOOM_REDIS_URL" in error


def test_a_job_that_never_had_the_guard_says_so(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """`release` has nothing to take back there, and `requeue` nothing that is parked."""
    open_filter(tmp_path / "requests.bloom").close()
    code, error = answer("release", tmp_path, "example.com/**")
    assert code == USAGE
    assert f"{tmp_path} has no verdicts: the loop guard was never on in this job." in error
    assert main(["requeue", str(tmp_path)]) == OK
    assert capsys.readouterr().out == "Nothing is parked.\n"
