"""One line switches everything on, and the user's own choice wins."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom import Addon
from scrapy_bloom.errors import UnusableError
from tests.support.crawls import ADDON
from tests.support.engine import SCRAPYS_FILTER, SCRAPYS_SCHEDULER

SCRAPYS_FEEDS = "scrapy.extensions.feedexport.FeedExporter"


def settings_with(spider: type[Spider] = Spider, **settings: Any) -> Any:
    return get_crawler(spider, {**ADDON, **settings}).settings


def chosen(settings: Any) -> tuple[str, str, bool, bool]:
    """Return the last names of filter and scheduler, and whether our feeds and our guard are on."""
    extensions = {load_object(each) for each, at in settings.getwithbase("EXTENSIONS").items() if at is not None}
    middlewares = {load_object(each) for each in settings.getdict("SPIDER_MIDDLEWARES")}
    names = [settings[name] if isinstance(settings[name], str) else settings[name].__name__ for name in CLASSES]
    ours = load_object("scrapy_bloom.FeedExporter") in extensions
    assert ours != (load_object(SCRAPYS_FEEDS) in extensions)
    return (
        *(name.rpartition(".")[2] for name in names),
        ours,
        load_object("scrapy_bloom.LoopGuardMiddleware") in middlewares,
    )


CLASSES = ("DUPEFILTER_CLASS", "SCHEDULER")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("BloomDupeFilter", "DurableScheduler", False, False)),
        ({"ADDONS": {Addon: 300}}, ("BloomDupeFilter", "DurableScheduler", False, False)),
        ({"JOBDIR": "job"}, ("BloomDupeFilter", "DurableScheduler", True, False)),
        ({"BLOOM_LOOP_GUARD": True}, ("BloomDupeFilter", "DurableScheduler", False, True)),
        ({"BLOOM_LOOP_GUARD": "False"}, ("BloomDupeFilter", "DurableScheduler", False, False)),
        ({"JOBDIR": "job", "BLOOM_LOOP_GUARD": {}}, ("BloomDupeFilter", "DurableScheduler", True, True)),
        ({"BLOOM_REDIS_URL": "redis://localhost"}, ("RedisBloomDupeFilter", "FleetScheduler", True, False)),
        ({"DUPEFILTER_CLASS": SCRAPYS_FILTER, "JOBDIR": "job"}, ("RFPDupeFilter", "DurableScheduler", True, False)),
    ],
)
def test_each_setting_switches_on_what_it_needs(
    settings: dict[str, Any], expected: tuple[str, str, bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filter and scheduler; with a job: the feeds, too; with the guard: its middleware; or a fleet's parts. The user's
    own class stays. The add-on may be named by its import path or be the class itself."""
    monkeypatch.chdir(tmp_path)
    assert chosen(settings_with(**settings)) == expected


def test_a_spider_may_name_the_job_and_choose(tmp_path: Path) -> None:
    """Scrapy asks add-ons after it has read the spider's own settings. Who switches feeds off has none."""

    class Choosy(Spider):
        name = "choosy"
        custom_settings = {"JOBDIR": str(tmp_path), "SCHEDULER": SCRAPYS_SCHEDULER}  # noqa: RUF012 - as spiders have it

    assert chosen(settings_with(Choosy)) == ("BloomDupeFilter", "Scheduler", True, False)
    off = {"EXTENSIONS": {SCRAPYS_FEEDS: None}, "JOBDIR": str(tmp_path)}
    extensions = settings_with(**off).getwithbase("EXTENSIONS")
    assert not any(at is not None for each, at in extensions.items() if "FeedExporter" in str(each))


@pytest.mark.parametrize("kind", ["file", "beneath a file"])
def test_a_job_directory_that_cannot_be_is_named(tmp_path: Path, kind: str) -> None:
    """The error says which setting names it, before Scrapy stumbles over it."""
    (tmp_path / "file").touch()
    jobdir = tmp_path / "file" if kind == "file" else tmp_path / "file" / "job"
    with pytest.raises(UnusableError, match="JOBDIR"):
        settings_with(JOBDIR=str(jobdir))


OLD_SCRAPY = """
import logging, sys
import scrapy

scrapy.__version__, scrapy.version_info = "2.12.0", (2, 12, 0)
from scrapy.crawler import CrawlerProcess

logging.basicConfig(format="%(levelname)s %(message)s")
try:
    process = CrawlerProcess({"ADDONS": {"scrapy_bloom.Addon": 300}})
    process.crawl(scrapy.Spider, name="any")
except ImportError:
    sys.exit(7)
"""


def test_a_scrapy_that_is_too_old_is_one_critical_line() -> None:
    """It names the version, and the crawl does not start."""
    done = subprocess.run([sys.executable, "-c", OLD_SCRAPY], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "CRITICAL" in line]
    assert "2.12.0" in line
