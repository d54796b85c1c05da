"""Whole crawls of a small site, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.crawls import Pages, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = {"DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter", "BLOOM_CAPACITY": 1000}
DURABLE = {**OURS, "SCHEDULER": "scrapy_bloom.components.scheduler.DurableScheduler"}
PAGES = 40


class Folders(Pages):
    """Pages in four folders, each linked to in several spellings, and all of them reached from the first."""

    def get(self, path: str, default: Any = None) -> Any:
        number = int(path.rpartition("/")[2].partition(".")[0])
        others = [*range(2 * number + 1, min(2 * number + 3, PAGES)), *range(number % 7, PAGES, 7)]
        spellings = ["/{0}/{1}.html", "../{0}/{1}.html", "../{0}/{1}.html#x", "/%6{2}/{1}.html#y"]
        links = [spellings[(number + other) % 4].format("abcd"[other % 4], other, other % 4 + 1) for other in others]
        return [*links, "#top"]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with Site(Folders()) as site:
        yield f"{site.url}/a/0.html"


def crawl(site: str, spiders: str, settings: dict[str, Any]) -> list[tuple[list[str], int]]:
    """Return for each of *spiders* the paths that it fetched, and how many links it dropped."""
    command = [sys.executable, "-m", "tests.links.crawl_child", site, spiders, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    assert "ERROR" not in done.stderr
    found: list[tuple[list[str], int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("spider", "settings"), [("ours", OURS), ("ours", DURABLE), ("asking", DURABLE), ("ours", {})])
def test_every_page_is_fetched(site: str, tmp_path: Path, spider: str, settings: dict[str, Any]) -> None:
    """In the rules of a CrawlSpider and in callbacks, with our filter or Scrapy's, all pages are fetched, and once."""
    jobdir = {"JOBDIR": str(tmp_path)} if settings is DURABLE else {}
    ((fetched, dropped),) = crawl(site, spider, {**settings, **jobdir})
    # The start page is a link, too: an unfiltered request is not remembered.
    assert sorted(fetched) == sorted(
        ["/a/0.html", *(f"/{'abcd'[number % 4]}/{number}.html" for number in range(PAGES))]
    )
    assert (dropped > PAGES) is bool(settings)


def test_crawls_of_one_process_are_kept_apart(site: str) -> None:
    """Spiders of one class share the extractor of its rules; none misses a page that another has seen."""
    for fetched, dropped in crawl(site, "ours,ours,ours", DURABLE):
        assert len(fetched) == PAGES + 1  # the start page is a link, too
        assert len(set(fetched)) == PAGES
        assert dropped > PAGES
