"""``scrapy bloom info --watch``: a crawl is followed from outside, and does not notice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.commands.watch import rates
from scrapy_bloom.old.files.figures import FIGURES_NAME, Figures
from tests.old.support.crawling import start_crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.schedulers import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


def row(seconds: int, run: int = 1, times: int = 1) -> Figures:
    return Figures(1000 + seconds, run, 20 * times, 90 * times, 10 * times, 0, 0, 0, 5, 0, 0, 0.0)


def test_rates_are_of_the_last_half_minute_of_this_run() -> None:
    """Rows of an earlier run and older ones do not count, and a crawl that stands still slows down to nothing."""
    rows = [row(0, 1, 1000), row(100, 2, 0), *(row(100 + 5 * number, 2, number) for number in range(1, 21))]
    assert rates(rows, now=1200) == (4, 18, 2)
    slow = rates(rows, now=1000 + 200 + 6 + 30)
    assert slow == (2, 9, 1)
    assert rates(rows[:1], now=1000) is None
    assert rates([], now=1000) is None


@pytest.fixture
def crawling(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A crawl that takes its time, in the job directory ``job``."""
    settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "JOBDIR": str(tmp_path / "job"),
        "DOWNLOAD_DELAY": 0.02,
        "LOG_LEVEL": "ERROR",
    }
    with LocalSite(pages=3000) as site:
        crawl = start_crawl(site.url("/page/0"), settings)
        while not (tmp_path / "job" / FIGURES_NAME).exists():
            assert crawl.process.poll() is None
            time.sleep(0.01)
        yield crawl.process
        crawl.process.kill()
        crawl.process.communicate()


def watching(job: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scrapy_bloom", "info", str(job), "--watch", "0.3", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_crawl_is_followed_until_it_is_killed(tmp_path: Path, crawling: subprocess.Popen[str]) -> None:
    """URLs, duplicates and pages with their rates, line by line; with SIGKILL of the crawl it ends by itself."""
    with watching(tmp_path / "job", "--json") as watcher:
        assert watcher.stdout is not None
        states = []
        for line in watcher.stdout:
            states.append(json.loads(line))
            if states[-1]["pages_per_second"]:
                crawling.kill()
        assert watcher.wait(timeout=30) == OK
        assert watcher.stderr is not None
        assert watcher.stderr.read() == ""
    *running, ended = states
    assert {state["running"] for state in running} == {True}
    assert ended["running"] is False
    assert ended["pages"] >= running[-1]["pages"] > 0
    assert running[-1]["urls_per_second"] > 0
    assert running[-1]["pending"] > 0


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_alone(tmp_path: Path, crawling: subprocess.Popen[str]) -> None:
    """Plain lines where the output is no terminal, exit code 0, no traceback, and the crawl goes on."""
    with watching(tmp_path / "job") as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        line = watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(timeout=30) == OK
        assert watcher.stderr.read() == ""
    assert re.match(r"\d\d:\d\d:\d\d UTC, [\d,]+ URLs.*, [\d,]+ duplicates.*, [\d,]+ pages", line)
    assert crawling.poll() is None


def test_where_no_crawl_runs_it_says_so_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line; on a terminal it is a table."""
    with opened(tmp_path, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter"):
        pass
    assert main(["info", str(tmp_path), "--watch"]) == OK
    assert "the crawl has ended, 0 URLs, 0 duplicates, 0 pages" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "none"), "--watch"]) == USAGE


def test_on_a_terminal_a_table_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same figures below each other."""
    with opened(tmp_path, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter"):
        pass
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["info", str(tmp_path), "--watch"]) == OK
    drawn = capsys.readouterr().out
    assert re.search(r"the crawl has ended.*URLs +0.*duplicates +0.*pages +0.*pending +\S", drawn, flags=re.DOTALL)
