"""Crawls that are killed with SIGKILL and resumed, against a real site: nothing is lost, and little fetched twice."""

from __future__ import annotations

import logging
import random
import re
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from scrapy import Request

from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.frontier.journal import COMMIT_INTERVAL
from tests.old.support.killed_crawl import SETTINGS
from tests.old.support.killed_crawling import Crawl, finish
from tests.old.support.localsite import LocalSite
from tests.old.support.schedulers import opened

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

FORM_PAGES = 10  # of which one in so many sends a form


def expected_hits(site: LocalSite) -> Counter[str]:
    """What a crawl that is never killed asks for: everything once, but redirected pages and flaky ones."""
    hits = Counter({f"/page/{i}": 1 for i in range(site.pages)})
    hits.update({f"POST /submit?i={i}": 1 for i in range(3, site.pages, FORM_PAGES)})
    for i in range(site.redirects):
        hits[f"/redirect/{i}"] += 1
        hits[f"/page/{i}"] += 1  # the redirect's target is spelled without the query, so it is another page
    hits.update({f"/flaky/{i}": 1 + site.flaky_failures for i in range(site.flaky)})
    return hits


def lost(site: LocalSite) -> list[str]:
    """What was asked for less often than it should have been."""
    hits = site.all_hits()
    return sorted(path for path, times in expected_hits(site).items() if hits[path] < min(times, 1 + (times > 1)))


def repeated(site: LocalSite) -> int:
    """How many more requests arrived than a crawl without a kill would have sent."""
    return sum((site.all_hits() - expected_hits(site)).values())


def test_a_crawl_without_a_kill_asks_for_everything_exactly_once(tmp_path: Path) -> None:
    """Without a kill, the durable scheduler fetches each page once, follows the redirects and sends the forms."""
    with LocalSite(pages=150, redirects=6, flaky=6) as site:
        crawl = finish(site.url(), tmp_path)
        assert site.all_hits() == expected_hits(site)
    assert crawl.stats["scheduler/enqueued/disk"] == crawl.stats["scheduler/dequeued/disk"] == site.hits()
    assert crawl.stats["bloom/frontier/pending"] == 0
    assert "bloom/frontier/recovered" not in crawl.stats
    assert "not stopped cleanly" not in crawl.log


class Kill(NamedTuple):
    """What the job directory and the site say about a kill: the requests that were in flight at the last commit, and
    how many have arrived after it."""

    in_flight: int
    arrived: int


def look_at(site: LocalSite, directory: Path) -> Kill:
    committed = float((directory / "commits").read_text() or 0)  # 0: killed before the first one was complete
    with tempfile.TemporaryDirectory() as copies:
        for path in (directory / "job").glob(f"{FRONTIER_NAME}*"):
            shutil.copy(path, copies)
        database = sqlite3.connect(f"{copies}/{FRONTIER_NAME}")
        (in_flight,) = database.execute("SELECT value FROM state WHERE name = 'in_flight'").fetchone()
        database.close()
    return Kill(in_flight, site.hits_since(committed))


def reported(log: str) -> tuple[int, int, int] | None:
    """What a resumed run says is fetched again: in all, in flight at the last commit, and handed out after it."""
    said = re.search(r"at most (\d+) \(in flight at its last commit: (\d+), handed out after it: (\d+)\)", log)
    return (int(said[1]), int(said[2]), int(said[3])) if said else None


def most_in_flight(settings: dict[str, Any]) -> int:
    """What Scrapy's engine allows: it takes no further request while CONCURRENT_REQUESTS are with the downloader or
    the responses with the scraper count for more than SCRAPER_SLOT_MAX_ACTIVE_SIZE bytes, each for at least 1,024."""
    return SETTINGS["CONCURRENT_REQUESTS"] + settings["SCRAPER_SLOT_MAX_ACTIVE_SIZE"] // 1024


def check_report(log: str, kill: Kill, settings: dict[str, Any]) -> int:
    """Hold what a resumed run reports against what was seen of the kill before it, and return the reported number."""
    report = reported(log)
    if report is None:  # it was killed before it could say so, and so before it could fetch anything
        return 0
    total, in_flight, handed_out = report
    assert total == in_flight + handed_out
    assert in_flight == kill.in_flight <= most_in_flight(settings)
    # What was handed out has arrived or was with the downloader.
    assert handed_out <= kill.arrived + SETTINGS["CONCURRENT_REQUESTS"]
    return total


def crawl_with_kills(
    site: LocalSite, directory: Path, moments: list[int], settings: dict[str, Any]
) -> tuple[Crawl, list[int]]:
    """Kill crawls, each the resumption of the last, after so many requests, and finish; return the last one and the
    numbers of pages that were said to be fetched again."""
    rng = random.Random(len(moments))
    kills: list[Kill] = []
    reports = []
    for moment in moments:
        with Crawl(site.url(), directory, settings=settings) as crawl:
            crawl.wait_until(site, site.hits() + moment)
            time.sleep(rng.random() * 0.05)  # so that not every kill meets the arrival of a request
            crawl.kill()
        if kills:
            reports.append(check_report(crawl.log, kills[-1], settings))
        kills.append(look_at(site, directory))
    crawl = finish(site.url(), directory, settings=settings)
    assert "The previous run of this job was not stopped cleanly. Recovered" in crawl.log
    total, in_flight, _ = reported(crawl.log)
    assert crawl.stats["bloom/frontier/refetched"] == total
    assert crawl.stats["bloom/frontier/in_flight"] == in_flight <= crawl.stats["bloom/frontier/recovered"]
    return crawl, [*reports, check_report(crawl.log, kills[-1], settings)]


def check_kills(directory: Path, moments: list[int], *, pages: int, settings: dict[str, Any]) -> str:
    """Return a line of figures."""
    # The site answers slowly, for the runs between kills to be longer than a commit interval most of the time.
    with LocalSite(pages=pages, redirects=12, flaky=12, delay=0.1) as site:
        crawl, reports = crawl_with_kills(site, directory, moments, settings)
        assert lost(site) == []
        assert repeated(site) <= sum(reports)
    assert crawl.stats["bloom/frontier/recovered"] > 0
    return f"{len(moments)} kills: {repeated(site)} of {site.hits()} requests repeated, {reports} reported"


FILTERS = ["scrapy_bloom.BloomDupeFilter", "tests.old.support.exactfilter.ExactFilter"]


@pytest.mark.parametrize("dupefilter", FILTERS[:1])
def test_two_kills_lose_nothing_and_repeat_little(tmp_path: Path, dupefilter: str) -> None:
    """After two kills and a resume each, every page, redirect, retry and form was fetched, and no more twice than the
    resumed runs said: what was in flight at a commit, which is up to the limit, and what was handed out after it."""
    settings = {"DUPEFILTER_CLASS": dupefilter, "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 1}
    assert most_in_flight(settings) == SETTINGS["CONCURRENT_REQUESTS"]
    check_kills(tmp_path, [120, 20], pages=160, settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("dupefilter", FILTERS)
@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
def test_twenty_kills_lose_nothing_and_repeat_little(tmp_path: Path, dupefilter: str, order: str) -> None:
    """After twenty kills at random moments and a resume each, every page, redirect, retry and form was fetched, and no
    more twice than the resumed runs said."""
    rng = random.Random(f"{dupefilter} {order}")
    moments = [rng.randrange(1, 100) for _ in range(20)]
    settings = {
        "DUPEFILTER_CLASS": dupefilter,
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue",
        "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 9 * 1024,
    }
    logger.warning(check_kills(tmp_path, moments, pages=1000, settings=settings))  # shown by pytest -rP


@pytest.mark.parametrize(
    ("callback", "linger"), [(1, 0.0), (9, COMMIT_INTERVAL * 2)], ids=["half not committed", "half committed"]
)
def test_a_kill_within_a_callback_loses_none_of_its_links(tmp_path: Path, callback: int, linger: float) -> None:
    """A callback killed after half of its links is run again, whether that half was committed or not."""
    with LocalSite(pages=60) as site:
        with Crawl(site.url(), tmp_path, die_in=callback, linger=linger) as crawl:
            assert crawl.wait() == -9
        crawl = finish(site.url(), tmp_path)
        assert lost(site) == []
    assert crawl.stats["bloom/frontier/in_flight"] >= 1 or not linger


@pytest.mark.slow
def test_damage_found_in_the_middle_of_a_crawl_ends_it_and_says_so(tmp_path: Path) -> None:
    """A file damaged where only the crawl reads it closes the crawl with a message, and is not taken for sound."""
    path = tmp_path / "job" / FRONTIER_NAME
    with LocalSite(pages=3000) as site:
        with opened(tmp_path / "job") as calls:
            calls.push(*(Request(site.url(f"/page/{i}"), meta={"download_slot": "slot"}) for i in range(3000)))
        data = bytearray(path.read_bytes())
        leaves = [i for i in range(4096, len(data), 4096) if data[i] == 0x0D and b"download_slot" in data[i : i + 4096]]
        for start in leaves[-50:-10]:  # opening reads the oldest, and the newest are popped before them
            data[start : start + 4096] = b"\xff" * 4096
        path.write_bytes(data)
        with Crawl(site.url(), tmp_path) as crawl:
            crawl.wait()
    assert site.hits() > 0
    assert crawl.stats["finish_reason"] == "frontier_damaged"
    assert crawl.log.count("The crawl is being closed.") == 1
    assert "is damaged: database disk image is malformed" in crawl.log
    database = sqlite3.connect(path)
    assert database.execute("SELECT value FROM state WHERE name = 'clean'").fetchone() == (0,)
    database.close()


def test_a_page_that_was_being_downloaded_is_fetched_again(tmp_path: Path) -> None:
    """A request that was in flight for several commits at the kill is fetched again, and said to have been in
    flight."""
    with LocalSite(pages=5) as site:
        with Crawl(site.url("/held/0"), tmp_path) as crawl:
            site.wait_for_hits(1, "/held/0")
            time.sleep(COMMIT_INTERVAL * 2)  # the commit that notes it as in flight is made by now, or soon after
            crawl.kill()
        site.release("0")
        crawl = finish(site.url("/held/0"), tmp_path)
        assert site.hits("/held/0") == 2
        assert lost(site) == []
    assert crawl.stats["bloom/frontier/recovered"] == 1
    assert "Recovered 1 pending request." in crawl.log
