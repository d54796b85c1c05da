"""Real crawls under the loop guard, of a site on loopback with an endless calendar."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.commands.info import info
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, PATIENCE, Pages, Site, crawl, html, start

GUARDED: dict[str, Any] = {**ADDON, "BLOOM_LOOP_GUARD": True, "CONCURRENT_REQUESTS": 4}
GUIDE = {f"/guide/{number}" for number in range(24)}
LATE = {f"/late/{number}" for number in range(10)}
HONEST = {"/", "/held"} | GUIDE | LATE
LEAST_DRY = 1_000
"""So many pages without news in a row the crawl fetches at least before it ends."""


class WithCalendar(Pages):
    """Chapters of a guide, each with a link to a calendar in which each month leads to others and to its days."""

    def get(self, path: str, default: Any = None) -> Any:
        where, _, number = path.removeprefix("/").partition("/")
        if path == "/":
            return page("home", [*sorted(GUIDE)[:8], "/calendar?month=0"])
        if where == "guide":
            others = {f"/guide/{(int(number) + step) % len(GUIDE)}" for step in (1, 8)}
            return page(path, [*sorted(others), "/held", f"/calendar?month={number}"])
        if where == "held":
            return page(path, sorted(LATE))
        if where == "late":
            return page(path, ["/held"])
        month = int(path.partition("month=")[2].partition("&")[0])
        links = [f"/calendar?month={month + step}" for step in (-1, 1, 12)]
        return b"<h1>Calendar</h1><p>There is nothing on.</p>" + html(
            links + [f"/calendar?month={month}&day={day}" for day in range(1, 6)]
        )


def page(path: str, links: list[str]) -> bytes:
    """Return a page with a paragraph that no other has."""
    letters = random.Random(path).choices("abcdefghijklmnopqrstuvwxyz", k=400)
    words = " ".join("".join(letters[at : at + 8]) for at in range(0, 400, 8))
    return f"<p>{words}</p>".encode() + html(links)


def calendar_pages(site: Site) -> int:
    return sum(path.startswith("/calendar") for path in site.hits)


@pytest.mark.slow
def test_a_crawl_ends_by_itself_and_keeps_what_is_left(tmp_path: Path) -> None:
    """Every honest page is fetched, once; the rest of the calendar stays in the job, from which a run without the guard
    fetches it."""
    job = tmp_path / "job"
    settings = {**GUARDED, "JOBDIR": str(job)}
    with Site(WithCalendar()) as site:
        site.release.set()
        outcome = crawl(site, tmp_path, settings)
        assert {path: site.hits[path] for path in HONEST} == dict.fromkeys(HONEST, 1)
        assert LEAST_DRY <= calendar_pages(site) < LEAST_DRY + 100
        assert outcome.stats["finish_reason"] == "loop_guard"
        left = outcome.stats["bloom/loop/left"]
        assert left == inspect_job(job).state.pending > 0
        kinds = info(str(job))["pending_by_kind"]
        assert sum(kind["pending"] for kind in kinds) == left
        section = site.url.partition("//")[2] + "/calendar?"
        assert all(kind["kind"].startswith(section) for kind in kinds)
        assert all(kind["example"].startswith(f"{site.url}/calendar?") for kind in kinds)
        (line,) = outcome.lines("WARNING")
        assert "BLOOM_LOOP_GUARD = False" in line
        assert f"{left:,} pending requests" in line
        assert not outcome.lines("ERROR")
        assert info(str(job))["finish_reason"] == "loop_guard"

        site.forget_hits()
        bounded = {**settings, "BLOOM_LOOP_GUARD": False, "CLOSESPIDER_PAGECOUNT": 50}
        assert crawl(site, tmp_path, bounded).stats["finish_reason"] == "closespider_pagecount"
        assert calendar_pages(site) >= 50
        assert not HONEST & site.hits.keys()
        assert set(site.hits.values()) == {1}


@pytest.mark.slow
def test_a_killed_crawl_goes_on_and_ends_by_itself(tmp_path: Path) -> None:
    """After a kill in its middle, the crawl fetches every honest page and still ends: the job has what was learned."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path / "job")}
    with Site(WithCalendar()) as site:
        killed = start(site, tmp_path, settings)
        with site.asked:
            assert site.asked.wait_for(lambda: "/held" in site.hits and calendar_pages(site) > 60, PATIENCE)
        killed.signal(signal.SIGKILL)
        site.release.set()
        assert killed.finish().code == -signal.SIGKILL
        outcome = crawl(site, tmp_path, settings)
        assert site.hits.keys() >= HONEST
        assert LEAST_DRY <= calendar_pages(site) < LEAST_DRY + 100
        assert outcome.stats["finish_reason"] == "loop_guard"
        assert outcome.stats["bloom/loop/left"] > 0


@pytest.mark.slow
def test_without_a_job_the_crawl_ends_by_itself_and_says_what_was_left(tmp_path: Path) -> None:
    """In memory, too, every honest page is fetched once, and the stats count what was given up."""
    with Site(WithCalendar()) as site:
        site.release.set()
        outcome = crawl(site, tmp_path, GUARDED)
        assert {path: site.hits[path] for path in HONEST} == dict.fromkeys(HONEST, 1)
        assert calendar_pages(site) < LEAST_DRY + 100
        assert outcome.stats["finish_reason"] == "loop_guard"
        assert outcome.stats["bloom/loop/left"] > 0


class WithSessions(Pages):
    """Topics, each with links to others; every page puts a session id of its own into its links."""

    def get(self, path: str, default: Any = None) -> Any:
        topic = int(path.partition("topic=")[2].partition("&")[0] or 0)
        session = random.Random(path).getrandbits(128)
        links = [f"/topic?topic={(topic + step) % 20}&sid={session:032x}" for step in (1, 3, 7)]
        return b"".join(page(f"/{topic}/{paragraph}", []) for paragraph in range(4)) + html(links)


def test_parameters_that_do_not_matter_are_told_with_the_rules_that_drop_them(tmp_path: Path) -> None:
    """The log and ``info`` name them, with the evidence; a new job with these rules has each page once."""
    job = tmp_path / "job"
    with Site(WithSessions()) as site:
        site.release.set()
        learning = crawl(site, tmp_path, {**GUARDED, "JOBDIR": str(job), "CLOSESPIDER_PAGECOUNT": 150})
        (alias,) = info(str(job))["aliases"]
        host = site.url.partition("//")[2]
        assert (alias["host"], alias["part"], alias["rule"]) == (host, "the parameter sid", f"without:sid@{host}")
        assert alias["same"] > 20
        assert alias["other"] == 0
        (line,) = (line for line in learning.lines("INFO") if "BLOOM_URL_RULES = " in line)
        assert f"the parameter sid on {host} ({alias['same']} of {alias['same']} pairs" in line
        rules = json.loads(line.rpartition(" = ")[2].replace("'", '"'))

        site.forget_hits()
        ruled = crawl(site, tmp_path, {**GUARDED, "JOBDIR": str(tmp_path / "new"), "BLOOM_URL_RULES": rules})
        assert ruled.stats["finish_reason"] == "finished"
        assert len(site.hits) == 21
        assert {path.partition("&")[0] for path in site.hits} == {"/", *(f"/topic?topic={n}" for n in range(20))}
