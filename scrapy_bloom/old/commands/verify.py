"""Reads all of a job directory, reports everything that is wrong with it at once, and repairs what is safe to repair.

A repair is safe if it costs fetches at most. Repairs only with ``--fix``, and never while a crawl runs. Does not know
the formats of the files: their own modules check them.
"""

from __future__ import annotations

import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.job import filter_place
from scrapy_bloom.old.commands.terminal import OK, WRONG, show, size, tracked
from scrapy_bloom.old.errors import BloomError, counted
from scrapy_bloom.old.files.frontier_check import contents, problems
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME, SALVAGE_NAME, half_salvaged
from scrapy_bloom.old.files.frontier_mark import read_mark
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.job_lock import hold_frontier
from scrapy_bloom.old.files.layerfile import read_header
from scrapy_bloom.old.files.layout import FILTER_NAME, layer_paths
from scrapy_bloom.old.files.mend import mend
from scrapy_bloom.old.files.merge import UNFINISHED_NAME
from scrapy_bloom.old.files.sqlite_copy import reading
from scrapy_bloom.old.loops import verdicts
from scrapy_bloom.old.loops.parked import guard_file, missing_in, newest_noted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_bloom.old.files.inspect import FilterDescription

NEWS_NAME = "requests.news"
SPARE_NAMES = (UNFINISHED_NAME, SALVAGE_NAME)
"""Directories that a killed command leaves behind. Needed only if salvage has saved requests and not put in place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``verify``."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="repair what costs fetches at most, and say what was done: delete what was never finished, close a filter "
        "that was not closed, put an empty layer in the place of a damaged one, which is kept",
    )


def run(options: argparse.Namespace) -> int:
    """Print what was read and what is wrong with it."""
    found = verify(options.directory, fix=options.fix)
    show(found, options, _lines)
    return WRONG if found["findings"] else OK


def verify(directory: str, *, fix: bool = False) -> dict[str, Any]:
    """Read all of the job in *directory*; with *fix*, repair it first and then read it.

    Raises:
        InUseError: It is to be repaired, and a crawl is running there.
        UnusableError: There is no job.

    """
    path = filter_place(directory)
    before: list[str] = []
    done: list[str] = []
    if fix:
        before = _read_all(path)["findings"]
        if before:
            with hold_frontier(path.parent):
                done = _fix(path)
    return {**_read_all(path), "found_before": before, "done": done}


def _read_all(path: Path) -> dict[str, Any]:
    read: list[dict[str, Any]] = []
    findings: list[str] = []
    is_job = path.name == FILTER_NAME
    # Before the frontier: what the filter has noted of the frontier is never ahead of it.
    mark = read_mark(path / "frontier") if is_job else None
    described = _read_filter(path, "filter", read, findings)
    if is_job:
        jobdir = path.parent
        findings += _read_frontier(jobdir / FRONTIER_NAME, described, mark, read)
        findings += _read_guard(jobdir, read)
        if layer_paths(jobdir / NEWS_NAME):
            _read_filter(jobdir / NEWS_NAME, "news of the loop guard", read, findings)
        if unfinished := half_salvaged(jobdir / FRONTIER_NAME):
            findings.append(str(unfinished))
        findings += [
            f"{spare} was left behind by a command that was killed. Nothing in it is used." for spare in _spare(jobdir)
        ]
    return {
        "directory": str(path),
        "in_use": described.is_in_use,
        "urls": described.about,
        "layers": [
            {"file": layer.path.relative_to(path).as_posix(), "urls": layer.about, "clean": layer.is_clean}
            for layer in described.layers
        ],
        "read": read,
        "sound": not findings,
        "findings": findings,
    }


def _read_filter(path: Path, part: str, read: list[dict[str, Any]], findings: list[str]) -> FilterDescription:
    described = inspect(path, read_bits=True, tracked=lambda layers: tracked(layers, f"Reading the {part}"))
    findings += described.findings
    if not described.exists:  # the job of a worker whose filter is on a server
        return described
    noun = ("URL", "URLs") if part == "filter" else ("entry", "entries")
    about = "" if described.is_clean else "about "
    what = f"{about}{counted(described.about, *noun)} in {counted(len(described.layers), 'layer')}"
    read.append({"part": part, "bytes": described.nbytes, "what": what})
    return described


def _read_frontier(
    path: Path, seen: FilterDescription, mark: tuple[bytes, int | None] | None, read: list[dict[str, Any]]
) -> list[str]:
    if not path.exists():  # half-salvaged, it is not missing: that is a finding of its own
        return [] if half_salvaged(path) else disagreements(path, None, 0, seen, mark)

    def look(connection: sqlite3.Connection) -> tuple[list[str], str]:
        wrong = problems(path, connection)
        if wrong:
            return wrong, "damaged"
        found = contents(connection)
        return disagreements(path, found.filter_id, found.last_id, seen, mark), counted(
            found.pending, "pending request"
        )

    return _read_database(path, "pending requests", read, look)


def disagreements(
    path: Path, filter_id: str | None, last_id: int, seen: FilterDescription, mark: tuple[bytes, int | None] | None
) -> list[str]:
    """Return why frontier and filter do not belong together; ``frontier.agreement`` refuses a crawl by the same.

    The frontier at *path* was used with the filter *filter_id*, and has got to request *last_id*. Without a frontier
    *filter_id* is None; a filter that is gone costs fetches only, and is no reason to refuse.
    """
    paths = layer_paths(seen.directory)
    if not paths:
        if not filter_id or not last_id:
            return []
        advice = "Restore both from a backup of the same moment to spare that."
        return [
            f"{seen.directory}, the filter of {path}, is gone. A crawl begins anew, and fetches all again. {advice}"
        ]
    try:
        chain_id = read_header(paths[0]).origin.chain_id
    except BloomError:  # a finding already
        return []
    if not seen.about or filter_id == "":
        return []
    advice = "Restore both from a backup of the same moment, or go on by BLOOM_ACCEPT_LOST_REQUESTS = True."
    noted = mark[1] if mark is not None and mark[0] == chain_id else None
    if filter_id is None:
        return [f"{path} is missing, and the filter knows requests up to {noted}. {advice}"] if noted else []
    if filter_id != chain_id.hex():
        return [f"{path} was used with another filter than {seen.directory}. {advice}"]
    if noted is None and last_id:
        return [f"{seen.directory / 'frontier'}, which tells how old {path} is, is missing or damaged. {advice}"]
    if noted is not None and noted > last_id:
        found = f"it has got to request {last_id}, and the filter knows them up to {noted}"
        return [f"{path} is older than its filter: {found}. {advice}"]
    return []


def _read_guard(jobdir: Path, read: list[dict[str, Any]]) -> list[str]:
    path = guard_file(jobdir)
    noted = newest_noted(jobdir)
    if not path.exists():
        return missing_in(jobdir, noted, None)

    def look(connection: sqlite3.Connection) -> tuple[list[str], str]:
        wrong = verdicts.problems(path, connection)
        if wrong:
            return wrong, "damaged"
        dry = len(verdicts.shapes_in(path, connection))
        shapes = counted(dry, "shape that has run dry", "shapes that have run dry")
        return (
            missing_in(jobdir, noted, connection),
            f"{shapes}, {counted(verdicts.parked_in(path, connection), 'parked request')}",
        )

    return _read_database(path, "loop guard", read, look)


def _read_database(
    path: Path,
    part: str,
    read: list[dict[str, Any]],
    look: Callable[[sqlite3.Connection], tuple[list[str], str]],
) -> list[str]:
    try:
        with reading(path, most_bytes=None) as connection:
            wrong, what = look(connection) if connection is not None else ([], "")
    except (sqlite3.Error, OSError) as error:
        wrong, what = [f"{path} cannot be read: {error}. Check the file, the disk and the permissions."], "unreadable"
    except BloomError as error:
        wrong, what = [str(error)], "unreadable"
    read.append({"part": part, "bytes": path.stat().st_size, "what": what})
    return wrong


def _fix(path: Path) -> list[str]:
    # Without a frontier, leave it unclosed: the next crawl must see that a kill may have lost Scrapy's queue.
    may_close = path.name != FILTER_NAME or (path.parent / FRONTIER_NAME).exists()
    done = mend(path, may_close=may_close) if layer_paths(path) else []
    if path.name == FILTER_NAME:
        if layer_paths(path.parent / NEWS_NAME):
            done += mend(path.parent / NEWS_NAME)
        for spare in _spare(path.parent):
            shutil.rmtree(spare)
            done.append(f"Deleted {spare}.")
    return done


def _spare(jobdir: Path) -> list[Path]:
    needed = SALVAGE_NAME if half_salvaged(jobdir / FRONTIER_NAME) else ""
    return [jobdir / name for name in SPARE_NAMES if name != needed and (jobdir / name).exists()]


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield from (f"+ {each}" for each in found["done"])
    yield from (f"read: {each['part']}, {each['what']} ({size(each['bytes'])})" for each in found["read"])
    yield from (f"! {finding}" for finding in found["findings"])
    if found["sound"]:
        yield f"All of {found['directory']} and what is beside it was read, and is sound."
    elif found["found_before"] and not found["done"]:
        yield "Nothing could be repaired without the risk of losing pages."
