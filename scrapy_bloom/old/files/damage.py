"""What to say about a file of a filter that is damaged. Does not know how damage is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import DamagedError

if TYPE_CHECKING:
    from pathlib import Path


def damaged(path: Path, offset: int, problem: str) -> DamagedError:
    """Return the error about *path*, a file in the directory of a filter, with the two ways out."""
    return DamagedError(path, problem, offset=offset, advice=way_out(path))


def way_out(path: Path) -> str:
    """Return the advice for any damage to *path*."""
    return f"Restore the file from a backup, or delete the directory {path.parent} to crawl all pages again."
