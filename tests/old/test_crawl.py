"""Whole crawls of a local site in processes of their own."""

from __future__ import annotations

import pickle
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.old.support.crawling import crawl, start_crawl
from tests.old.support.localsite import LocalSite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRAPYS = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite(pages=120, redirects=5, flaky=3) as site:
        yield site


def test_a_crawl_fetches_the_same_pages_as_with_scrapys_filter(site: LocalSite) -> None:
    """With the one setting: the same requests, the same number filtered, and the stats of the filter besides."""
    theirs = crawl(site.url(), SCRAPYS)
    their_hits = site.all_hits()
    site.forget_hits()
    ours = crawl(site.url())
    assert site.missing_pages() == []
    # The local site gives a 503 to the first request of a flaky page only, so the second crawl has fewer retries.
    our_hits = {path: n for path, n in site.all_hits().items() if "flaky" not in path}
    assert our_hits == {path: n for path, n in their_hits.items() if "flaky" not in path}
    assert ours.returncode == 0
    assert ours.stats["finish_reason"] == "finished"
    assert ours.stats["dupefilter/filtered"] == theirs.stats["dupefilter/filtered"]
    assert ours.stats["item_scraped_count"] == theirs.stats["item_scraped_count"]
    # Every request but those with dont_filter (the start request and retries) is recorded.
    assert ours.stats["bloom/urls"] == ours.stats["scheduler/enqueued"] - 1 - ours.stats.get("retry/count", 0)
    assert ours.stats["bloom/layers"] == 1
    assert "bloom/unchecked" not in ours.stats
    assert "Warning" not in ours.log


def test_a_crawl_stopped_with_ctrl_c_and_resumed_fetches_every_page_once(site: LocalSite, tmp_path: Path) -> None:
    """Nothing twice, nothing lost, over as many stops as you like."""
    settings = {"JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS_PER_DOMAIN": 4}
    site.delay = 0.1  # so that no run is over before its signal arrives
    for pages in (30, 70):
        running = start_crawl(site.url(), settings)
        site.wait_for_hits(pages)
        running.signal(signal.SIGINT)
        outcome = running.finish()
        assert outcome.stats["finish_reason"] == "shutdown"
        assert "was not closed by its last crawl" not in outcome.log
    assert site.missing_pages(), "the stops came before the end"
    site.delay = 0.0
    outcome = crawl(site.url(), settings)
    assert outcome.stats["finish_reason"] == "finished"
    assert site.missing_pages() == []
    hits = {page: site.hits(f"/page/{page}") for page in range(site.pages)}
    # The redirects lead to pages 0 to 4 once more, and the start request is not filtered in any run.
    assert {page for page, n in hits.items() if n > 1} <= set(range(5))


def test_a_crawl_killed_under_scrapys_own_queue_is_told_what_may_be_lost(site: LocalSite, tmp_path: Path) -> None:
    """The filter remembers more than Scrapy's queue then, and the next crawl says so and names a way out."""
    settings = {"JOBDIR": str(tmp_path)}
    running = start_crawl(site.url(), settings)
    site.wait_for_hits(20)
    running.signal(signal.SIGKILL)
    running.finish()
    outcome = crawl(site.url(), settings)
    assert "WARNING: The filter in" in outcome.log
    assert "requests that were pending may be lost" in outcome.log
    assert 'With ADDONS = {"scrapy_bloom.Addon": 300} from the start' in outcome.log


def test_a_second_crawl_in_the_same_job_directory_does_not_start(site: LocalSite, tmp_path: Path) -> None:
    """It ends without a request, naming the process that holds the directory."""
    settings = {"JOBDIR": str(tmp_path)}
    first = start_crawl(site.url("/held/door"), settings)
    site.wait_for_hits(1)
    second = crawl(site.url(), settings)
    assert f"in use by process {first.process.pid} on " in second.log
    assert "downloader/request_count" not in second.stats
    assert site.hits() == 1
    site.release("door")
    assert first.finish().stats["finish_reason"] == "finished"


@pytest.mark.parametrize("state", [{"pages": 7}, None])
@pytest.mark.parametrize("scheduler", ["scrapy_bloom.DurableScheduler", "scrapy.core.scheduler.Scheduler"])
def test_a_refused_start_is_told_once_and_leaves_the_spiders_state(
    site: LocalSite, tmp_path: Path, scheduler: str, state: dict[str, int] | None
) -> None:
    """Scrapy closes a spider that it has not opened, which would leave an empty file where its state was."""
    settings = {"JOBDIR": str(tmp_path), "SCHEDULER": scheduler}
    path = tmp_path / "spider.state"
    if state is not None:
        path.write_bytes(pickle.dumps(state))
    layer = tmp_path / "requests.bloom" / "layer-000.bloom"
    layer.parent.mkdir()
    layer.write_bytes(b"no layer")
    outcome = crawl(site.url(), settings)
    assert outcome.log.count(f"CRITICAL: The crawl has not started. {layer} is damaged") == 1
    assert site.hits() == 0
    assert pickle.loads(path.read_bytes()) == (state or {})


def test_wrong_settings_stop_the_start_with_one_message(site: LocalSite) -> None:
    """All wrong settings are named in one line of the log, and nothing is fetched."""
    outcome = crawl(site.url(), {"BLOOM_CAPACITY": 0, "BLOOM_ERROR_RATE": "low"})
    assert len(re.findall("CRITICAL: The crawl has not started. These settings cannot be used:", outcome.log)) == 1
    assert "BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not 0" in outcome.log
    assert "BLOOM_ERROR_RATE must be a probability from 1e-10 to 0.5, not 'low'" in outcome.log
    assert site.hits() == 0


def test_importing_the_package_imports_neither_scrapy_nor_twisted() -> None:
    """Scrapy imports every command's package on every call, so ours is cheap until one of its names is asked for."""
    import subprocess

    code = (
        "import scrapy_bloom, sys; sys.exit(any(name.split('.')[0] in ('scrapy', 'twisted') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
