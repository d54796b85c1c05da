"""``export`` and ``requeue``: requests change places, and none is lost on the way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.commands.terminal import OK, USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.commands.conftest import Answer, Scrapy, Site


PLAIN = ("-s", "SCHEDULER=scrapy.core.scheduler.Scheduler")


@pytest.fixture
def repaired(site: Site) -> Iterator[Site]:
    """The site, on which nothing is broken any more."""
    site.is_broken = False
    yield site
    site.is_broken = True


def test_scrapys_own_scheduler_goes_on_with_an_exported_job(
    job: Path, left: Path, scrapy: Scrapy, answer: Answer, site: Site
) -> None:
    """All that was pending is handed over, so that both crawls together fetch each page of the site."""
    pending = answer("info", job)[1]["pending"]
    fetched = {int(page) for page in re.findall(r'/(\d+)"', left.with_suffix(".jl").read_text())}
    exported = scrapy("bloom", "export", "books", "-s", f"JOBDIR={job}", "--json")
    assert (exported.returncode, f'"exported": {pending}' in exported.stdout) == (OK, True), exported.stderr
    assert answer("info", job)[1]["pending"] == 0
    site.hits.clear()
    crawled = scrapy("crawl", "books", "-s", f"JOBDIR={job}", *PLAIN)
    assert crawled.returncode == OK, crawled.stderr
    assert fetched | site.pages() == set(range(80))


def test_an_export_that_cannot_be_is_one_line(job: Path, scrapy: Scrapy, answer: Answer, tmp_path: Path) -> None:
    """No JOBDIR, no job, no such spider: each is told without a traceback."""
    for arguments, named in (([], "JOBDIR"), (["-s", f"JOBDIR={tmp_path}/nowhere"], "nowhere")):
        code, error = answer("export", "books", *arguments)
        assert (code, named in error) == (USAGE, True)
    ran = scrapy("bloom", "export", "what", "-s", f"JOBDIR={job}")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (USAGE, "", 1)
    assert "books" in ran.stderr


def test_what_has_failed_is_fetched_again(job: Path, scrapy: Scrapy, answer: Answer, repaired: Site) -> None:
    """Once, in the next run, however often it had failed; `--list` only lists it."""
    code, listed = answer("requeue", job, "--list")
    pending = answer("info", job)[1]["pending"]
    assert (code, listed["requeued"]) == (OK, 0)
    assert {each["failed"] for each in listed["failures"]} == {f"{repaired.url}/broken"}
    assert answer("requeue", job)[1]["requeued"] == 1
    found = answer("info", job)[1]
    assert (found["pending"], found["failed"]) == (pending + 1, 0)
    assert answer("verify", job)[0] == OK
    repaired.hits.clear()
    crawled = scrapy("crawl", "books", "-s", f"JOBDIR={job}")
    assert crawled.returncode == OK, crawled.stderr
    assert "/broken" in repaired.hits
    assert answer("requeue", job)[1] == {"directory": str(job), "requeued": 0, "failures": []}
