"""``verify_job`` and ``fix_job`` beside a running crawl, and what a fixed job keeps. ``test_damage`` has the damage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.verify import fix_job, verify_job
from tests.support.damage import REFUSED, begun, crawl, flip
from tests.support.engine import opened

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_a_crawl_runs_in_is_left_alone(tmp_path: Path) -> None:
    """Neither command looks at files that change meanwhile."""
    with opened(tmp_path):
        for command in (verify_job, fix_job):
            with pytest.raises(InUseError):
                command(tmp_path)


def test_a_directory_without_a_job_is_said(tmp_path: Path) -> None:
    """It stays empty."""
    for command in (verify_job, fix_job):
        with pytest.raises(UnusableError):
            command(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fixed_job_keeps_all_else(tmp_path: Path) -> None:
    """Feeds, failed requests, spider.state, counts and figures are copied, and the damaged database is kept."""
    job = begun(tmp_path)[-1]
    with opened(job.directory) as engine:
        request = engine.fetch()
        engine.end(request, 500)
        engine.spider.state["kept"] = True
    before = inspect_job(job.directory)
    content = job.database.read_bytes()
    flip(job.database, content.index(b"http://host-3.example/000233"), 1)
    assert crawl(job.copy("tried"))[0] == REFUSED
    assert verify_job(job.directory)
    assert fix_job(job.directory) == (len(job.pending) - 2, 1)  # without the failed one, and the damaged one
    after = inspect_job(job.directory)
    assert (after.feeds, after.failed, after.figures) == (before.feeds, before.failed, before.figures)
    assert (after.state.spider, after.state.runs, after.state.cycle) == ("site", 2, 1)
    kept = job.database.with_name("job.sqlite.damaged").read_bytes()
    assert len(kept) == len(content)
    with closing(sqlite3.connect(job.database)) as connection:
        notes = dict(connection.execute("SELECT key, body FROM note"))
    assert b"kept" in notes["spider.state"]
    with opened(job.directory) as engine:
        assert len(engine.drain()) == len(job.pending) - 2
