"""Checks whether the database and the filter of a job belong together, and whether they belong to this crawl.

Fingerprints of pending requests that the filter lacks are added to it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.job.database import Database

logger = logging.getLogger(__name__)


def check_consistency(
    database: Database, chain: ScalableBloomFilter, spider: str | None, key_space: Mapping[str, str] | None
) -> None:
    """Refuse a job that would lose pages.

    Args:
        database: The job's.
        chain: The filter beside it.
        spider: Name of the spider that is about to crawl; None if that makes no difference.
        key_space: What makes its fingerprints; None if they are not ours.

    Raises:
        UnusableError: The job is another spider's, has other fingerprints, or database and filter are of different
            moments. Nothing has been changed.

    """
    state, jobdir = database.state, database.path.parent.parent
    if spider is not None and state.spider not in {"", spider}:
        raise UnusableError(
            f"The job in {jobdir}",
            f"belongs to the spider {state.spider!r}, and this is {spider!r}, which would use up its pending requests",
            advice="Nothing was changed. Use a JOBDIR for each spider: -s JOBDIR=... on the command line.",
        )
    if key_space and state.key_space:
        _check_key_space(database, key_space, state.key_space)
    check_same_moment(database, chain.chain_id if len(chain) else "", chain.watermark)


def check_same_moment(database: Database, chain_id: str, watermark: int) -> None:
    """Refuse *database* if it belongs to another filter than *chain_id* ("": empty), or is older than *watermark*."""
    state = database.state
    advice = "Restore all of the directory from one moment (job.sqlite with job.sqlite-wal), or begin anew in another"
    if chain_id and state.filter not in {"", chain_id}:
        raise UnusableError(database.path, "and the layers beside it are of different jobs", advice=f"{advice} JOBDIR.")
    if watermark > state.last_id:
        raise UnusableError(
            database.path,
            f"is older than the filter beside it: it ends at request {state.last_id:,}, and the filter knows "
            f"{watermark:,}. Pages between would count as seen and never be fetched",
            advice=f"{advice} JOBDIR; or go on without these pages, after: scrapy bloom verify --fix "
            f"{database.path.parent.parent}",
        )


def _check_key_space(database: Database, now: Mapping[str, str], was: Mapping[str, str]) -> None:
    differences = [name for name in now if now[name] != was.get(name)]
    listed = "; ".join(f"{name} was {was.get(name)!r}, is now {now[name]!r}" for name in differences)
    if differences == ["w3lib"]:
        logger.warning("%s: another w3lib may write one URL in a thousand otherwise, and fetch it again", listed)
    elif differences:
        raise UnusableError(
            f"The filter in {database.path.parent}",
            f"was filled under other settings: {listed}. Every URL would look new",
            advice="Nothing was changed. Go back to these settings, or begin anew with an empty JOBDIR.",
        )


def replay_redo(database: Database, chain: ScalableBloomFilter) -> bool:
    """Set the bits of commits that the filter may not have; return whether the filter is older than these, too."""
    redo = database.redo()
    lacks = chain.watermark < (redo[0][0] if redo else database.state.last_id)
    for _, fingerprints in redo:
        for fingerprint in fingerprints:
            # It may have been taken back before or after that commit. If before, its page is fetched once more.
            if not chain.is_forgotten(fingerprint):
                chain.add(fingerprint)
    if not lacks:
        chain.watermark = database.state.last_id
    return lacks


def show_pending(
    database: Database, chain: ScalableBloomFilter, fingerprint_of: Callable[[bytes], bytes | None]
) -> int:
    """Add the fingerprints of all pending requests to the filter, and return how many were new to it.

    *fingerprint_of* returns the fingerprint of a stored request, or None: unfiltered requests were never recorded, so a
    link to the same page is new.
    """
    added = 0
    for _, _, body in database.requests():
        with suppress(Exception):  # an unreadable request, or one without a fingerprint, stays pending
            fingerprint = fingerprint_of(body or b"")
            added += fingerprint is not None and chain.add(fingerprint)
    chain.watermark = database.state.last_id
    return added
