"""``verify``: everything that is wrong is told at once, and ``--fix`` saves what is whole."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from tests.commands.conftest import Answer


def change(job: Path, statement: str) -> None:
    with closing(sqlite3.connect(job / "requests.bloom" / "job.sqlite")) as database, database:
        database.execute(statement)


def cut_in_two(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def test_a_sound_job_is_said_to_be_sound(job: Path, answer: Answer) -> None:
    """With --fix, nothing is done to it."""
    for options in ([], ["--fix"]):
        code, found = answer("verify", job, *options)
        assert (code, found) == (OK, {"directory": str(job), "sound": True, "done": [], "findings": []})


DAMAGES = {
    "a request": lambda job: change(job, "UPDATE request SET body = x'00' WHERE id = (SELECT max(id) FROM request)"),
    "a queue": lambda job: change(job, "DELETE FROM request WHERE id = (SELECT max(id) FROM request)"),
    "the name of a queue": lambda job: change(job, "UPDATE lane SET slot = 'elsewhere.example'"),
    "the state": lambda job: change(job, "UPDATE note SET body = x'00' WHERE key = 'job'"),
    "an older database": lambda job: change(job, "DELETE FROM note WHERE key = 'job'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_pending_requests_is_found_and_repaired(job: Path, answer: Answer, damage: str) -> None:
    """Each is a finding that says what to do; --fix keeps the damaged file, and makes a job that is sound."""
    DAMAGES[damage](job)
    code, found = answer("verify", job)
    assert (code, found["sound"]) == (WRONG, False)
    assert "--fix" in found["findings"][-1]
    code, found = answer("verify", job, "--fix")
    assert (code, found["sound"], found["findings"]) == (OK, True, [])
    assert (job / "requests.bloom" / "job.sqlite.damaged").exists()
    assert answer("info", job)[0] == OK


def test_a_database_that_cannot_be_read_is_not_repaired(job: Path, answer: Answer) -> None:
    """It is named with advice, and left as it is."""
    path = job / "requests.bloom" / "job.sqlite"
    cut_in_two(path)
    before = path.read_bytes()
    code, error = answer("verify", job, "--fix")
    assert (code, str(path) in error, path.read_bytes() == before) == (USAGE, True, True)


def test_a_damaged_filter_is_for_people_to_repair(job: Path, answer: Answer) -> None:
    """All layers that are damaged are named, with what to do; --fix is not advised, and does not touch them."""
    layers = [job / "requests.bloom" / f"layer-00{number}.bloom" for number in range(2)]
    for path in layers:
        path.write_bytes(path.read_bytes()[:9000] + b"\xff" * 300 + path.read_bytes()[9300:])
    code, found = answer("verify", job)
    assert code == WRONG
    assert all(any(str(path) in finding for finding in found["findings"]) for path in layers)
    assert not any("--fix" in finding for finding in found["findings"])
    assert answer("verify", job, "--fix") == (WRONG, found)
