"""What ``kill -9`` leaves of a crawl: every page is fetched, and each item stands in the feeds once."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom.job.verify import verify_job
from tests.support.engine import RAM
from tests.support.killed_crawls import CrawlOfSite, run, run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork() there")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in RAM where there is one: a kill loses nothing that the kernel has, wherever that is."""
    with tempfile.TemporaryDirectory(dir=RAM) as name:
        yield Path(name)


def killed_once(directory: Path, kills_at: list[int], **changes: Any) -> None:
    """Kill a crawl before each of these steps, and go on with it; nothing is lost, and nothing is done twice."""
    crawls = [CrawlOfSite(directory / f"killed-{step}", kill_at=step, **changes) for step in kills_at]
    endings = run(crawls)
    # The others took fewer steps this time, or were killed when all was done.
    killed = [crawl for crawl, ending in zip(crawls, endings, strict=True) if ending and not crawl.is_closed]
    assert len(killed) > len(crawls) / 2
    before = [(crawl.finished(), len(crawl.fetched())) for crawl in killed]
    assert run([replace(crawl, kill_at=0) for crawl in killed]) == [0] * len(killed)
    for crawl, (finished, fetched) in zip(killed, before, strict=True):
        crawl.check()
        assert not finished & set(crawl.fetched()[fetched:]), "a page whose commit was whole was fetched again"
        assert verify_job(crawl.job) == []


def steps_of(directory: Path) -> int:
    dry = run_to_the_end(CrawlOfSite(directory / "dry", counts=True))
    dry.check()
    assert Counter(dry.fetched()) == Counter(range(dry.pages))
    return int((dry.directory / "steps").read_text())


@pytest.mark.slow
def test_a_kill_at_any_step_loses_nothing(directory: Path) -> None:
    """Before or after a statement, a sync, a change of bits or watermark, also while the job is begun or closed:
    resumed, the crawl has every page and item, and fetches no page again whose commit was whole."""
    steps, random_ = steps_of(directory), random.Random(31)
    begin, end = range(1, 120, 15), range(steps - 130, steps, 16)
    killed_once(directory, sorted({*begin, *random_.sample(range(120, steps - 130), 20), *end}))


def test_a_kill_before_the_first_commit_begins_anew(directory: Path) -> None:
    """Nothing was handed out before the job was begun, so nothing is missing, however often that happens."""
    crawl = CrawlOfSite(directory / "crawl")
    for step in (5, 60):
        assert run([replace(crawl, kill_at=step)]) == [-9]
    run_to_the_end(crawl).check()
