"""Whatever keeps a crawl from starting, one CRITICAL line says so, and spider.state survives."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom import Addon, BloomDupeFilter
from scrapy_bloom.old.crawl.startup import log_start_errors
from scrapy_bloom.old.errors import UnusableError
from tests.old.support.crawling import start_crawl

if TYPE_CHECKING:
    from pathlib import Path

STATE = {"seen": 7}


def refused(settings: dict[str, Any]) -> str:
    """Return the one CRITICAL line of a real crawl that does not start."""
    outcome = start_crawl("data:,x", settings).finish()
    (line,) = [line for line in outcome.log.splitlines() if "[scrapy_bloom" in line and "] CRITICAL:" in line]
    assert outcome.stats.get("downloader/request_count") is None
    return line.partition("CRITICAL: ")[2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1e30", "BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not '1e30'"),
        ("1e12", "It needs 4,085,495,891,536 bytes there, and "),
    ],
)
def test_an_absurd_capacity_says_so_and_keeps_the_spiders_state(value: str, said: str, tmp_path: Path) -> None:
    """In a job directory: a capacity far beyond any crawl, and one that takes more than the disk has."""
    state = tmp_path / "spider.state"
    state.write_bytes(pickle.dumps(STATE))
    settings = {"JOBDIR": str(tmp_path), "SCHEDULER": "scrapy_bloom.DurableScheduler", "BLOOM_CAPACITY": value}
    log = start_crawl("data:,x", settings).finish().log
    (at,) = [
        number for number, line in enumerate(log.splitlines()) if "[scrapy_bloom" in line and "] CRITICAL:" in line
    ]
    assert said in "\n".join(log.splitlines()[at : at + 2])
    assert pickle.loads(state.read_bytes()) == STATE


def test_a_capacity_beyond_the_memory_says_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    """Without JOBDIR the filter lives in memory, and the way out is named."""
    dupefilter = build_from_crawler(BloomDupeFilter, get_crawler(Spider, {"BLOOM_CAPACITY": 10**12}))
    with pytest.raises(UnusableError):
        dupefilter.open()
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert record.getMessage() == (
        "The crawl has not started. The filter in memory cannot be begun: Cannot allocate memory. It needs "
        "4,085,495,891,536 bytes. Lower BLOOM_CAPACITY, the URLs that its first layer is made for: it grows by itself."
    )


@pytest.mark.slow
@pytest.mark.parametrize("value", ["maybe", '{"dept": 3}'])
def test_a_wrong_loop_guard_is_told_with_all_other_wrong_settings(value: str) -> None:
    """The middleware is built before the filter; one CRITICAL line names every wrong setting nevertheless."""
    settings = {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_LOOP_GUARD": value, "BLOOM_CAPACITY": "many"}
    log = start_crawl("data:,x", settings).finish().log
    (told,) = [part for part in log.split("] CRITICAL: ")[1:] if part.startswith("The crawl has not started")]
    problems = told.partition("Traceback")[0]
    assert "BLOOM_LOOP_GUARD" in problems
    assert "BLOOM_CAPACITY" in problems


@pytest.mark.parametrize("scheduler", ["scrapy.core.scheduler.Scheduler", "scrapy_bloom.DurableScheduler"])
def test_a_jobdir_that_is_a_file_says_so(scheduler: str, tmp_path: Path) -> None:
    """Not a traceback about requests.queue."""
    (tmp_path / "file").touch()
    line = refused({"JOBDIR": str(tmp_path / "file"), "SCHEDULER": scheduler})
    assert line == (
        f"The crawl has not started. JOBDIR={tmp_path}/file is a file, not a directory. Set JOBDIR to a directory that "
        "this user may create or write to, one for each spider."
    )


def test_a_jobdir_that_cannot_be_created_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the add-on, which Scrapy asks before it creates the directory itself."""
    (tmp_path / "file").touch()
    with pytest.raises(UnusableError):
        Addon().update_settings(Settings({"JOBDIR": str(tmp_path / "file" / "job")}))
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert "/file/job cannot be created: Not a directory. Set JOBDIR to" in record.getMessage()


def test_a_jobdir_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of somebody else's; patched, since the tests may run as root, who may write everywhere."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UnusableError, match="cannot be written to"):
        build_from_crawler(BloomDupeFilter, get_crawler(Spider, {"JOBDIR": str(tmp_path)}))


def test_an_error_is_logged_once_whatever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler opens the filter, and each of them tells what it sees."""
    import logging

    logger = logging.getLogger("scrapy_bloom.test")
    with (
        pytest.raises(MemoryError),
        log_start_errors(logger),
        log_start_errors(logger),
    ):
        raise MemoryError("no room")
    assert caplog.messages == ["The crawl has not started. MemoryError: no room"]
