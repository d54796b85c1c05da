"""The feed files of a job, which are cut to their length at the last commit after a kill."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import counted
from scrapy_bloom.job.records import Batch, FeedLength

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.job.database import Database

logger = logging.getLogger(__name__)


def cut_feeds(database: Database) -> None:
    """Cut the feed files of a job to their lengths at the last commit; a finished job forgets them."""
    state, feeds = database.state, database.feeds()
    over = [feed._replace(is_finished=True) for feed in feeds] if state.is_finished else _cut(feeds)
    if over:
        database.write(Batch(feeds=over, state=state))


def feed_begun(database: Database, template: str, path: str) -> FeedLength | None:
    """Return the file, if possible *path*, of the feed *template* that an unfinished job was writing."""
    begun = [feed for feed in database.feeds() if feed.template == template]
    return max(begun, key=lambda feed: feed.path == path, default=None)


def _cut(feeds: Sequence[FeedLength]) -> list[FeedLength]:
    """Cut the files of *feeds* to their lengths at the last commit: what comes after is of pages that were not done.

    Return those that nobody goes on with, begun since that commit: others of their feed are not finished. Where nothing
    is left of such a file, it is deleted.
    """
    over = []
    for feed in feeds:
        path = Path(feed.path)
        try:
            length = path.stat().st_size
            if length > feed.length:
                os.truncate(path, feed.length)
        except OSError:
            length = 0
        if length < feed.length:
            logger.warning(
                "%s has %s fewer than this job has written to it; their items are not written again",
                feed.path,
                counted(feed.length - length, "byte"),
            )
        if feed.batch > min(other.batch for other in feeds if other.template == feed.template):
            over.append(feed._replace(is_finished=True))
            if not feed.length and path.is_file():
                path.unlink()
    return over
