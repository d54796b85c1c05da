"""One line of ADDONS switches on what can be switched on, and no choice of the user's is overruled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from tests.old.support.killed_crawling import finish
from tests.old.support.localsite import LocalSite

if TYPE_CHECKING:
    from pathlib import Path

ADDONS = {"scrapy_bloom.Addon": 300}
OURS = ("scrapy_bloom.BloomDupeFilter", "scrapy_bloom.DurableScheduler")
SCRAPYS = "scrapy.core.scheduler.Scheduler"


def chosen(
    *, project: dict[str, Any] | None = None, spider: dict[str, Any] | None = None, cmdline: Any = None
) -> tuple:
    class OneSpider(Spider):
        name = "one"
        custom_settings = spider or {}

    settings = Settings({"ADDONS": ADDONS, **(project or {})}, "project")
    settings.setdict(cmdline or {}, "cmdline")
    crawler = Crawler(OneSpider, settings)
    crawler._apply_settings()
    return crawler.settings["DUPEFILTER_CLASS"], crawler.settings["SCHEDULER"]


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize("where", ["project", "spider", "cmdline"])
def test_with_a_job_directory_both_are_switched_on(where: str, tmp_path: Path) -> None:
    """Wherever JOBDIR is given, the filter and the durable scheduler are chosen; without it, the filter alone."""
    assert chosen(**{where: {"JOBDIR": str(tmp_path)}}) == OURS
    assert chosen() == (OURS[0], SCRAPYS)


@pytest.mark.parametrize("where", ["project", "spider", "cmdline"])
def test_with_a_server_the_crawl_is_a_worker_of_a_fleet(where: str, tmp_path: Path) -> None:
    """Wherever BLOOM_REDIS_URL is given, queue and filter on that server are chosen, with JOBDIR and without."""
    fleet = ("scrapy_bloom.RedisBloomDupeFilter", "scrapy_bloom.FleetScheduler")
    for jobdir in (None, str(tmp_path)):
        assert chosen(**{where: {"BLOOM_REDIS_URL": "redis://localhost", "JOBDIR": jobdir}}) == fleet


@pytest.mark.parametrize("where", ["project", "spider", "cmdline"])
def test_what_the_user_has_chosen_stays(where: str, tmp_path: Path) -> None:
    """A class chosen in the project, the spider or on the command line is kept, Scrapy's default ones too."""
    choice = {"SCHEDULER": SCRAPYS, "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter", "JOBDIR": str(tmp_path)}
    assert chosen(**{where: choice}) == ("scrapy.dupefilters.RFPDupeFilter", SCRAPYS)


def test_a_crawl_with_the_addon_runs_on_our_classes(tmp_path: Path) -> None:
    """A real crawl with one line of ADDONS fetches every page and leaves both of our files in the job directory."""
    settings = {"ADDONS": ADDONS, "SCHEDULER": None, "DUPEFILTER_CLASS": None}
    with LocalSite(pages=30) as site:
        crawl = finish(site.url(), tmp_path, settings=settings)
        assert site.missing_pages() == []
        assert site.hits() == crawl.stats["scheduler/enqueued/disk"]
    assert crawl.stats["bloom/urls"] == crawl.stats["scheduler/enqueued/disk"]
    assert {"requests.bloom", "requests.frontier"} <= {path.name for path in (tmp_path / "job").iterdir()}
