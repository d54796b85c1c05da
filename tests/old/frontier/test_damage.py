"""A damaged frontier: a clear error, never a page lost or changed silently; and what salvage makes of it."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom.old.commands import command_line
from scrapy_bloom.old.commands.terminal import USAGE
from scrapy_bloom.old.commands.verify import verify
from scrapy_bloom.old.errors import BloomError, DamagedError, UnusableError
from scrapy_bloom.old.files.frontier_check import contents, problems
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.frontier.database import Database
from scrapy_bloom.old.frontier.salvage import main, salvage, scan
from tests.old.support.schedulers import DURABLE, SCRAPY, EngineCalls, opened

BLOOM = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "BLOOM_CAPACITY": 1000,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",  # priorities first, in every Scrapy
}
HOSTS = 5


def url(n: int) -> str:
    return f"http://host-{n % HOSTS}.example/products/{n}"


def filled(jobdir: Path, count: int = 400) -> Path:
    """Leave a job with *count* pending requests, and some pages freed by requests that are done."""
    with opened(jobdir, **BLOOM) as calls:
        for n in range(count):
            meta = {"text": "x" * (n % 7 * 40), "long": "y" * (n % 50 == 0) * 9000}
            calls.push(Request(url(n), meta=meta, priority=n % HOSTS))
        calls.commit()
        calls.push(*(Request(f"{url(n)}?done", priority=9) for n in range(100)))
        calls.commit()
        for _ in range(100):
            calls.end(calls.start())
    return jobdir / FRONTIER_NAME


def crawl(jobdir: Path, **settings: object) -> tuple[set[str], bool]:
    """Crawl what is pending; return the URLs and whether the crawl was told of damage."""
    with opened(jobdir, **BLOOM, **settings) as calls:
        found = set(calls.drain())
        return found, calls.scheduler._failed


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bits_are_reported_or_harmless(tmp_path: Path, seed: int) -> None:
    """Wherever bits flip, the start is refused, or the crawl is ended with a clear error, or no page is lost; and none
    is changed."""
    path = filled(tmp_path)
    whole = path.read_bytes()
    expected = {url(n) for n in range(400)}
    rng = random.Random(seed)
    told = 0
    for flips in (1, 1, 2, 30):
        data = bytearray(whole)
        for _ in range(flips):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            found, was_told = crawl(tmp_path)
        except BloomError:
            found, was_told = set(), True
        assert found <= expected
        assert was_told or found == expected
        told += was_told
        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    assert told


def test_a_lane_that_is_gone_is_damage(tmp_path: Path) -> None:
    """Requests whose lane is not in the table of lanes are refused at the start, as is a garbled state."""
    path = filled(tmp_path, 20)
    whole = path.read_bytes()
    for statement, problem in (
        (
            "DELETE FROM lanes WHERE id = (SELECT min(id) FROM lanes)",
            "lack 1 lane of requests, and have 0 lanes without any",
        ),
        ("UPDATE lanes SET key = key || '0'", "contradicts its checksum"),
        ("UPDATE counts SET body = substr(body, 1, length(body) - 1)", "of the counts contradicts its checksum"),
        ("DELETE FROM counts", "lack 5 lanes of requests"),
        ("UPDATE state SET value = '[1, 2' WHERE name = 'in_flight'", "'in_flight' is '.1, 2', which contradicts"),
        ("DELETE FROM state WHERE name = 'last_id'", "it has the states"),
        ("DROP INDEX requests_by_lane", "not in the shape of format version"),
    ):
        path.write_bytes(whole)
        database = sqlite3.connect(path)
        with database:
            database.execute(statement)
        database.close()
        with pytest.raises(DamagedError, match=problem):
            EngineCalls(tmp_path, **BLOOM)


@pytest.mark.parametrize("damage", ["leaves", "header", "tree", "lanes"])
def test_salvage_saves_what_is_readable(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Following the advice of the error gives a frontier with every request whose bytes are whole, and says how many
    are lost; no request that was done comes back."""
    path = filled(tmp_path)
    whole = path.read_bytes()
    data = bytearray(whole)
    leaves = [at for at in range(4096, len(data), 4096) if data[at] == 0x0D and b"products" in data[at : at + 4096]]
    lost = set()
    if damage == "leaves":
        data[leaves[3] : leaves[3] + 4096] = b"\xff" * 4096
        lost = {row.id for row in scan(path)}
    elif damage == "header":
        data[:100] = bytes(100)
    else:
        database = sqlite3.connect(path)
        table = "requests" if damage == "tree" else "lanes"
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        database.close()
        data[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    path.write_bytes(data)
    if damage == "leaves":
        lost -= {row.id for row in scan(path)}
        assert lost
    with pytest.raises(BloomError, match=r"scrapy_bloom\.frontier\.salvage") if damage != "leaves" else _nothing():
        crawl(tmp_path)
    if damage == "leaves":
        path.write_bytes(data)
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"Saved {400 - len(lost)} pending requests" in said
    assert ("not known" in said) == (damage in {"lanes", "header"}) or f"{len(lost)} are lost" in said
    found, was_told = crawl(tmp_path)
    assert len(found) == 400 - len(lost)
    assert not was_told
    assert found <= {url(n) for n in range(400)}
    assert path.with_name(f"{path.name}.damaged").exists()


class _nothing:  # noqa: N801 - as contextlib.nullcontext, which would have to be told of the damage in a leaf
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_salvage_of_a_sound_file_changes_nothing(tmp_path: Path) -> None:
    """All rows are saved, none is missing, and none that was done is back."""
    filled(tmp_path)
    found = salvage(tmp_path)
    assert (found.saved, found.missing) == (400, 0)
    assert crawl(tmp_path) == ({url(n) for n in range(400)}, False)


_SALVAGE_DYING_AT = """
import os, pathlib, signal, sys
from scrapy_bloom.old.frontier.salvage import salvage
moves = 0

def dying(move):
    def moving(*paths):
        global moves
        moves += 1
        if moves == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return move(*paths)
    return moving

pathlib.Path.rename, pathlib.Path.replace = map(dying, (pathlib.Path.rename, pathlib.Path.replace))
salvage(pathlib.Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_salvage_killed_at_any_move_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed before any of its moves, salvage leaves a job that a second salvage finishes with every request, and
    ``verify --fix`` in between deletes nothing that is needed. No crawl starts on the half of it."""
    path = filled(tmp_path / "job")
    path.with_name(f"{path.name}-wal").touch()  # one move more
    moves = 0
    while True:
        moves += 1
        job = tmp_path / str(moves)
        shutil.copytree(tmp_path / "job", job)
        command = [sys.executable, "-c", _SALVAGE_DYING_AT, str(job), str(moves)]
        if subprocess.run(command, check=False).returncode == 0:
            break
        found = verify(str(job), fix=True)
        if moves == 1:
            assert found["done"] == [f"Deleted {job / 'requests.frontier.salvage'}."]
        else:
            assert "Run it again" in found["findings"][0]
            for scheduler in (DURABLE, SCRAPY):
                with pytest.raises(UnusableError, match="not in its place yet"):
                    EngineCalls(job, scheduler, **BLOOM)
            assert command_line.main(["merge", str(tmp_path / "all"), str(job)]) == USAGE
            assert "not in its place yet" in capsys.readouterr().err
        assert main([str(job)]) == 0
        assert "Saved 400 pending requests; 0 are lost" in capsys.readouterr().out
        assert not verify(str(job))["findings"]
        assert {each.name for each in job.glob(f"{FRONTIER_NAME}.[ds]*")} == {
            f"{FRONTIER_NAME}.damaged",
            f"{FRONTIER_NAME}.damaged-wal",
        }
        assert crawl(job) == ({url(n) for n in range(400)}, False)
    assert moves == 5


def test_salvage_wants_a_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without one, or without a job directory, it says what is wrong and fails."""
    with pytest.raises(UnusableError, match="does not exist"):
        salvage(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_file_of_version_2_is_upgraded_unless_it_is_damaged(tmp_path: Path) -> None:
    """A frontier that counts in its table of lanes, written when that was the format, keeps its counts, which are
    checked, and its requests."""
    path = tmp_path / FRONTIER_NAME
    path.write_bytes((Path(__file__).parent / "golden" / "version-2.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as database:
        assert contents(database).pending == 29
        assert problems(path, database) == []
        database.executescript("UPDATE lanes SET rows = rows - 1 WHERE id = 1")
        assert len(problems(path, database)) == 1
        with pytest.raises(DamagedError, match=r"5 requests. contradicts its checksum"):
            Database.open(path)
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        database.executescript("UPDATE lanes SET rows = rows + 1 WHERE id = 1")
    opened_once = Database.open(path)
    assert [lane.rows for lane in opened_once.lanes()] == [6, 6, 6, 6, 5]
    opened_once.abandon()
    found, was_told = crawl(tmp_path)
    assert len(found) == 29
    assert found < {url(n) for n in range(30)}
    assert not was_told


def test_a_file_of_version_3_is_read(tmp_path: Path) -> None:
    """A frontier that the first program of this format wrote is whole, and hands out its requests."""
    path = tmp_path / FRONTIER_NAME
    path.write_bytes((Path(__file__).parent / "golden" / "version-3.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)
        assert contents(database).pending == 29
        assert problems(path, database) == []
    found, was_told = crawl(tmp_path)
    assert len(found) == 29
    assert found < {url(n) for n in range(30)}
    assert not was_told


def test_a_file_of_version_1_is_upgraded(tmp_path: Path) -> None:
    """A frontier without checksums and counts gets them on opening, and its requests come out as before."""
    path = filled(tmp_path, 30)
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE old_state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
        INSERT INTO old_state VALUES ('clean', 1), ('in_flight', '[]'), ('importing', 0), ('spider', 'site');
        DROP TABLE state;
        ALTER TABLE old_state RENAME TO state;
        CREATE TABLE old_lanes (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
        INSERT INTO old_lanes SELECT id, key FROM lanes;
        DROP TABLE lanes;
        DROP TABLE counts;
        ALTER TABLE old_lanes RENAME TO lanes;
        UPDATE requests SET body = substr(body, 5);
        PRAGMA user_version = 1;
        """
    )
    database.close()
    for name in ("requests.bloom/frontier",):
        (tmp_path / name).unlink()  # that of version 1 noted nothing
    opened_once = Database.open(path)
    assert [lane.rows for lane in opened_once.lanes()] == [6] * HOSTS
    opened_once.abandon()
    assert crawl(tmp_path) == ({url(n) for n in range(30)}, False)
