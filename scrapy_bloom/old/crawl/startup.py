"""Logs why a crawl cannot start, on one CRITICAL line, and checks ``JOBDIR``, which everything needs.

Knows how Scrapy reports errors at the start. Does not know what else may be wrong.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import BloomError, UnusableError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

REFUSED = "refused"
"""With this reason a scheduler closes the filter of a crawl that does not start."""


@contextmanager
def log_start_errors(logger: logging.Logger) -> Iterator[None]:
    """Log once, on one CRITICAL line, why the crawl cannot start, and raise the exception again.

    Scrapy alone would bury the reason between two tracebacks.
    """
    try:
        yield
    except Exception as error:
        marked: Any = error
        if not getattr(marked, "is_logged", False):
            marked.is_logged = True
            what = str(error) if isinstance(error, BloomError) else f"{type(error).__name__}: {error}"
            logger.critical("The crawl has not started. %s", what)
        raise


def job_directory(settings: BaseSettings) -> Path | None:
    """Create the directory that ``JOBDIR`` names and return it; None without ``JOBDIR``.

    Raises:
        UnusableError: It is no directory, or cannot be created or written to.

    """
    name = settings["JOBDIR"]
    if not name:
        return None
    path = Path(name)
    problem = ""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        problem = "is a file, not a directory"
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
    else:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problem = "cannot be written to"
    if problem:
        advice = "Set JOBDIR to a directory that this user may create or write to, one for each spider."
        raise UnusableError(f"JOBDIR={name}", problem, advice=advice)
    return path
