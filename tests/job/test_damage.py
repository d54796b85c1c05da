"""Damaged, lost, swapped and restored files of a job: whole, shown again, or refused; never fewer pages in silence."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError, DamagedError, InUseError, UnusableError
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.verify import fix_job
from tests.support.damage import REFUSED, WHOLE, Job, begun, crawl, flip, verify_job
from tests.support.engine import Engine, opened

MOMENTS = 3


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """A job as a kill would leave it at three moments, and stopped cleanly after the third."""
    return begun(tmp_path_factory.mktemp("jobs"), moments=MOMENTS)


def test_an_undamaged_job_is_whole(jobs: list[Job]) -> None:
    """Every pending page comes once, at each of these moments, and there is nothing to verify or to fix."""
    for job in jobs:
        outcome, came = crawl(job.copy("tried"))
        assert outcome == WHOLE
        assert Counter(came) == Counter(job.pending)
        fixed = job.copy("tried")
        assert verify_job(fixed.directory) == []
        assert fix_job(fixed.directory) == (len(job.pending), 0)
        assert crawl(fixed) == (WHOLE, crawl(job.copy("other"))[1])


def saves_what_is_whole(job: Job, *, is_older: bool = False) -> str:
    """Fix *job*, crawl what was saved, and return how that ended. An older database does not know what is lost."""
    try:
        saved, lost = fix_job(job.directory)
    except BloomError as error:
        return "nothing to save" if error.advice else "no advice"
    assert is_older or saved + lost >= len(job.pending)
    assert verify_job(job.directory) == []
    outcome, came = crawl(Job(job.directory, ()))
    assert outcome == WHOLE
    assert len(came) == len(set(came)) == saved
    assert is_older or set(came) <= set(job.pending)
    return "saved" if saved else "nothing saved"


def flipped(job: Job, offsets: Iterable[int], seed: int, *, is_older: bool = False) -> Counter[str]:
    """Flip one bit at each of *offsets*, in a copy; return how often it was taken how."""
    outcomes: Counter[str] = Counter()
    random_ = random.Random(seed)
    for offset in offsets:
        tried = job.copy("tried")
        size, mask = tried.database.stat().st_size, 1 << random_.randrange(8)
        file, at = (tried.database, offset) if offset < size else (tried.log, offset - size)
        flip(file, at, mask)
        try:
            findings = verify_job(tried.directory)
            outcome, _ = crawl(tried.copy("other"))
            assert findings or outcome != REFUSED
            outcomes[outcome] += 1
            if findings:
                outcomes[saves_what_is_whole(tried, is_older=is_older)] += 1
        except BaseException as error:
            raise AssertionError(f"{mask:#x} of byte {at} of {file.name} was flipped") from error
    return outcomes


def test_a_flipped_bit_anywhere_loses_nothing(jobs: list[Job]) -> None:
    """A page comes, or is shown again, or the damage is found, and all that is whole is saved from it. In the header,
    SQLite reads the file all the same, or the crawl is refused and ``verify`` says why."""
    random_, size = random.Random(2), jobs[-1].database.stat().st_size
    outcomes = flipped(jobs[-1], [*range(0, 100, 18), *random_.sample(range(size), 8)], 2)
    assert outcomes["nothing saved"] == 0
    assert outcomes[WHOLE]
    assert outcomes[REFUSED]
    assert outcomes["saved"] >= outcomes[REFUSED] - 4, "some cannot be read at all"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "count", "refused"), [("database", 200, 30), ("first page", 500, 100), ("database and log", 150, 50)]
)
def test_hundreds_of_flipped_bits_lose_nothing(part: str, count: int, refused: int, jobs: list[Job]) -> None:
    """As above, anywhere; in SQLite's header and the names of tables and columns; and in the files as a kill leaves
    them, where SQLite takes the log up to its first torn frame."""
    job = jobs[MOMENTS - 1 if "log" in part else -1]
    content = job.database.read_bytes() + (job.log.read_bytes() if "log" in part else b"")
    offsets = random.Random(4).sample(range(len(content)), count)
    if part == "first page":
        offsets = [offset for offset in range(4096) if offset < 100 or content[offset]][1::7]
    assert flipped(job, offsets, 4, is_older="log" in part)[REFUSED] > refused


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_torn_log_is_an_older_database(part: float, jobs: list[Job]) -> None:
    """It lacks requests that the filter knows, so it is refused; fixing it goes on with those that it has."""
    torn = jobs[MOMENTS - 1].copy("tried")
    with torn.log.open("r+b") as file:
        file.truncate(int(part * torn.log.stat().st_size))
    outcome, _ = crawl(torn.copy("other"))
    if part < 0.9:
        assert outcome == REFUSED
    if outcome == REFUSED:
        assert verify_job(torn.directory)
        saves_what_is_whole(torn, is_older=True)


@pytest.mark.parametrize("lost", [["log"], ["database"], ["database", "log"]], ids=" and ".join)
def test_a_lost_part_of_the_database_is_refused(lost: list[str], jobs: list[Job]) -> None:
    """The filter knows of pages that no part has; refused once, it is refused again."""
    job = jobs[MOMENTS - 1].copy("tried")
    for part in lost:
        getattr(job, part).unlink()
    assert crawl(job) == crawl(job) == (REFUSED, [])
    assert verify_job(job.directory)
    assert saves_what_is_whole(job, is_older=True) == "nothing saved"


@pytest.mark.parametrize("moment", range(MOMENTS - 1))
def test_an_older_copy_of_the_database_is_refused(moment: int, jobs: list[Job]) -> None:
    """Pages between would count as seen and never come; fixed, it goes on without them."""
    job = jobs[MOMENTS - 1].copy("tried")
    for name in ("job.sqlite", "job.sqlite-wal"):
        shutil.copy(jobs[moment].files / name, job.files / name)
    (job.files / "job.sqlite-shm").unlink(missing_ok=True)
    with pytest.raises(UnusableError, match="verify --fix"):
        Engine(job.directory)
    assert crawl(job) == (REFUSED, [])
    assert verify_job(job.directory)
    saved, _ = fix_job(job.directory)
    assert saved == len(jobs[moment].pending)
    _, came = crawl(Job(job.directory, jobs[moment].pending))
    assert Counter(came) == Counter(jobs[moment].pending)


@pytest.mark.parametrize("older", [None, *range(MOMENTS - 1)], ids=["lost", "first", "second"])
@pytest.mark.parametrize("which", [MOMENTS - 1, -1], ids=["killed", "stopped"])
def test_a_filter_that_is_lost_or_older_is_shown_what_is_pending(
    which: int, older: int | None, jobs: list[Job]
) -> None:
    """Every pending page comes once, and links to it are duplicates again; what was done may be fetched again."""
    job = jobs[which].copy("tried")
    job.layer.unlink()
    if older is not None:
        shutil.copy(jobs[older].layer, job.layer)
    with opened(job.copy("other").directory) as engine:
        assert not any(engine.push(*map(Request, job.pending)))
    outcome, came = crawl(job)
    assert outcome == WHOLE
    assert Counter(came) == Counter(job.pending)


def test_files_of_another_job_are_refused(jobs: list[Job], tmp_path: Path) -> None:
    """The database and the layers name each other."""
    other = begun(tmp_path, 50, 10, site="another")[-1]
    for name in ("job.sqlite", "layer-000.bloom"):
        job = jobs[-1].copy("tried")
        shutil.copy(other.files / name, job.files / name)
        assert crawl(job) == (REFUSED, [])
        assert verify_job(job.directory)


def change(job: Job, statement: str) -> None:
    with closing(sqlite3.connect(job.database)) as connection, connection:
        connection.execute(statement)


def begin_anew(job: Job, statement: str) -> None:
    job.database.unlink()
    change(job, statement)


def replace(job: Job, content: bytes) -> None:
    job.database.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "how"),
    [
        *((replace, content) for content in (b"no database, but some text " * 300, bytes(8192), b"SQLite format 3\0")),
        (change, "PRAGMA user_version = 3"),
        (change, "PRAGMA application_id = 77"),
        (begin_anew, "CREATE TABLE notes (text)"),
    ],
)
def test_what_no_version_of_ours_has_written_is_refused_and_left_alone(
    damage: Callable[[Job, Any], None], how: bytes | str, jobs: list[Job]
) -> None:
    """No database at all, one of a later version, and one of another program."""
    job = jobs[-1].copy("tried")
    damage(job, how)
    before = job.database.read_bytes()
    assert crawl(job) == (REFUSED, [])
    assert verify_job(job.directory)
    assert saves_what_is_whole(job) == "nothing to save"
    assert job.database.read_bytes() == before


def test_a_lane_that_says_more_than_was_noted_is_damage(jobs: list[Job]) -> None:
    """The sum over the lanes is compared with the state of the last commit: rows may not vanish silently."""
    job = jobs[-1].copy("tried")
    change(job, "UPDATE lane SET rows = rows - 1")
    with pytest.raises(DamagedError):
        Engine(job.directory)


def test_a_damaged_feed_length_never_cuts_items(jobs: list[Job]) -> None:
    """A bit that makes it smaller would cut off items of pages that are done: the crawl is refused instead."""
    job = jobs[-1].copy("tried")
    content = job.database.read_bytes()
    at = content.index(b'items.jl", "", 5000')
    flip(job.database, at + len(b'items.jl", "", '), 4)  # 5 becomes 1
    assert crawl(job) == (REFUSED, [])
    assert job.feed.stat().st_size == 5_000
    assert verify_job(job.directory)
    assert fix_job(job.directory) == (len(job.pending), 0)
    assert crawl(job)[0] == WHOLE


@pytest.mark.parametrize("command", [verify_job, fix_job])
def test_commands_want_a_job_that_no_crawl_runs_in(command: Callable[[Path], object], tmp_path: Path) -> None:
    """Files that change meanwhile are not looked at, and a directory without a job stays empty."""
    with opened(tmp_path / "job"), pytest.raises(InUseError):
        command(tmp_path / "job")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnusableError):
        command(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_fixed_job_keeps_all_else(tmp_path: Path) -> None:
    """Feeds, failed requests, spider.state, counts and figures are copied, and the damaged database is kept."""
    job = begun(tmp_path)[-1]
    with opened(job.directory) as engine:
        request = engine.fetch()
        engine.end(request, 500)
        engine.spider.state["kept"] = True
    before = inspect_job(job.directory)
    content = job.database.read_bytes()
    flip(job.database, content.index(b"http://host-3.example/000233"), 1)
    assert crawl(job.copy("tried"))[0] == REFUSED
    assert verify_job(job.directory)
    assert fix_job(job.directory) == (len(job.pending) - 2, 1)  # without the failed one, and the damaged one
    after = inspect_job(job.directory)
    assert (after.feeds, after.failed, after.figures) == (before.feeds, before.failed, before.figures)
    assert (after.state.spider, after.state.runs, after.state.cycle) == ("site", 2, 1)
    kept = job.database.with_name("job.sqlite.damaged").read_bytes()
    assert len(kept) == len(content)
    with closing(sqlite3.connect(job.database)) as connection:
        notes = dict(connection.execute("SELECT key, body FROM note"))
    assert b"kept" in notes["spider.state"]
    with opened(job.directory) as engine:
        assert len(engine.drain()) == len(job.pending) - 2
