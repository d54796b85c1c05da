"""Finds the job directory of a crawl, and keeps it from a single process if workers crawl in it.

Does not know what else is in it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES

from scrapy_bloom.old.crawl.startup import job_directory
from scrapy_bloom.old.errors import UnusableError

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_OF_ONE_PROCESS = ("requests.bloom", "requests.frontier")

# Set by the shell in Scrapy 2.13 or 2.19, and by no other command.
_SETTINGS_OF_THE_SHELL = ("KEEP_ALIVE", "LOGSTATS_INTERVAL", "REMOTE_CONTROL_ENABLED")


def job_of(crawler: Crawler) -> Path | None:
    """Return ``JOBDIR``, or None without one and under ``scrapy parse``, ``fetch``, ``check`` or ``shell``.

    These commands look at a page or two with a spider of the project. With ``JOBDIR`` in the project's settings, they
    would fetch the pending requests of that spider's crawl and mark their own pages as seen.

    Raises:
        UnusableError: It is no directory, or cannot be created or written to.

    """
    directory = job_directory(crawler.settings)
    if directory is not None and looks_only(crawler):
        logger.info("%s is left alone: this is no crawl, but a command that looks at pages", directory)
        return None
    return directory


def refuse_job_of_workers(jobdir: Path) -> None:
    """Raise UnusableError if ``scrapy bloom crawl`` has begun a crawl in *jobdir*, and no single process has.

    The single process would begin anew, and its files would then keep the workers from going on.
    """
    if not (jobdir / "fleet" / "spider").is_file() or any((jobdir / name).exists() for name in _OF_ONE_PROCESS):
        return
    raise UnusableError(
        jobdir,
        f"holds the crawl of workers, in {jobdir / 'fleet'}, which a single process cannot go on with",
        advice=f"Go on with: scrapy bloom crawl SPIDER -s JOBDIR={jobdir}; or give this crawl another JOBDIR, where it "
        "begins anew.",
    )


def looks_only(crawler: Crawler) -> bool:
    """Return whether *crawler* belongs to a command of Scrapy's that looks at pages instead of crawling.

    ``parse``, ``fetch`` and ``check`` put their own ``start()`` into the spider. The shell opens an engine without
    starting a crawl, under settings of its own.
    """
    if str(getattr(crawler.spidercls.start, "__module__", "")).startswith("scrapy.commands."):
        return True
    command = SETTINGS_PRIORITIES["command"]
    return not crawler.crawling and any(
        crawler.settings.getpriority(name) == command for name in _SETTINGS_OF_THE_SHELL
    )
