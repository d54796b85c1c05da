"""The lines that tell a person how the filter is doing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.old.crawl.progress import Progress
from tests.old.support.crawling import crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.scheduling import finish, open_scheduler

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OURS = "scrapy_bloom.old.dupefilter"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == OURS and record.levelname == "INFO"]


def test_a_crawl_says_what_it_begins_with_and_what_it_ends_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is switched on and what the job directory holds; what was checked, and what the filter knows now."""
    where = f"in {tmp_path}/requests.bloom"
    with caplog.at_level(logging.INFO, logger=OURS):
        for number in range(2):
            scheduler = open_scheduler(JOBDIR=str(tmp_path), BLOOM_LOOP_GUARD=True)
            for other in (0, 1, number + 5):
                scheduler.enqueue_request(Request(f"http://example.com/{other}"))
            finish(scheduler)
    room = "4.1 MB for the first 1,000,000 URLs"
    assert said(caplog) == [
        f"BloomDupeFilter, loop guard. The filter {where} is empty: {room}, and it grows by itself.",
        "This run checked 3 URLs: 3 new, 0 duplicates (0%)",
        f"The filter knows 3 URLs in 1 layer, 4.1 MB, {where}. Pages that its error rate may have cost: under 0.001",
        f"BloomDupeFilter, loop guard. The filter {where} knows 3 URLs in 1 layer, 4.1 MB.",
        "This run checked 3 URLs: 1 new, 2 duplicates (67%)",
        f"The filter knows 4 URLs in 1 layer, 4.1 MB, {where}. Pages that its error rate may have cost: under 0.001",
    ]


def test_urls_that_are_too_old_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age at the start, with the room of a layer that is made for an eighth; what is forgotten, while the crawl
    runs and when it comes back. What was forgotten still counts as checked."""
    now = [1e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    settings = {"JOBDIR": str(tmp_path), "BLOOM_MAX_AGE": "2m", "BLOOM_CAPACITY": 8000}
    with caplog.at_level(logging.INFO, logger=OURS):
        scheduler = open_scheduler(**settings)
        for number in range(30):
            scheduler.enqueue_request(Request(f"http://example.com/{number}"))
        now[0] += 121
        for number in range(5):
            scheduler.enqueue_request(Request(f"http://example.com/{number}"))
        finish(scheduler)
        now[0] += 121
        finish(open_scheduler(**settings))
    lines = said(caplog)
    assert lines[0].startswith("BloomDupeFilter, maximum age 2 min. The filter")
    assert "for the first 1,000 URLs" in lines[0]
    assert [line for line in lines if "forgotten" in line] == [
        f"{count} URLs were forgotten for their age: BLOOM_MAX_AGE is 2 min" for count in (30, 5)
    ]
    assert "This run checked 35 URLs: 35 new, 0 duplicates (0%)" in lines


def test_each_new_layer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The line comes once, when the layer begins."""
    scheduler = open_scheduler(BLOOM_CAPACITY=10)
    with caplog.at_level(logging.INFO, logger=OURS):
        for number in range(40):
            scheduler.enqueue_request(Request(f"http://example.com/{number}"))
    grown = [line for line in said(caplog) if "grown" in line]
    assert [line.partition(" at ")[2] for line in grown] == ["11 URLs", "31 URLs"]
    assert grown[0].startswith("The filter has grown to 2 layers, 30.9 kB")
    scheduler.close("finished")


def test_a_line_a_minute_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """URLs, duplicates, checks per second since the last line, fill, expected loss; nothing if nothing happened."""
    stats: Any = MemoryStatsCollector(get_crawler(Spider))
    now = [100.0]
    progress = Progress(logging.getLogger(OURS), stats, lambda: None, clock=lambda: now[0])
    progress.opened(["BloomDupeFilter"], "in memory", 1000)
    with caplog.at_level(logging.INFO, logger=OURS):
        for urls, duplicates, fill in [(3000, 9000, 0.25), (3000, 9000, 0.25), (4000, 14000, 0.5)]:
            now[0] += 60
            stats.set_value("bloom/urls", urls)
            stats.set_value("dupefilter/filtered", duplicates)
            stats.set_value("bloom/fill_ratio", fill)
            stats.set_value("bloom/expected_lost", urls / 1e6)
            progress.tick()
    assert said(caplog) == [
        "Seen 3,000 URLs and 9,000 duplicates (200 checks/s). Newest layer 42 % full, expected loss 0.003 pages",
        "Seen 4,000 URLs and 14,000 duplicates (50 checks/s). Newest layer 100 % full, expected loss 0.004 pages",
    ]
    progress.closed("in memory")


def test_a_real_crawl_has_its_lines() -> None:
    """One at the start and two at the end; the timer of the lines between ends with the crawl."""
    with LocalSite(pages=5) as site:
        log = crawl(site.url("/page/0")).log
    lines = [line for line in log.splitlines() if f"[{OURS}] INFO" in line]
    assert len(lines) == 3
    assert "Unhandled" not in log


def test_what_the_loop_guard_did_is_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    """What is parked may have been new in an earlier run; what is beyond a limit never came as far as the filter."""
    stats: Any = MemoryStatsCollector(get_crawler(Spider))
    progress = Progress(logging.getLogger(OURS), stats, lambda: None)
    progress.opened(["BloomDupeFilter"], "in memory", 1000)
    values = {"bloom/urls": 50, "bloom/loop/parked": 20, "bloom/loop/depth": 7, "bloom/loop/params": 3}
    stats.set_stats({**values, "dupefilter/filtered": 40, "bloom/loop/news_bytes": 10**6})
    with caplog.at_level(logging.INFO, logger=OURS):
        progress.closed("in memory")
    counted = "50 new, 40 duplicates (40%), 10 beyond the limits of the loop guard; 20 were parked"
    assert said(caplog) == [f"This run checked 100 URLs: {counted}"]


def test_fingerprints_on_their_way_into_the_chain_are_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A layer that begins while held back fingerprints are released is told with the true number of URLs."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path), "BLOOM_CAPACITY": 10})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.hold_back()
    for number in range(20):
        dupefilter.request_seen(Request(f"http://example.com/{number}"))
    dupefilter.seal()
    with caplog.at_level(logging.INFO, logger=OURS):
        dupefilter.release()
    (line,) = said(caplog)
    assert line.endswith("at 20 URLs")
    dupefilter.close("finished")
