"""The honest record of a crawl: one line per page in a text file, on disk before its links are followed.

It lives in the job directory and outlasts ``kill -9``, so it can say what all runs of a job have crawled together,
however each of them ended. It knows nothing of the duplicate filter, and so can be used to check on it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from scrapy.utils.job import job_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler

FILE_NAME = "pages-crawled.txt"


@dataclass(frozen=True)
class Totals:
    """What all runs of a job did together."""

    runs: int
    pages: int


class PageRecord:
    """Pages crawled by this run and by earlier runs of the same job; without a job directory, by this run alone."""

    def __init__(self, directory: str | None, crawl: str):
        """Find the record in *directory*; *crawl* says what is crawled, on one line.

        Raises SystemExit if *directory* holds the record of something else: its frontier and filter would not fit.
        """
        self.pages = 0
        self.links = 0
        self._crawl = crawl
        self._path = Path(directory, FILE_NAME) if directory else None
        self._file: TextIO | None = None
        if self._path and self._path.exists():
            for kind, text in self._lines():
                if kind == "run" and text != crawl:
                    raise SystemExit(f"{directory} holds the crawl of {text!r}, not of {crawl!r}: use another JOBDIR.")

    @classmethod
    def of(cls, crawler: Crawler, crawl: str) -> PageRecord:
        """Return the record in the job directory of *crawler*."""
        return cls(job_dir(crawler.settings), crawl)

    def begin_run(self) -> None:
        """Note that a run has begun. Call this when the spider opens: by then the job directory is known to be free."""
        if self._path is None:
            self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by close()
        else:
            torn = _ends_within_a_line(self._path)
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            if torn:
                self._file.write("\n")
        self._file.write(f"run\t{self._crawl}\n")

    def add(self, page: str, links: int) -> None:
        """Note that *page* was crawled and that *links* links were found on it."""
        self.pages += 1
        self.links += links
        self._file.write(f"page\t{page}\n")  # line buffered: the kernel has it when this returns

    def totals(self) -> Totals:
        """Return the sums over all runs of this job, this one included."""
        runs = pages = 0
        for kind, _ in self._lines():
            runs += kind == "run"
            pages += kind == "page"
        return Totals(runs, pages)

    def crawled(self) -> set[str]:
        """Return the different pages that all runs of this job have crawled."""
        return {text for kind, text in self._lines() if kind == "page"}

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _lines(self) -> Iterator[tuple[str, str]]:
        if self._path is None:
            self._file.seek(0)
            yield from (_split(line) for line in self._file)
            return
        with self._path.open(encoding="utf-8") as file:
            yield from (_split(line) for line in file)


def _ends_within_a_line(path: Path) -> bool:
    """Tell whether the last write to *path* was cut short, as a power failure can do."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _split(line: str) -> tuple[str, str]:
    kind, _, text = line.rstrip("\n").partition("\t")
    return kind, text
