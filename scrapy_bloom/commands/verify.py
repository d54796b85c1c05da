"""Reads all of a job directory and reports everything that is wrong with it, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.commands.info import info, job_lines
from scrapy_bloom.commands.terminal import OK, WRONG, show

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``verify`` takes."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR")


def run(options: argparse.Namespace) -> int:
    """Print what the job holds and what is wrong with it."""
    found = info(options.directory, read_bits=True)
    show(found, options, job_lines)
    return WRONG if found["findings"] else OK
