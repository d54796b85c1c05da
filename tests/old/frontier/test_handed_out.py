"""The count of requests handed out since the last commit, and what the next run says about it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.old.frontier.handed_out import HandedOut
from scrapy_bloom.old.frontier.scheduler import HANDED_OUT_NAME
from tests.old.support.killed_crawling import ROOT
from tests.old.support.schedulers import EngineCalls, opened

if TYPE_CHECKING:
    from pathlib import Path

REFETCHED = "bloom/frontier/refetched"


def requests(*numbers: int, **options: object) -> list[Request]:
    return [Request(f"http://example.com/{n}", **options) for n in numbers]


def test_what_was_counted_before_sigkill_is_in_the_file(tmp_path: Path) -> None:
    """Every call of count() that returned before SIGKILL is in the file."""
    script = (
        "import os, pathlib, signal, sys; from scrapy_bloom.old.frontier.handed_out import HandedOut\n"
        "handed_out = HandedOut(pathlib.Path(sys.argv[1])); handed_out.begin()\n"
        "handed_out.count(); handed_out.seal(); handed_out.reset()\n"
        "for _ in range(70_000): handed_out.count()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "handed"
    command = [sys.executable, "-c", script, str(path)]
    assert subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode == -9
    assert HandedOut(path).previous() == 70_000
    assert [file.name for file in tmp_path.iterdir()] == ["handed"]


@pytest.mark.parametrize("content", [None, b"", b"1234567", b"123456789"])
def test_a_file_that_is_missing_or_odd_is_no_number(tmp_path: Path, content: bytes | None) -> None:
    """Without a file of the right size the number is not known; the next one begins at 0 all the same."""
    path = tmp_path / "handed"
    if content is not None:
        path.write_bytes(content)
    handed_out = HandedOut(path)
    assert handed_out.previous() is None
    handed_out.begin()
    assert HandedOut(path).previous() == 0
    handed_out.end()


def test_where_no_file_can_be_made_no_older_number_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the file cannot be made anew, a WARNING says so, counting goes on, and the older file is gone."""
    path = tmp_path / "handed"
    path.write_bytes(bytes(8))
    (tmp_path / "handed.new").mkdir()  # in the way of what is renamed
    handed_out = HandedOut(path)
    handed_out.begin()
    handed_out.count()
    handed_out.reset()
    handed_out.end()
    assert "The crawl goes on" in caplog.text
    assert HandedOut(path).previous() is None


def test_it_says_how_much_is_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a kill: the requests in flight at the last commit and those handed out after it, finished or not."""
    calls = EngineCalls(tmp_path)
    calls.push(*requests(*range(9)))
    for _ in range(3):
        calls.end(calls.start())
    calls.start()
    calls.start()
    calls.commit()
    for _ in range(3):
        calls.end(calls.start())
    calls.push(*requests(10, meta={"f": lambda: None}))  # not in the file, and found again with the page it is on
    calls.start()
    calls.die()
    caplog.clear()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/in_flight") == 2
        assert calls.stats.get_value(REFETCHED) == 2 + 4
        assert "Recovered 6 pending requests. Pages that are fetched again because of that: at most 6 (" in caplog.text
        assert "(in flight at its last commit: 2, handed out after it: 4)" in caplog.text


@pytest.mark.parametrize("kill_at", ["release", "reset"])
def test_a_kill_within_a_commit_makes_the_number_too_large_at_worst(
    tmp_path: Path, kill_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the filter has the fingerprints of a commit, what was done before it counts as fetched again."""
    calls = EngineCalls(tmp_path)
    calls.push(*requests(1, 2, 3))
    calls.end(calls.start())
    scheduler = calls.scheduler
    part = scheduler.df if kill_at == "release" else scheduler._handed_out
    monkeypatch.setattr(part, kill_at, lambda: shutil.copytree(tmp_path, tmp_path / "killed"))
    calls.commit()
    monkeypatch.undo()
    calls.stop()
    with opened(tmp_path / "killed") as calls:
        assert calls.stats.get_value(REFETCHED) == 1
        assert calls.push(*requests(3)) == [kill_at == "release"]  # page 3 was done: fetched again, or known


def test_a_number_that_is_not_known_is_not_made_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the file the WARNING says that the number is not known, and there is no stat of it."""
    calls = EngineCalls(tmp_path)
    calls.push(*requests(1, 2))
    calls.start()
    calls.commit()
    calls.die()
    (tmp_path / HANDED_OUT_NAME).unlink()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/in_flight") == 1
        assert calls.stats.get_value(REFETCHED) is None
        assert "Recovered 2 pending requests." in caplog.text
        assert f"not known (in flight at its last commit: 1, handed out after it: {tmp_path}" in caplog.text


def test_after_a_clean_stop_nothing_is_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A clean stop is followed by no such number; a kill before the next run hands anything out, by 0."""
    caplog.set_level(logging.WARNING)
    with opened(tmp_path) as calls:
        calls.push(*requests(*range(5)))
        calls.start()
    calls = EngineCalls(tmp_path)
    assert calls.stats.get_value(REFETCHED) is None
    assert caplog.text == ""
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value(REFETCHED) == 0


def test_a_run_that_could_not_write_to_its_end_says_what_is_fetched_again(tmp_path: Path) -> None:
    """If the last commit failed at a clean stop, what was handed out before it is counted by the next run."""
    calls = EngineCalls(tmp_path)
    calls.push(*requests(0, 1, 2))
    calls.commit()
    calls.end(calls.start())
    calls.scheduler._journal.give_up()
    calls.stop()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value(REFETCHED) == 1
