"""What happens when a crawl cannot start: the reason is told where one looks, and nothing in the job directory is lost.

Common to the faces. Does not know what may be wrong.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.job import job_dir

from scrapy_bloom.errors import BloomError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from scrapy.crawler import Crawler


@contextmanager
def told_before_the_traceback(logger: logging.Logger, crawler: Crawler | None = None) -> Iterator[None]:
    """Log what is wrong on lines of its own, once: Scrapy buries an error on starting between two tracebacks.

    Where the spider exists already, as on opening, give *crawler*, for the state of the spider to survive.
    """
    try:
        yield
    except BloomError as error:
        if not error.told:
            error.told = True
            logger.critical("The crawl has not started. %s", error)
        if crawler is not None:
            _keep_spider_state(crawler)
        raise


def _keep_spider_state(crawler: Crawler) -> None:
    """Give the spider the state that an earlier run left in the job directory.

    Scrapy reads it when the spider is opened, and writes it when the spider is closed, even if it was never opened:
    then an empty file is left, which no later run can read (Scrapy 2.13 to 2.19).
    """
    spider: Any = crawler.spider
    jobdir = job_dir(crawler.settings)
    if spider is None or not jobdir or hasattr(spider, "state"):
        return
    spider.state = {}
    with suppress(Exception):  # missing, or empty already; unpickling runs other people's code
        spider.state = pickle.loads(Path(jobdir, "spider.state").read_bytes())  # noqa: S301 - as Scrapy does
