"""Damaged, lost, swapped and restored files of a job: whole, shown again, or refused; never fewer pages in silence."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError, InUseError, UnusableError
from scrapy_bloom.job.inspect import fix_job, inspect_job
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
def test_hundreds_of_flipped_bits_lose_nothing(jobs: list[Job]) -> None:
    """As above."""
    random_, size = random.Random(4), jobs[-1].database.stat().st_size
    assert flipped(jobs[-1], random_.sample(range(size), 200), 4)[REFUSED] > 30


@pytest.mark.slow
def test_flipped_bits_of_the_first_page_lose_nothing(jobs: list[Job]) -> None:
    """As above, for SQLite's header and the names of tables and columns."""
    content = jobs[-1].database.read_bytes()
    offsets = [offset for offset in range(4096) if offset < 100 or content[offset]]
    assert flipped(jobs[-1], offsets[1::7], 5)[REFUSED] > 100


@pytest.mark.slow
def test_flipped_bits_of_the_log_lose_nothing(jobs: list[Job]) -> None:
    """As above, for database and log as a kill leaves them: SQLite takes the log up to its first torn frame."""
    killed = jobs[MOMENTS - 1]
    size = killed.database.stat().st_size + killed.log.stat().st_size
    outcomes = flipped(killed, random.Random(6).sample(range(size), 150), 6, is_older=True)
    assert outcomes[REFUSED] > 50


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


@pytest.mark.parametrize("lost", ["log", "database", "both"])
def test_a_lost_part_of_the_database_is_refused(lost: str, jobs: list[Job]) -> None:
    """The filter knows of pages that no part has; refused once, it is refused again."""
    job = jobs[MOMENTS - 1].copy("tried")
    for path in {"log": [job.log], "database": [job.database], "both": [job.database, job.log]}[lost]:
        path.unlink()
    assert crawl(job) == (REFUSED, [])
    assert crawl(job) == (REFUSED, [])
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


@pytest.mark.parametrize("content", [b"no database at all, but some text " * 300, b"\0" * 8192, b"SQLite format 3\0"])
def test_a_file_that_is_no_database_is_refused(content: bytes, jobs: list[Job]) -> None:
    """It is left as it was, and there is nothing to save from it."""
    job = jobs[-1].copy("tried")
    job.database.write_bytes(content)
    assert crawl(job) == (REFUSED, [])
    assert verify_job(job.directory)
    assert saves_what_is_whole(job) == "nothing to save"
    assert job.database.read_bytes() == content


@pytest.mark.parametrize("pragma", ["user_version = 3", "application_id = 77"])
def test_another_format_is_refused_and_left_alone(pragma: str, jobs: list[Job]) -> None:
    """A later version of this package, or another program, may have written it."""
    job = jobs[-1].copy("tried")
    with closing(sqlite3.connect(job.database)) as connection:
        connection.execute(f"PRAGMA {pragma}")
    before = job.database.read_bytes()
    assert crawl(job) == (REFUSED, [])
    assert verify_job(job.directory)
    assert job.database.read_bytes() == before


def test_a_program_of_somebody_else_keeps_its_database(jobs: list[Job]) -> None:
    """Neither a crawl nor ``verify --fix`` touches a file of that name with other tables."""
    job = jobs[-1].copy("tried")
    job.database.unlink()
    with closing(sqlite3.connect(job.database)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.commit()
    before = job.database.read_bytes()
    assert crawl(job) == (REFUSED, [])
    with pytest.raises(BloomError):
        fix_job(job.directory)
    assert job.database.read_bytes() == before


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


def test_a_job_that_a_crawl_runs_in_is_left_alone(tmp_path: Path) -> None:
    """Neither command looks at files that change meanwhile."""
    with opened(tmp_path):
        for command in (verify_job, fix_job):
            with pytest.raises(InUseError):
                command(tmp_path)


def test_a_directory_without_a_job_is_said(tmp_path: Path) -> None:
    """It stays empty."""
    for command in (verify_job, fix_job):
        with pytest.raises(UnusableError):
            command(tmp_path)
    assert list(tmp_path.iterdir()) == []


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
