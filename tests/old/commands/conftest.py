"""Jobs that real crawls have left, made once for all processes that run tests; each test gets a copy."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from scrapy_bloom.old.commands.command_line import main
from tests.old.support.crawling import crawl
from tests.old.support.loopsite import LoopSite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GUARDED = {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_LOOP_GUARD": True, "ROBOTSTXT_OBEY": False}
FIFO = {
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
}


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, Callable[[Path], Any]], Path]:
    """Returns the directory of a name, which the first process that asks for it fills."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent

    def directory(name: str, fill: Callable[[Path], Any]) -> Path:
        path = shared / name
        with FileLock(f"{path}.lock"):
            if not path.exists():
                fill(path.with_name(f"{name}.unfinished"))
                path.with_name(f"{name}.unfinished").rename(path)
        return path

    return directory


@pytest.fixture
def guarded_job(tmp_path: Path, made_once: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    """A job with a calendar that has run dry, closed."""

    def fill(path: Path) -> None:
        with LoopSite() as site:
            crawl(site.url(), {**GUARDED, "JOBDIR": str(path)})

    return shutil.copytree(made_once("guarded", fill), tmp_path / "job")


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs a command with ``--json``; returns its exit code, and what it printed: an object, or an error as a line."""

    def run(*arguments: object) -> tuple[int, Any]:
        code = main([*map(str, arguments), "--json"])
        told = capsys.readouterr()
        if told.out:
            return code, json.loads(told.out)
        assert told.err.count("\n") == 1, told.err
        return code, told.err.strip()

    return run
