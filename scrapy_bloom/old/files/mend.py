"""Repairs what can be repaired in the directory of a filter so that pages are fetched again, never lost: :func:`mend`.

Puts damaged files aside and deletes only what nothing was ever in. Does not know whether anybody uses the directory.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import BloomError
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.directory import open_filter
from scrapy_bloom.old.files.job_lock import hold_filter

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_bloom.old.files.layerfile import Header

ASIDE_SUFFIX = ".damaged"


def mend(directory: Path, *, may_close: bool = True) -> list[str]:
    """Repair the filter in *directory* as far as that costs fetches only, and return what was done, in sentences.

    A layer that is damaged or missing is replaced by an empty one, and its pages are fetched again. A filter of which
    no layer is sound is left as it is, and so are the filters that were merged into it, and a damaged list of what was
    taken back: without it those pages would count as seen.

    With *may_close*, a filter that its last crawl has not closed is closed.

    Raises:
        OSError: No room, or no permission.
        InUseError: Another process has it open.

    """
    with hold_filter(directory):
        done = _delete_unfinished(directory) + _mend_layers(directory)
    if may_close and any(not header.is_clean for header in _sound(directory).values()):
        done += _close(directory)
    return done


def _delete_unfinished(directory: Path) -> list[str]:
    leftovers = layout.unfinished(directory)
    for leftover in leftovers:
        leftover.unlink()
    return [f"Deleted {leftover}, a layer that was never finished." for leftover in leftovers]


def _sound(directory: Path) -> dict[int, Header]:
    """Return the headers of the layers that can be used, by their number."""
    sound: dict[int, Header] = {}
    for path in layout.layer_paths(directory):
        with suppress(BloomError, ValueError):
            header = layerfile.read_header(path)
            overfull = header.is_clean and (header.noted or 0) > header.spec.capacity
            if (
                header.spec.index == layout.index_of(path)
                and not overfull
                and not layerfile.contradiction(path, header)
            ):
                sound[header.spec.index] = header
    if sound:  # of the chain that most of them belong to, the others are strangers
        ids = [header.origin.chain_id for header in sound.values()]
        chain = max(ids, key=ids.count)
        sound = {index: header for index, header in sound.items() if header.origin.chain_id == chain}
    return sound


def _mend_layers(directory: Path) -> list[str]:
    sound = _sound(directory)
    if not sound:
        return []
    paths = layout.layer_paths(directory)
    first, last = layout.index_of(paths[0]), layout.index_of(paths[-1])
    if last in sound:
        noted = sound[last].oldest
        first = first if noted is None else noted
        last += sound[last].is_followed
    done = []
    for index in range(first, last + 1):
        if index in sound:
            continue
        path = layout.layer_path(directory, index)
        was = "was missing"
        if path.exists():
            aside = path.with_name(path.name + ASIDE_SUFFIX)
            path.replace(aside)
            was = f"is damaged, and kept as {aside.name}"
        like = sound[min(sound, key=lambda other: abs(other - index))]
        _create_empty(path, index, like, oldest=first, is_last=index == last)
        done.append(f"{path} {was}. An empty layer takes its place: its URLs are new again, and fetched once more.")
    return done


def _create_empty(path: Path, index: int, like: Header, *, oldest: int, is_last: bool) -> None:
    """Create layer *index*, of the chain and size of the layer *like*."""
    spec = replace(like.spec, index=index)
    file = layerfile.create(path, spec, like.origin, oldest=oldest)
    try:
        file.is_followed = not is_last
        file.write_state(clean=True)
        file.fsync()
    finally:
        file.close()


def _close(directory: Path) -> list[str]:
    """Open and close the filter, which counts the URLs of its newest layer from the bits."""
    with suppress(BloomError):  # what cannot be opened is still a finding
        with open_filter(directory) as chain:
            urls = len(chain)
        return [f"Closed the filter in {directory}: it holds about {urls:,} URLs, counted from its bits."]
    return []
