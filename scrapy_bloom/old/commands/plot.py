"""Draws a filter, that of a job or a planned one, into a file. Does not know how to draw: ``pictures`` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.old.commands.curves import curves_of_job, curves_of_plan
from scrapy_bloom.old.commands.job import filter_directory
from scrapy_bloom.old.commands.pictures import save_filter_picture
from scrapy_bloom.old.commands.plan import count_argument, rate_argument
from scrapy_bloom.old.commands.terminal import OK, show
from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.filter.chain import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

if TYPE_CHECKING:
    import argparse

    from scrapy_bloom.old.commands.curves import Curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plot``."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("directory", metavar="DIR", nargs="?", help="a JOBDIR")
    what.add_argument("--urls", type=count_argument, help="instead of DIR: URLs of a crawl that is planned")
    parser.add_argument("--error-rate", type=rate_argument, default=DEFAULT_ERROR_RATE, help="with --urls")
    parser.add_argument("--capacity", type=count_argument, default=DEFAULT_CAPACITY, help="with --urls: BLOOM_CAPACITY")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file, such as picture.svg or .png")


def run(options: argparse.Namespace) -> int:
    """Draw the picture and say where it is."""
    if options.directory is None:
        curves = curves_of_plan(options.urls, options.error_rate, options.capacity)
    else:
        curves = job_curves(options.directory)
    try:
        save_filter_picture(curves, options.output)
    except ValueError as error:
        raise UnusableError(
            options.output, f"cannot be drawn: {error}", advice="Give a file that ends with .svg, .png or .pdf."
        ) from None
    show({"output": str(options.output), "urls": curves.now}, options, lambda found: [f"Drawn: {found['output']}"])
    return OK


def job_curves(directory: str) -> Curves:
    """Return the curves of the filter in *directory*.

    Raises:
        UnusableError: There is none, or its first layer cannot be read.

    """
    path = filter_directory(directory)
    found = inspect(path)
    if not found.layers:
        advice = f"See what is wrong with: python -m scrapy_bloom verify {directory}"
        raise UnusableError(path, "has no layer that can be read", advice=advice)
    return curves_of_job(found)
