"""Recognises the job directory of ``scrapy bloom crawl``, whose queue and filter are on a server, and says so.

Does not know what else such a directory holds: ``commands/crawl_directory.py`` does.
"""

from __future__ import annotations

from pathlib import Path

from scrapy_bloom.old.errors import UnusableError

FLEET_NAME = "fleet"
"""The directory in a job directory that belongs to ``scrapy bloom crawl``."""
SPIDER_NAME = "spider"
"""The file in it with the name of the spider."""


def refuse_workers_job(directory: str | Path) -> None:
    """Raise if *directory* is the job directory of several workers.

    Raises:
        UnusableError: It is.

    """
    try:
        spider = (Path(directory) / FLEET_NAME / SPIDER_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return
    raise UnusableError(
        directory,
        f"holds a crawl of several workers (spider {spider}), whose pending requests and filter are on a Redis server",
        advice=f"`scrapy bloom crawl {spider} -s JOBDIR={directory}` goes on with it. To look into such a crawl, begin "
        "it with BLOOM_REDIS_URL set to a server of your own, and run `scrapy bloom info redis://HOST`: the server "
        "that the command starts lets only its workers in.",
    )
