"""A crawl with a job directory keeps its figures there, over all its runs, and never at its own cost."""

from __future__ import annotations

import csv
import logging
from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.old.files.figures import FIGURES_NAME, read_figures
from tests.old.support.crawling import crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.scheduling import finish, open_scheduler

if TYPE_CHECKING:
    from pathlib import Path


def test_counts_go_on_where_the_last_run_ended(tmp_path: Path) -> None:
    """Duplicates, pages and errors are those of the whole job, run after run; URLs are those that the filter knows."""
    for number in range(3):
        scheduler = open_scheduler(JOBDIR=str(tmp_path))
        assert scheduler.stats is not None
        scheduler.stats.set_stats(
            {
                **scheduler.stats.get_stats(),
                "response_received_count": 7,
                "downloader/exception_count": 5,
                "downloader/exception_type_count/scrapy.exceptions.IgnoreRequest": 3,  # parked: no failure
                "downloader/response_status_count/200": 5,
                "downloader/response_status_count/404": 1,
                "downloader/response_status_count/503": 1,
                "spider_exceptions/count": 4,
            }
        )
        for other in (0, 0, number + 5):
            scheduler.enqueue_request(Request(f"http://example.com/{other}"))
        finish(scheduler)
    rows = read_figures(tmp_path / FIGURES_NAME)
    assert [row.run for row in rows] == [1, 1, 2, 2, 3, 3]
    last = rows[-1]
    assert (last.urls, last.duplicates, last.pages) == (4, 1 + 2 + 2, 21)
    assert (last.failures, last.http_errors, last.spider_errors) == (6, 6, 12)


@pytest.mark.slow
def test_a_real_crawl_leaves_its_figures(tmp_path: Path) -> None:
    """Pages, pending requests and the time are there, readable by anything that reads CSV."""
    with LocalSite(pages=8) as site:
        ran = crawl(site.url("/page/0"), {"JOBDIR": str(tmp_path)})
    with (tmp_path / FIGURES_NAME).open(encoding="utf-8", newline="") as file:
        *_, last = csv.DictReader(file)
    assert int(last["pages"]) == ran.stats["response_received_count"]
    assert int(last["urls"]) == ran.stats["bloom/urls"]


def test_figures_that_cannot_be_kept_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory in their place: one WARNING, and the filter works as ever."""
    (tmp_path / FIGURES_NAME).mkdir()
    scheduler = open_scheduler(JOBDIR=str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="scrapy_bloom"):
        assert scheduler.enqueue_request(Request("http://example.com/"))
        assert not scheduler.enqueue_request(Request("http://example.com/"))
        finish(scheduler)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "scrapy_bloom.old.crawl.figures"]
    assert FIGURES_NAME in warning
