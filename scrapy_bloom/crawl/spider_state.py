"""Saves ``spider.state`` from a crawl that does not start.

Scrapy reads it when the spider is opened, and writes it when the spider is closed, even if it was never opened: then it
leaves an empty file, which no later run can read (Scrapy 2.13 to 2.19). Does not know why the crawl does not start.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler


@contextmanager
def spider_state_kept(crawler: Crawler | None) -> Iterator[None]:
    """Give the spider, if it has no state yet when something is raised, what an earlier run left in the job directory.

    For opening, when the spider exists and has not been opened.
    """
    try:
        yield
    except Exception:
        if crawler is not None:
            _read_state(crawler)
        raise


def _read_state(crawler: Crawler) -> None:
    spider: Any = crawler.spider
    jobdir = crawler.settings["JOBDIR"]
    if spider is None or not jobdir or hasattr(spider, "state"):
        return
    spider.state = {}
    with suppress(Exception):  # missing, or empty already; unpickling runs other people's code
        spider.state = pickle.loads(Path(jobdir, "spider.state").read_bytes())  # noqa: S301 - as Scrapy does
