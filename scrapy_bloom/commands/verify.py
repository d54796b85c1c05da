"""Reads a whole job and reports all problems at once. ``--fix`` saves the pending requests that are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.commands.terminal import OK, WRONG, console, show
from scrapy_bloom.errors import counted
from scrapy_bloom.job.verify import finish_interrupted, fix_job, problems_of

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``verify``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="if the pending requests are damaged or older than the filter: write every request that is whole into a "
        "new database, give the others up, and keep the damaged file",
    )


def run(options: argparse.Namespace) -> int:
    """Print the problems and the repairs."""
    directory, done = options.directory, list[str]()
    if options.fix and finish_interrupted(directory):
        done.append("A repair that was interrupted is complete now.")
    with console(stderr=True).status("Reading the whole job"):
        problems = problems_of(directory)
        if problems.of_database and options.fix:
            saved, lost = fix_job(directory)
            requests = counted(saved, "pending request")
            done += problems.of_database
            done.append(f"Saved {requests} in a new database; {lost:,} that were noted could not be saved.")
            problems = problems_of(directory)
    findings = [*problems.of_filter, *problems.of_database]
    if problems.of_filter:
        findings.append(
            "Restore the job from a backup; or delete the damaged layer files, and all pages that they know are "
            "fetched again."
        )
    elif problems.of_database:
        findings.append("Restore the job from a backup; or save the pending requests that are whole with --fix.")
    show({"directory": directory, "sound": not findings, "done": done, "findings": findings}, options)
    return WRONG if findings else OK
