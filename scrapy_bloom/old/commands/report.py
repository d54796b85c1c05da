"""Gathers what a job directory knows about its crawl, and writes one page about it. Changes nothing else.

The page is made by ``report_page``; this module finds what is on it. Reads beside a running crawl, too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.old.commands import pictures
from scrapy_bloom.old.commands.curves import curves_of_job
from scrapy_bloom.old.commands.info import info
from scrapy_bloom.old.commands.job import filter_directory
from scrapy_bloom.old.commands.report_page import Report, page
from scrapy_bloom.old.commands.terminal import OK, show
from scrapy_bloom.old.files.figures import FIGURES_NAME, read_figures
from scrapy_bloom.old.files.inspect import inspect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from scrapy_bloom.old.files.figures import Figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page, such as report.html")


def run(options: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    text = page(gathered(options.directory))
    options.output.write_text(text, encoding="utf-8")
    show({"output": str(options.output)}, options, lambda found: [f"Written: {found['output']}"])
    return OK


def gathered(directory: str) -> Report:
    """Return what is known of the job in *directory*.

    Raises:
        UnusableError: There is none.
        MissingPackageError: matplotlib is not installed.

    """
    path = filter_directory(directory)
    jobdir = path.parent
    course = read_figures(jobdir / FIGURES_NAME)
    return Report(
        name=jobdir.absolute().name,
        written=time.time(),
        info=info(directory),
        course=course,
        pictures=_pictures(path, course),
    )


def _pictures(path: Path, course: Sequence[Figures]) -> list[tuple[str, str]]:
    drawings: list[tuple[str, str, Callable[[Axes], None]]] = []
    if len(course) > 1:
        drawings += [
            (
                "crawled",
                "URLs, duplicates and pages over the time of the crawl",
                lambda a: pictures.draw_pages(a, course),
            ),
            ("waiting", "Pending and parked requests over the time", lambda a: pictures.draw_waiting(a, course)),
            ("errors", "Errors over the time of the crawl", lambda a: pictures.draw_errors(a, course)),
        ]
    found = inspect(path)
    if found.layers:
        curves = curves_of_job(found)
        drawings += [
            ("fill", "How full each layer of the filter is", lambda a: pictures.draw_fill(a, curves)),
            ("rate", "The chance that a new URL is taken for seen", lambda a: pictures.draw_rate(a, curves)),
            ("memory", "Memory against URLs", lambda a: pictures.draw_memory(a, curves)),
        ]
    return [(what, pictures.svg(name, draw)) for name, what, draw in drawings]
