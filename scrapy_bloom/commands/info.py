"""What a job directory holds: filter and pending requests. Reads only, beside a running crawl, too."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands import fleet
from scrapy_bloom.commands.job import filter_directory
from scrapy_bloom.commands.terminal import OK, WRONG, rows, show
from scrapy_bloom.commands.watch import DEFAULT_SECONDS, seconds_argument, watch
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.files.inspect import inspect
from scrapy_bloom.files.layout import FILTER_NAME

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``info`` takes."""
    parser.add_argument("directory", metavar="DIR|URL", help="a JOBDIR, or the redis:// server of a fleet")
    fleet.add_arguments(parser)
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=seconds_argument,
        const=DEFAULT_SECONDS,
        help=f"say every so many seconds how a crawl that runs is doing (default: {DEFAULT_SECONDS:g})",
    )


def run(options: argparse.Namespace) -> int:
    """Print what the job holds, or with ``--watch`` how its crawl is doing until it ends."""
    if fleet.is_server(options.directory):
        if options.watch is not None:
            advice = "Give the JOBDIR of a crawl, or repeat the command without it, as `watch -n 5` does."
            raise UnusableError(
                "--watch", "follows a crawl by files in its JOBDIR, and a server has none", advice=advice
            )
        return fleet.show_info(options)
    if options.watch is not None:
        return watch(options.directory, options.watch, as_json=options.json)
    found = info(options.directory)
    show(found, options, job_lines)
    return WRONG if found["findings"] else OK


def info(directory: str, *, read_bits: bool = False) -> dict[str, Any]:
    """Return what is known of the job in *directory*, in plain types, under stable names."""
    path = filter_directory(directory)
    seen = inspect(path, read_bits=read_bits)
    findings = list(seen.findings)
    pending = _pending(path.parent, findings, read_all=read_bits) if path.name == FILTER_NAME else None
    return {
        "directory": str(path),
        "urls": seen.urls,
        "forgotten": seen.forgotten,
        "pending": pending,
        "bytes": seen.nbytes,
        "error_rate": seen.error_rate,
        "expected_lost": seen.expected_lost,
        "clean": seen.is_clean,
        "in_use": seen.is_in_use,
        "last_opened_by": seen.owner or None,
        "key_space": dict(seen.key_space),
        "layers": [
            {
                "file": layer.path.relative_to(path).as_posix(),
                "urls": layer.urls,
                "capacity": layer.capacity,
                "bytes": layer.nbytes,
                "error_rate": layer.error_rate,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(layer.created)),
                "clean": layer.is_clean,
            }
            for layer in seen.layers
        ],
        "findings": findings,
    }


def _pending(jobdir: Path, findings: list[str], *, read_all: bool) -> int | None:
    """Return how many requests wait in *jobdir*; None if the file is in use, or was left by a killed crawl."""
    path = jobdir / FRONTIER_NAME
    if not path.exists():
        return 0
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        return None  # what stands there is not in the file yet, and opening both together would write
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            if read_all:
                (answer,) = database.execute("PRAGMA integrity_check(1)").fetchone()
                if answer != "ok":
                    findings.append(f"{path} is damaged: {answer}. Restore it together with {FILTER_NAME}.")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            count = "SELECT count(*) FROM requests" if version == 1 else "SELECT ifnull(sum(rows), 0) FROM lanes"
            return int(database.execute(count).fetchone()[0])
    except sqlite3.Error as error:
        findings.append(f"{path} cannot be read: {error}. Restore it together with {FILTER_NAME}.")
        return None


def job_lines(found: dict[str, Any]) -> list[str]:
    """Return the lines for what :func:`info` has *found*."""
    state = "in use" if found["in_use"] else "closed cleanly" if found["clean"] else "not closed"
    pending = "not known while it is in use or after a kill" if found["pending"] is None else f"{found['pending']:,}"
    labelled = [
        ("filter", found["directory"]),
        ("state", f"{state}; last opened by {found['last_opened_by'] or 'nobody known'}"),
        (
            "URLs",
            f"{found['urls']:,}{'' if found['clean'] else ' when last noted, more since'}"
            + (f", and {found['forgotten']:,} taken back" if found["forgotten"] else ""),
        ),
        ("pending", pending),
        ("bytes", f"{found['bytes']:,}"),
        ("expected lost", f"{found['expected_lost']:.2g} pages"),
        ("error rate", "not known" if found["error_rate"] is None else f"{found['error_rate']:g} at most"),
        (
            "made by",
            ", ".join(f"{name}: {value or 'none'}" for name, value in found["key_space"].items()) or "not known",
        ),
        *(
            (
                layer["file"],
                f"{'?' if layer['urls'] is None else format(layer['urls'], ',')} of {layer['capacity']:,} URLs",
            )
            for layer in found["layers"]
        ),
    ]
    return rows(labelled) + [f"! {finding}" for finding in found["findings"]]
