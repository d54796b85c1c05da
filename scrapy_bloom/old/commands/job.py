"""Finds the job that a person names. Knows names of files, not what is in them."""

from __future__ import annotations

from pathlib import Path

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.files.layout import FILTER_NAME, layer_paths
from scrapy_bloom.old.files.workers_job import refuse_workers_job
from scrapy_bloom.old.loops.parked import guard_file


def job_directory(directory: str) -> Path:
    """Return the job directory that *directory* names: itself, or its parent if it is the filter's directory.

    Raises:
        UnusableError: There is no job, or one of several workers.

    """
    path = local(directory)
    for jobdir in (path, path.parent) if path.name == FILTER_NAME else (path,):
        if is_filter(jobdir / FILTER_NAME) or (jobdir / FRONTIER_NAME).exists() or guard_file(jobdir).exists():
            return jobdir
    refuse_workers_job(path)
    raise UnusableError(directory, "holds no job of scrapy-bloom's", advice="Give the JOBDIR of a crawl.")


def filter_directory(directory: str) -> Path:
    """Return where the filter of *directory* is, which is a job directory or the filter's own.

    Raises:
        UnusableError: There is none, or the job is one of several workers.

    """
    path = local(directory)
    for found in (path / FILTER_NAME, path):
        if is_filter(found):
            return found
    refuse_workers_job(path)
    advice = f"Give a JOBDIR, or the directory {FILTER_NAME} in one."
    raise UnusableError(directory, "holds no filter of scrapy-bloom's", advice=advice)


def filter_place(directory: str) -> Path:
    """Return where the filter of *directory* is, or would be if the job there has none.

    Raises:
        UnusableError: There is neither a filter nor a job.

    """
    path = local(directory)
    return path if is_filter(path) else job_directory(directory) / FILTER_NAME


def is_filter(path: Path) -> bool:
    """Return whether the layers of a filter are in the directory *path* itself."""
    return bool(layer_paths(path))


def local(directory: str) -> Path:
    """Return *directory* as a path.

    Raises:
        UnusableError: It is an address.

    """
    if "://" in directory:
        advice = "Give the JOBDIR of a crawl. Of a fleet's server, `info redis://...` and `requeue redis://...` tell."
        raise UnusableError(directory.partition("@")[2] or directory, "is not a job directory", advice=advice)
    return Path(directory)
