"""Checks that a frontier and a filter belong together, and which pending requests the filter may not know.

If the filter has fingerprints whose requests the frontier lacks, their pages would be lost without a word; such a
frontier is refused. The other way round only costs fetches. Compares what both have noted, and knows nothing else of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import UnusableError

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_bloom.old.files.frontier_mark import Noted
    from scrapy_bloom.old.frontier.database import State

ALL = -(2**63)


@dataclass(frozen=True)
class Agreement:
    """How to go on."""

    filter_id: str
    last_id: int
    """The next request gets a larger id than this."""
    show_after: int | None
    """The filter may not know requests with larger ids; None if it knows all."""
    warning: str = ""
    """A line for the log, or nothing."""


def agree(state: State, noted: Noted | None, path: Path, *, accept_lost: bool) -> Agreement:
    """Compare the *state* of the frontier at *path* with what its filter has *noted*; None for one that notes nothing.

    Args:
        state: What the frontier says of itself.
        noted: What the filter says of the frontier.
        path: The frontier, for messages.
        accept_lost: If requests are missing, warn and go on (``BLOOM_ACCEPT_LOST_REQUESTS``).

    Raises:
        UnusableError: Requests are missing.

    """
    if noted is None:
        return Agreement("", state.last_id, None if state.clean else ALL)
    is_other = state.filter_id not in {"", noted.filter_id}
    if is_other and not noted.is_empty:
        found = (
            "was used with another filter than the one in requests.bloom beside it, which may take pages "
            "for seen whose requests are not here"
        )
    elif noted.is_lost and state.filter_id and state.last_id and not noted.is_empty:
        found = (
            "may be older than its filter, and lack requests whose pages count as seen: the note that tells, "
            "requests.bloom/frontier, was missing or damaged"
        )
    elif noted.last_id > state.last_id:
        found = (
            f"is older than its filter: it has got to request {state.last_id}, and the filter knows them up to "
            f"{noted.last_id}. Up to {noted.last_id - state.last_id} pages would count as seen whose requests are "
            "missing"
        )
    else:
        found = ""
    if found and not accept_lost:
        raise UnusableError(path, found, advice=_advice(path))
    last_id = max(state.last_id, noted.last_id)
    if found:
        warning = f"{path} {found}. As BLOOM_ACCEPT_LOST_REQUESTS says, the crawl goes on without them."
        return Agreement(noted.filter_id, last_id, ALL, warning)
    if is_other or (not state.filter_id and noted.is_empty and state.last_id):
        warning = f"The filter of {path} is gone, and begins anew: pages that were fetched before may be fetched again."
        return Agreement(noted.filter_id, last_id, ALL, warning)
    if noted.known >= state.last_id:
        return Agreement(noted.filter_id, last_id, None)
    warning = ""
    if state.clean and state.filter_id and noted.last_id < state.last_id:
        warning = (
            f"The filter is older than {path}: it knows requests up to {noted.last_id} of {state.last_id}. Pages that "
            "were fetched since may be fetched again."
        )
    return Agreement(noted.filter_id, last_id, noted.known or ALL, warning)


def _advice(path: Path) -> str:
    return (
        f"Was {path.name}-wal left behind in a copy, or {path.name} alone restored or deleted? Restore {path.name}, "
        f"{path.name}-wal (if the backup has it; if not, delete it) and requests.bloom, all of the same moment; or "
        "begin with an empty JOBDIR; or go on without those pages by BLOOM_ACCEPT_LOST_REQUESTS = True."
    )
