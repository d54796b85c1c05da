"""Without a private part of Scrapy, a crawl goes on, and one line of the log says what is lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy.link import Link

from scrapy_bloom.components.hooks import LOSSES
from scrapy_bloom.links.extractor import UnseenLinkExtractor
from tests.support.crawls import ADDON, FollowSpider, Site, crawl, tree

LINKS = "scrapy.linkextractors.lxmlhtml.LxmlLinkExtractor._link_allowed"
PARTS = [
    "scrapy.core.engine._Slot.inprogress",
    "scrapy.core.engine._Slot.nextcall",
    "scrapy.core.downloader.Slot.delay",
    "scrapy.core.engine.ExecutionEngine._download",
    "scrapy.core.engine.ExecutionEngine._handle_downloader_output",
    "scrapy.core.scraper.Scraper.handle_spider_output_async",
    "scrapy.core.scraper.Scraper.handle_spider_error",
    "scrapy.extensions.feedexport.FeedExporter._start_new_batch",
    LINKS,
    "scrapy.core.engine.ExecutionEngine._spider_closed_callback",
]
"""In the order of the table."""
PAGES = 12


class UnseenSpider(FollowSpider):
    """Extracts its links with UnseenLinkExtractor."""

    def links(self, response: Any) -> list[Link]:
        return UnseenLinkExtractor().extract_links(response)


@pytest.mark.parametrize("in_job", [True, False])
@pytest.mark.parametrize(
    "parts", [PARTS, *(pytest.param([part], marks=pytest.mark.slow) for part in PARTS)], ids=lambda parts: parts[-1]
)
def test_a_missing_part_is_one_line(tmp_path: Path, parts: list[str], in_job: bool) -> None:
    """Each page and each item still comes once, also if all parts are missing."""
    feed = tmp_path / "items.jl"
    settings = {
        "ADDONS": {"tests.support.hidden.HideParts": 1, **ADDON["ADDONS"]},
        "HIDDEN": parts,
        "JOBDIR": str(tmp_path / "job") if in_job else None,
        "SPIDER": f"{__name__}.UnseenSpider" if parts == [LINKS] else "tests.support.crawls.FollowSpider",
        "FEEDS": {str(feed): {"format": "jsonlines"}},
    }
    with Site(tree(PAGES)) as site:
        outcome = crawl(site, tmp_path, settings)
        assert set(site.hits.values()) == {1}
        assert len(site.hits) == PAGES + 1
    assert outcome.stats["finish_reason"] == "finished"
    lost = [loss for part, loss in zip(PARTS, LOSSES.values(), strict=False) if part in parts]
    assert [[loss for loss in lost if loss in line] for line in outcome.lines("WARNING")] == [[loss] for loss in lost]
    assert not outcome.lines("ERROR") + outcome.lines("CRITICAL")
    lines = feed.read_text().splitlines()
    assert len(lines) == len(set(lines)) == PAGES + 1


@pytest.mark.slow
def test_without_the_parts_of_a_request_fingerprints_are_scrapys() -> None:
    """This is looked at when the package is imported, and so in a process that has not imported it."""
    script = """
from tests.support.hidden import hide
hide("scrapy.Request._body")
from scrapy import Request
from scrapy.utils.request import fingerprint
from scrapy_bloom.components.fingerprints import IS_FAST, fingerprints_under
from scrapy_bloom.components.hooks import LOSSES
from scrapy_bloom.url.rules import Rules
from tests.support.engine import opened
of_request, _ = fingerprints_under(Rules())
request = Request("http://a.example/?b=1&a=2", body="c")
assert not IS_FAST and of_request(request) == fingerprint(request)
with opened(None) as engine:
    assert engine.crawl.missing_hooks == list(LOSSES)[-1:]
    assert engine.push(request, request) == [True, False]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
