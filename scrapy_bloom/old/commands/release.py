"""Takes back a verdict of the loop guard: what is parked for a shape is fetched, and never parked again.

Does not know how verdicts are stored: ``loops/verdicts.py`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.job import job_directory
from scrapy_bloom.old.commands.terminal import OK, show
from scrapy_bloom.old.errors import UnusableError, counted
from scrapy_bloom.old.files.job_lock import hold_job
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdicts import take_back

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``release``."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR whose crawl has been stopped")
    parser.add_argument("shape", metavar="SHAPE", help="as info and the log show it, such as example.com/calendar/N/**")


def run(options: argparse.Namespace) -> int:
    """Take the verdict back, and print how many requests that lets through."""
    show(release(options.directory, options.shape), options, _lines)
    return OK


def release(directory: str, shape: str) -> dict[str, Any]:
    """Take back the verdict on *shape* in the job *directory*.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no such verdict.

    """
    jobdir = job_directory(directory)
    with hold_job(jobdir):
        if not guard_file(jobdir).exists():
            raise UnusableError(
                jobdir,
                "has no verdicts: the loop guard was never on in this job",
                advice="Give the JOBDIR of a crawl with BLOOM_LOOP_GUARD.",
            )
        return {"directory": str(jobdir), "shape": shape, "released": take_back(jobdir, shape)}


def _lines(found: dict[str, Any]) -> list[str]:
    going = counted(found["released"], "parked request goes", "parked requests go")
    return [
        f"The verdict on {found['shape']} is taken back: nothing below it is parked again.",
        f"{going} back to the queue in the next run with BLOOM_LOOP_GUARD.",
    ]
