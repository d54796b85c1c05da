"""How many pages are left: within its bounds whatever comes, right on trees that are alike, and kept by a job."""

import logging
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.commands.info import info
from scrapy_bloom.crawl.estimate import Estimate
from tests.support.engine import Engine, opened


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 30)), max_size=40),
    st.integers(0, 10**9),
)
def test_a_range_contains_what_is_pending_and_is_no_wider_than_two(
    history: list[tuple[int, int, int]], uncounted: int
) -> None:
    """Whatever was counted: pending pages are left, nothing is left without, and the ends of all pages differ by two at
    most; what is loaded says the same."""
    estimate, done = Estimate(), 0
    for depth, deeper, number in history:
        estimate.queued += [depth] * number
        estimate.finished += [depth] * min(number, deeper)
        done += min(number, deeper)
    waiting = max(sum(number for _, _, number in history) - done, uncounted)
    low, high = estimate.left(uncounted)
    again = Estimate()
    again.load(estimate.dump())
    assert again.left(uncounted) == (low, high)
    assert low >= waiting
    if high is not None:
        assert low <= high <= 2 * (done + low) - done + 1  # rounded
    if not waiting:
        assert (low, high) == (0, 0)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_sections_that_are_alike_promise_each_other(seed: int, count: int) -> None:
    """Depth first, with a half of 40 sections of 30 to 90 pages done, those that wait count with their pages.

    So they do if one of two workers fetches each page, and both find each section.

    A section's mean is 60 pages, and that of the last few differs from it by sqrt(60**2 / 12 / 4) = 9 pages. Three of
    these, and two trees of a page that each depth begins with, leave 20 sections with 620 pages more at least. A
    worker's sample of a section's size is as wide, and the sum has two of them.
    """
    rng, workers = random.Random(seed), [Estimate() for _ in range(count)]
    for estimate in workers:
        estimate.queued += [0, *[1] * 40]
    workers[0].finished.append(0)
    for _ in range(20):
        pages = rng.randint(30, 90)
        for depth in (1, *[2] * pages):
            worker = rng.choice(workers)
            worker.finished.append(depth)
            worker.queued += [2] * (depth == 2)
    together = Estimate()
    for estimate in workers:
        together.add(estimate.dump())
    together.expect(20)
    low, high = together.left(20)
    assert high is not None
    assert low >= 20
    assert high >= 620


def test_what_the_loop_guard_expects_nothing_of_is_not_left() -> None:
    """Of a hundred pending requests after a hundred pages, none is left if nothing is expected of any."""
    estimate = Estimate()
    estimate.queued += [0] * 200
    estimate.finished += [0] * 100
    assert estimate.left(100)[0] == 100
    estimate.promise = 0.0
    assert estimate.left(100) == (0, 0)


def crawl_on(engine: Engine, pages: int) -> None:
    """Fetch so many pages, each with two links to deeper ones."""
    for _ in range(pages):
        request = engine.fetch()
        links = [Request(f"{request.url}/{n}", meta={"depth": request.meta["depth"] + 1}) for n in range(2)]
        engine.push(*links[: len(request.url) < 30])
        engine.end(request)


def test_a_killed_job_goes_on_counting(tmp_path: Path) -> None:
    """After a kill, the next run says what the last commit knew; what it did not count is a page each."""
    engine = Engine(tmp_path / "job")
    engine.push(*[Request(f"http://a.example/{n}", meta={"depth": 0}) for n in range(40)])
    crawl_on(engine, 30)
    engine.commit()
    told = info(str(tmp_path / "job"))
    killed = engine.killed(tmp_path / "killed")
    assert told["left_at_most"] > told["left_at_least"] >= told["pending"] > 0
    with opened(killed) as engine:
        engine.commit()
        again = info(str(killed))
        names = ("left_at_least", "left_at_most", "pending")
        assert [again[name] for name in names] == [told[name] for name in names]
        engine.drain()
        engine.commit()
        ended = info(str(killed))
        assert (ended["left_at_least"], ended["left_at_most"]) == (0, 0)


@pytest.mark.parametrize("in_job", [True, False], ids=["job", "memory"])
def test_the_log_says_how_far_a_crawl_is(
    tmp_path: Path, in_job: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line names what is pending, the share of new links and how many pages are left."""
    monkeypatch.setattr("scrapy_bloom.crawl.progress.LINE_SECONDS", 0.0)
    with opened(tmp_path if in_job else None) as engine, caplog.at_level(logging.INFO, "scrapy_bloom.crawl.progress"):
        engine.push(*[Request(f"http://a.example/{n}", meta={"depth": 0}) for n in range(40)])
        engine.push(*[Request(f"http://a.example/{n}", meta={"depth": 0}) for n in range(10)])
        crawl_on(engine, 30)
        pending = len(engine.scheduler)
        engine.crawl.core.tick()
    (line,) = [record.getMessage() for record in caplog.records if "left" in record.getMessage()]
    assert f"{pending:,} pending" in line
    assert re.search(r"\d+ % of recent links new", line)
    assert re.search(r"(\d+|[\d,]+ to [\d,]+) pages left", line)


def test_what_full_hosts_keep_is_not_left(tmp_path: Path) -> None:
    """With `BLOOM_PAGES_PER_HOST`, nothing is left when all that is pending belongs to hosts that have got theirs."""
    with opened(tmp_path, {"BLOOM_PAGES_PER_HOST": 5}) as engine:
        engine.push(*[Request(f"http://a.example/{n}", meta={"depth": 0}) for n in range(12)])
        engine.drain()
        engine.commit()
        found = info(str(tmp_path))
    assert (found["pending"], found["left_at_least"], found["left_at_most"]) == (7, 0, 0)
