"""Keeps crawls out of a job directory while somebody else changes it: :func:`hold_job`.

Takes the locks that a crawl takes and releases them again. Does not know what is changed meanwhile.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from scrapy_bloom.old.errors import InUseError
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.files.layout import FILTER_NAME, LOCK_NAME, OWNER_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hold_job(jobdir: Path) -> Iterator[None]:
    """Hold the locks of the filter and of the frontier in *jobdir*, as far as it has them.

    Raises:
        InUseError: A crawl is running there.
        OSError: A lock cannot be taken for another reason.

    """
    with ExitStack() as stack:
        # The crawl takes them in this order, so two that start at once cannot each get one.
        stack.enter_context(hold_frontier(jobdir))
        if (jobdir / FILTER_NAME).exists():
            stack.enter_context(hold_filter(jobdir / FILTER_NAME))
        yield


@contextmanager
def hold_frontier(jobdir: Path) -> Iterator[None]:
    """Hold the lock of the frontier in *jobdir*, if it has one.

    Raises:
        InUseError: A crawl is running there.
        OSError: The lock cannot be taken for another reason.

    """
    path = jobdir / FRONTIER_NAME
    if not path.exists():
        yield
        return
    with _held(path.with_name(f"{path.name}.lock"), jobdir, jobdir / FILTER_NAME / OWNER_NAME):
        yield


@contextmanager
def hold_filter(directory: Path) -> Iterator[None]:
    """Hold the lock of the filter in *directory*.

    Raises:
        InUseError: Another process has it open.
        OSError: The lock cannot be taken for another reason.

    """
    with _held(directory / LOCK_NAME, directory, directory / OWNER_NAME):
        yield


@contextmanager
def _held(path: Path, what: Path, owner: Path | None) -> Iterator[None]:
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        advice = "Stop the crawl first. Nothing was changed."
        raise InUseError(what, f"is in use by {owner_of(owner)}", advice=advice) from None
    try:
        yield
    finally:
        lock.release()


def owner_of(file: Path | None) -> str:
    """Return who has last opened a filter, in words, as it stands in the *file* beside it."""
    try:
        noted = "" if file is None else file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        noted = ""
    return noted or "another process"
