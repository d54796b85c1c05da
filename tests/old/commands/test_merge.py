"""``merge``: what it refuses, what it says, and crawls that go on with what came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.files.merge import UNFINISHED_NAME
from scrapy_bloom.old.loops.parked import ParkedFile
from tests.old.support.crawling import crawl
from tests.old.support.damage import filled, flip_bits, layer, overwrite, wait_until
from tests.old.support.fingerprints import fingerprints
from tests.old.support.localsite import LocalSite
from tests.old.support.schedulers import opened

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]


@pytest.fixture
def jobs(tmp_path: Path) -> list[Path]:
    """Two closed jobs of 30 URLs each, 10 of which both have seen."""
    for name, start in (("books", 0), ("authors", 20)):
        with open_filter(tmp_path / name / "requests.bloom", 100, key_space={"rules": ""}) as chain:
            for each in fingerprints(30, start):
                chain.add(each)
    return [tmp_path / "books", tmp_path / "authors"]


def test_merge_says_what_came_of_it(tmp_path: Path, jobs: list[Path], answer: Callable[..., tuple[int, Any]]) -> None:
    """URLs, layers and the rates together; the sources stay as they were, and `info` and `verify` agree."""
    before = {path: path.read_bytes() for job in jobs for path in job.rglob("layer*")}
    code, found = answer("merge", tmp_path / "all", *jobs, "--capacity", 1000, "--error-rate", 1e-5)
    assert (code, found["urls"], found["layers"], found["notes"]) == (OK, 60, 3, [])
    assert found["error_rate"] == pytest.approx(1e-5 + 2 * 0.2e-6)
    assert 0 < found["error_rate_now"] < found["error_rate"]
    assert {path: path.read_bytes() for path in before} == before
    for command in ("info", "verify"):
        code, described = answer(command, tmp_path / "all")
        assert (code, described["urls"], described["findings"]) == (OK, 60, [])
        assert [each["file"] for each in described["layers"]] == [
            "merged-000/layer-000.bloom",
            "merged-001/layer-000.bloom",
            "layer-000.bloom",
        ]
    with open_filter(tmp_path / "all" / "requests.bloom") as chain:
        assert all(each in chain for each in fingerprints(50))


def test_what_must_not_be_merged(tmp_path: Path, jobs: list[Path], answer: Callable[..., tuple[int, Any]]) -> None:
    """Other settings, no clean end, damage, a crawl that runs, the same one twice: each is one line that names it, and
    there is no filter afterwards."""

    def refused(because: str, *sources: Path) -> None:
        code, error = answer("merge", tmp_path / "all", *sources)
        assert code == USAGE
        assert because in error
        assert not (tmp_path / "all").exists()

    refused("names one filter twice", jobs[0], jobs[0])
    refused("holds no filter", jobs[0], tmp_path / "none")
    open_filter(tmp_path / "ruled", key_space={"rules": "www"}).close()
    refused("was filled under other settings than", jobs[0], tmp_path / "ruled")
    with open_filter(jobs[1] / "requests.bloom"):
        refused(f"{jobs[1] / 'requests.bloom'} is in use by process", *jobs)
    flip_bits(layer(jobs[1] / "requests.bloom"), 4072)
    refused("cannot be merged: The count in", *jobs)
    flip_bits(layer(jobs[0] / "requests.bloom"), 40)
    refused("cannot be merged", *jobs)


def test_pending_and_parked_requests_are_not_lost_by_accident(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]]
) -> None:
    """A job that still has some is refused, and merged without them only on demand, which is said."""
    job = tmp_path / "job"
    with opened(job, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter") as calls:
        calls.push(*(Request(f"https://example.com/{number}") for number in range(3)))
    code, error = answer("merge", tmp_path / "all", job)
    assert code == USAGE
    assert "has 3 pending requests, whose pages would count as seen and never be fetched" in error
    kept = (job / "requests.frontier").read_bytes()
    overwrite(job / "requests.frontier", 0, b"\0" * 100)
    assert "cannot be read: file is not a database" in answer("merge", tmp_path / "all", job)[1]
    (job / "requests.frontier").write_bytes(kept)
    lot = ParkedFile.open(job, None)
    lot.park(7, Request("https://example.com/parked"))
    lot.save([lot_row(7)], [])
    lot.close(queue_is_kept=True)
    code, found = answer("merge", tmp_path / "all", job, "--accept-lost-requests")
    assert code == OK
    assert [note.partition(": ")[2] for note in found["notes"]] == [
        f"the pages of {what} count as seen, and are not fetched."
        for what in ("3 pending requests", "1 parked request")
    ]


def lot_row(number: int) -> Any:
    from scrapy_bloom.old.loops.parked import AccountRow

    return AccountRow(number, "example.com/**", 30, 30, 30, 1, 0, 0, 0, 0, 0, 1, 0, "https://example.com/parked")


@pytest.mark.slow
def test_a_killed_merge_leaves_no_filter(tmp_path: Path) -> None:
    """After kill -9 in the middle of copying there is no filter or a whole one, and the next attempt makes one."""
    sources = [filled(tmp_path / str(number), 1000, capacity=5_000_000) for number in range(3)]
    command = [sys.executable, "-m", "scrapy_bloom", "merge", str(tmp_path / "all"), *map(str, sources)]
    whole = 0
    for parts in (1, 2, 3):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            copied = tmp_path / "all" / UNFINISHED_NAME / f"merged-{parts - 1:03d}"
            wait_until(lambda copied=copied: copied.exists() or process.poll() is not None)  # type: ignore[misc]
            process.kill()
        out = tmp_path / "all" / "requests.bloom"
        if out.exists():
            whole += 1
            with open_filter(out) as chain:
                assert all(each in chain for each in fingerprints(1000))
            break
    if not whole:
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    with open_filter(tmp_path / "all" / "requests.bloom") as chain:
        assert len(chain) == 3000
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["requests.bloom"]


@pytest.mark.slow
def test_a_crawl_goes_on_with_a_merged_filter(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """What either of two real crawls has fetched is not fetched again, all other pages are, and the next run finds
    nothing left to fetch."""
    addon = {"ADDONS": {"scrapy_bloom.Addon": 300}}
    with LocalSite(pages=200, links_per_page=4) as site:
        for name, start in (("one", "/page/3?of=site&part=3&q=a+b"), ("two", "/page/5?of=site&part=5&q=a+b")):
            settings = {**addon, "JOBDIR": str(tmp_path / name), "DEPTH_LIMIT": 2}
            crawl(site.url(start), settings)
        first = {path for path, hits in site.all_hits().items() if hits}
        assert 10 < len(first) < 150
        assert answer("merge", tmp_path / "all", tmp_path / "one", tmp_path / "two")[0] == OK
        site.forget_hits()
        settings = {**addon, "JOBDIR": str(tmp_path / "all"), "BLOOM_CAPACITY": 30}
        outcome = crawl(site.url(), settings)
        again = set(site.all_hits())
        assert again
        assert not (again & first) - {"/page/3", "/page/5", "/page/0"}, "start pages are fetched without asking"
        assert outcome.stats["bloom/layers"] >= 3
        site.forget_hits()
        crawl(site.url(), settings)
        assert set(site.all_hits()) <= {"/page/0"}


def test_requests_put_back_and_not_fetched_yet_are_parked_still(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """Between ``requeue`` and the next run with the guard nobody else has them: a merge is refused, `verify` counts
    them, and a run without the guard warns of them."""
    job = tmp_path / "job"
    with opened(job, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter") as calls:
        calls.push(Request("https://example.com/"))
        calls.drain()
    lot = ParkedFile.open(job, None)
    lot.park(7, Request("https://example.com/parked"))
    lot.save([lot_row(7)], [])
    lot.close(queue_is_kept=True)
    assert answer("requeue", job) == (OK, {"directory": str(job), "requeued": 1})
    code, error = answer("merge", tmp_path / "all", job)
    assert (code, "has 1 parked request," in error) == (USAGE, True)
    (of_guard,) = (each for each in answer("verify", job)[1]["read"] if each["part"] == "loop guard")
    assert of_guard["what"].endswith(" 1 parked request")
    with opened(job, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter"):
        assert "The loop guard parked 1 request in" in caplog.text
