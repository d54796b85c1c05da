"""Puts back what the loop guard has parked in a job directory, or what a fleet has set aside.

Does not know where either is kept: ``loops/verdicts.py`` and ``fleet.py`` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands import fleet
from scrapy_bloom.old.commands.job import job_directory
from scrapy_bloom.old.commands.terminal import OK, show
from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.files.job_lock import hold_job
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdicts import try_again

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    parser.add_argument(
        "directory", metavar="DIR|URL", help="a JOBDIR whose crawl has been stopped, or the redis:// server of a fleet"
    )
    fleet.add_arguments(parser)
    parser.add_argument("--list", action="store_true", help="of a server: list what was set aside, and leave it there")
    parser.add_argument("--id", action="append", default=[], help="of a server: only this one; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Put back what was set aside, and print how much that is."""
    if fleet.is_server(options.directory):
        return fleet.show_requeued(options)
    fleet.refuse_options(options, "list", "id", "spider", "key")
    show(requeue(options.directory), options, _lines)
    return OK


def requeue(directory: str) -> dict[str, Any]:
    """Put back what is parked in the job *directory*.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no job, or a file of it cannot be written.

    """
    jobdir = job_directory(directory)
    with hold_job(jobdir):
        waiting = try_again(jobdir) if guard_file(jobdir).exists() else 0
    return {"directory": str(jobdir), "requeued": waiting}


def _lines(found: dict[str, Any]) -> list[str]:
    if not found["requeued"]:
        return ["Nothing is parked."]
    going = counted(found["requeued"], "parked request goes", "parked requests go")
    return [
        f"{going} back to the queue in the next run with BLOOM_LOOP_GUARD.",
        "Shapes whose pages bring nothing again are parked again; `release` takes a verdict back for good.",
    ]
