"""``verify``: everything that is wrong is told at once, and what is repaired costs fetches at most."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from scrapy import Request

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.old.loops.parked import AccountRow, ParkedFile
from tests.old.commands.conftest import GUARDED
from tests.old.support.crawling import crawl, start_crawl
from tests.old.support.damage import filled, flip_bits, layer, overwrite
from tests.old.support.fingerprints import fingerprint, fingerprints
from tests.old.support.localsite import LocalSite
from tests.old.support.loopsite import LoopSite
from tests.old.support.schedulers import EngineCalls, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


BLOOM = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_CAPACITY": 10}
URLS = [f"https://{host}.example/{number}" for number in range(20) for host in ("one", "two")]


def files(job: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in job.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.fixture
def job(tmp_path: Path, made_once: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    """A closed job with 40 URLs in three layers, all of them pending, and a parked request."""
    return shutil.copytree(made_once("verified", fill), tmp_path / "job")


def fill(path: Path) -> None:
    with opened(path, **BLOOM) as calls:
        calls.push(*map(Request, URLS))
    lot = ParkedFile.open(path, None)
    lot.park(7, Request("https://one.example/parked"))
    row = AccountRow(7, "one.example/**", 30, 30, 30, 1, 0, 0, 0, 0, 0, 1, 0, "https://one.example/parked")
    lot.save([row], [("one.example", 0, "{}")])
    lot.close(queue_is_kept=True)
    filled(path / "requests.news", 30, capacity=100)


def test_a_sound_job_is_said_to_be_sound(
    job: Path, answer: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """All parts are named with what was read of them, and nothing is changed, with --fix neither."""
    before = files(job)
    for options in ([], ["--fix"]):
        code, found = answer("verify", job, *options)
        assert (code, found["sound"], found["findings"], found["done"]) == (OK, True, [], [])
        assert {each["part"]: each["what"] for each in found["read"]} == {
            "filter": "40 URLs in 3 layers",
            "pending requests": "40 pending requests",
            "loop guard": "1 shape that has run dry, 1 parked request",
            "news of the loop guard": "30 entries in 1 layer",
        }
    assert files(job) == before


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "bits": (lambda job: overwrite(layer(job / "requests.bloom"), 9000, b"\xff" * 200), "layer-000.bloom is damaged"),
    "news": (lambda job: flip_bits(layer(job / "requests.news"), 40), "requests.news/layer-000.bloom is damaged"),
    "a request": (
        lambda job: change(job / "requests.frontier", "UPDATE requests SET body = x'00' WHERE id = 3"),
        "1 pending request contradicts its checksum, the first is 3",
    ),
    "a queue": (
        lambda job: change(job / "requests.frontier", "DELETE FROM requests WHERE id = 3"),
        "counts 20 requests and has 19",
    ),
    "the name of a queue": (
        lambda job: change(job / "requests.frontier", "UPDATE lanes SET key = 'x' WHERE id = 1"),
        "the queue 'x' contradicts its checksum",
    ),
    "a state": (
        lambda job: change(job / "requests.frontier", "UPDATE state SET value = 5 WHERE name = 'last_id'"),
        "the state 'last_id' contradicts its checksum",
    ),
    "the frontier": (lambda job: overwrite(job / "requests.frontier", 8192, b"\xff" * 4096), "requests.frontier"),
    "the mark": (lambda job: (job / "requests.bloom" / "frontier").unlink(), "is missing or damaged"),
    "an older frontier": (
        lambda job: change(
            job / "requests.frontier",
            f"UPDATE state SET value = 3, crc = {crc32(b'last_id 3')} WHERE name = 'last_id'",
        ),
        "is older than its filter: it has got to request",
    ),
    "no frontier": (
        lambda job: (job / "requests.frontier").unlink(),
        "requests.frontier is missing, and the filter knows requests up to 40",
    ),
    "no filter": (
        lambda job: shutil.rmtree(job / "requests.bloom"),
        "requests.frontier, is gone. A crawl begins anew",
    ),
    "the guard": (
        lambda job: overwrite(job / "requests.loops" / "guard.sqlite", 4096, b"\xff" * 4096),
        "guard.sqlite is damaged",
    ),
    "the guard's beginning": (
        lambda job: overwrite(job / "requests.loops" / "guard.sqlite", 0, b"\0" * 100),
        "guard.sqlite is damaged: file is not a database",
    ),
    "a folder of the guard": (
        lambda job: change(job / "requests.loops" / "guard.sqlite", "UPDATE folders SET children = '[1'"),
        "what is known of the folder 'one.example' cannot be read",
    ),
    "spare files": (lambda job: (job / "requests.bloom.merging").mkdir(), "was left behind by a command"),
}


@pytest.mark.parametrize(("damage", "because"), DAMAGES.values(), ids=DAMAGES)
def test_damage_anywhere_is_found(
    job: Path, answer: Callable[..., tuple[int, Any]], damage: Callable[[Path], Any], because: str
) -> None:
    """Each kind is a finding that names the file, and looking changes nothing."""
    damage(job)
    before = files(job)
    code, found = answer("verify", job)
    assert code == WRONG
    assert any(because in finding for finding in found["findings"]), found["findings"]
    assert not found["sound"]
    assert files(job) == before


def test_all_findings_come_at_once(job: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """Three damages in three parts are three findings of one call."""
    for name in ("bits", "a request", "a folder of the guard"):
        DAMAGES[name][0](job)
    assert len(answer("verify", job)[1]["findings"]) == 3


@pytest.mark.parametrize(
    ("index", "how"),
    [
        pytest.param(index, how, marks=() if index == fast else pytest.mark.slow)
        for fast, how in enumerate(("bits", "header", "missing"))
        for index in range(3)
    ],
)
def test_fix_gives_a_damaged_layer_up_and_nothing_else(
    job: Path, answer: Callable[..., tuple[int, Any]], index: int, how: str
) -> None:
    """An empty layer takes its place: its URLs are new again, those of the other layers are not, and the filter grows
    on. The damaged file is kept, and what was done is said."""
    bloom = job / "requests.bloom"
    with open_filter(bloom) as chain:
        was = [len(chain), [each.count for each in chain.layers]]
    path = layer(bloom, index)
    if how == "missing":
        path.unlink()
    elif how == "header":
        flip_bits(path, 40)
    else:
        overwrite(path, 9000, b"\xff" * 200)
    assert answer("verify", job)[0] == WRONG
    code, found = answer("verify", job, "--fix")
    assert (code, found["findings"]) == (OK, [])
    assert len(found["done"]) == 1
    assert "its URLs are new again" in found["done"][0]
    assert path.with_name(path.name + ".damaged").exists() == (how != "missing")
    with open_filter(bloom) as chain:
        assert len(chain) == was[0] - was[1][index]
        new = sum(map(chain.add, fingerprints(100)))
        assert new == 100
        assert not any(map(chain.add, fingerprints(100)))
    with opened(job, **BLOOM) as calls:
        assert len(calls.drain()) == len(URLS)
    assert answer("verify", job, "--fix")[1]["done"] == []


def test_fix_tidies_up(job: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """What was never finished is deleted; damage whose repair could lose pages is left, and the exit code says so."""
    (job / "requests.bloom" / "layer-003.bloom.tmp").write_bytes(b"x")
    (job / "requests.frontier.salvage").mkdir()
    (job / "requests.bloom.merging" / "merged-000").mkdir(parents=True)
    code, found = answer("verify", job, "--fix")
    assert (code, len(found["found_before"]), len(found["done"])) == (OK, 3, 3)
    DAMAGES["a request"][0](job)
    before = files(job)
    code, found = answer("verify", job, "--fix")
    assert (code, found["done"]) == (WRONG, [])
    assert "python -m scrapy_bloom.old.frontier.salvage" in found["findings"][0]
    assert files(job) == before


def test_fix_closes_what_a_kill_has_left_open(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """Under DurableScheduler the count is made from the bits and the job is clean. Under Scrapy's own scheduler
    the mark of the kill stays, as the next crawl has to warn of the queue that was lost."""
    calls = EngineCalls(tmp_path / "job", **BLOOM)
    calls.push(*map(Request, URLS))
    calls.commit()
    calls.die()
    code, found = answer("info", tmp_path / "job")
    assert (code, found["clean"], found["urls_are_estimated"], found["pending"]) == (WRONG, False, True, 40)
    assert 36 <= found["urls"] <= 44
    code, found = answer("verify", tmp_path / "job", "--fix")
    assert (code, found["findings"]) == (OK, [])
    assert "counted from its bits" in found["done"][0]
    with opened(tmp_path / "job", **BLOOM) as calls:
        assert len(calls.drain()) == 40
    filled(tmp_path / "plain" / "requests.bloom", 5)
    flip_bits(layer(tmp_path / "plain" / "requests.bloom"), 4072)
    code, found = answer("verify", tmp_path / "plain", "--fix")
    assert (code, found["done"]) == (WRONG, [])


def test_servers_are_no_job_directories(answer: Callable[..., tuple[int, Any]]) -> None:
    """An address is refused in one line that says what there is for servers."""
    code, error = answer("verify", "redis://localhost:6379")
    assert code == USAGE
    assert "info redis://" in error


@pytest.mark.slow
def test_beside_a_running_crawl(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """Verify and info read a job that a crawl holds: no finding, the verdicts and pending requests as last written, no
    file changed or left; --fix refuses. After kill -9 the same is still told, and --fix makes it clean."""
    settings = {**GUARDED, "JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 2, "BLOOM_CAPACITY": 50}
    with LoopSite() as site:
        running = start_crawl(site.url(), {**settings, "DOWNLOAD_DELAY": 0.01})
        site.wait_for_hits(60)
        names = {path.name for path in tmp_path.rglob("*")}
        for _ in range(5):
            code, found = answer("verify", tmp_path)
            assert (code, found["findings"], found["in_use"]) == (OK, [], True)
            code, found = answer("info", tmp_path)
            assert code == OK
            assert found["pending"] is not None
            assert found["verdicts"] is not None
        assert names <= {path.name for path in tmp_path.rglob("*")}
        assert answer("verify", tmp_path, "--fix")[0] == OK, "there is nothing to repair, so nobody is in the way"
        (tmp_path / "requests.bloom.merging").mkdir()
        code, error = answer("verify", tmp_path, "--fix")
        assert code == USAGE
        assert "is in use by process" in error
        running.process.kill()
        running.process.communicate()
    (tmp_path / "requests.bloom.merging").rmdir()
    code, found = answer("verify", tmp_path)
    assert code == WRONG
    assert all("was not closed" in finding for finding in found["findings"])
    code, found = answer("verify", tmp_path, "--fix")
    assert (code, found["sound"]) == (OK, True)


@pytest.mark.slow
def test_a_mended_job_is_crawled_to_its_end(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """After a kill and a damaged layer, --fix makes a job of it that fetches every page that is missing."""
    settings = {"ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": str(tmp_path / "job"), "BLOOM_CAPACITY": 20}
    with LocalSite(pages=120) as site:
        running = start_crawl(site.url(), {**settings, "CONCURRENT_REQUESTS": 2, "DOWNLOAD_DELAY": 0.02})
        while not layer(tmp_path / "job" / "requests.bloom", 1).exists():  # a damaged layer needs a sound one beside it
            assert running.process.poll() is None
            time.sleep(0.01)
        running.process.kill()
        running.process.communicate()
        flip_bits(layer(tmp_path / "job" / "requests.bloom"), 40)
        assert answer("verify", tmp_path / "job")[0] == WRONG
        code, found = answer("verify", tmp_path / "job", "--fix")
        assert (code, found["sound"]) == (OK, True)
        crawl(site.url(), settings)
        assert site.missing_pages() == []


def test_the_filter_alone_can_be_verified(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """A directory of open_filter() is read and mended like that of a job."""
    filled(tmp_path, 30, capacity=10)
    assert answer("verify", tmp_path)[1]["read"][0]["what"] == "30 URLs in 2 layers"
    flip_bits(layer(tmp_path), 40)
    code, found = answer("verify", tmp_path, "--fix")
    assert (code, len(found["done"])) == (OK, 1)
    with open_filter(tmp_path) as chain:
        assert fingerprint(29) in chain
        assert fingerprint(0) not in chain


def test_a_job_whose_filter_is_elsewhere_is_read_too(job: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """The job directory of a fleet's worker has what its loop guard parks, and no filter."""
    shutil.rmtree(job / "requests.bloom")
    (job / "requests.frontier").unlink()
    code, found = answer("verify", job, "--fix")
    assert (code, [each["part"] for each in found["read"]]) == (OK, ["loop guard", "news of the loop guard"])
    DAMAGES["the guard"][0](job)
    assert answer("verify", job, "--fix")[0] == WRONG


def test_layers_that_were_dropped_for_their_age_are_not_missing(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]]
) -> None:
    """A filter of which the oldest layers are gone rightly is sound, and mended without them."""
    days = 0.0
    with open_filter(tmp_path, 10, max_age=8, clock=lambda: days) as chain:
        for each in fingerprints(40):
            chain.add(each)
            days += 0.5
        count = len(chain)
    first = min(tmp_path.glob("layer-*.bloom"))
    assert first.name > "layer-003.bloom"
    assert answer("verify", tmp_path)[1]["findings"] == []
    flip_bits(first, 40)
    code, found = answer("verify", tmp_path, "--fix")
    assert (code, len(found["done"])) == (OK, 1)
    assert min(tmp_path.glob("layer-*.bloom")) == first
    assert 0 < found["urls"] < count
