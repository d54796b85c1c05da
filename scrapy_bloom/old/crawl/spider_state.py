"""Saves ``spider.state`` from a crawl that does not start. Does not know why it does not.

Scrapy reads the file when it opens the spider and writes it when it closes the spider. If the spider was never opened,
it writes an empty file, which no later run can read (Scrapy 2.13 to 2.19).
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
    """If opening a crawl raises, give the spider the state that an earlier run left, unless it already has one."""
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
    with suppress(Exception):  # missing or empty; unpickling may also raise anything
        spider.state = pickle.loads(Path(jobdir, "spider.state").read_bytes())  # noqa: S301 - as Scrapy does
