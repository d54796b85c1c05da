"""One feed of a crawl: Scrapy's exporter writes the items of done pages into a buffer that the next commit notes.

An exporter keeps its own state: whether it has written a header, or a sum for the end of the file. A run that resumes a
job gets an exporter in the same state. The new exporter writes its beginning and the first item of the file into a
buffer that is thrown away, and takes over the attributes that had changed.
"""

from __future__ import annotations

import io
import logging
import pickle
from contextlib import suppress
from copy import copy, deepcopy
from lzma import FORMAT_XZ
from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage
from scrapy.extensions.postprocessing import Bz2Plugin, GzipPlugin, LZMAPlugin, PostProcessingManager
from scrapy.utils.misc import load_object

from scrapy_bloom.frontier.order import PICKLE_PROTOCOL
from scrapy_bloom.job.feedfile import FileFeedStorage
from scrapy_bloom.job.records import FeedState

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.extensions.feedexport import FeedSlot

logger = logging.getLogger(__name__)

LINES = ("jsonlines", "jsonl", "jl", "csv")
"""Formats whose files can be read however many items they have."""


class Feed:
    """A feed that gets the items of pages when these are done.

    *plain* is Scrapy's record of the feed, for the case that Scrapy has to write it. *slot* is such a record of the
    file that is being written, with our storage if the feed is part of the commit.
    """

    def __init__(self, plain: FeedSlot, slot: FeedSlot) -> None:
        self.plain, self.slot = plain, slot
        self._is_enclosed: bool | None = None  # None: the exporter was not tried
        self._first: bytes | None = None  # the first item of the file that its exporter wrote, as a pickle
        self._at_start: dict[str, bytes] = {}  # attributes of an exporter that has begun
        self._state = FeedState(slot.batch_id)

    @property
    def file(self) -> FileFeedStorage | None:
        """The file of the feed; None if it is not part of commits."""
        storage: object = self.slot.storage
        return storage if isinstance(storage, FileFeedStorage) else None

    def problem_with(self, item: Any) -> str | None:
        """Return why the feed cannot be part of commits, seen by a trial with its first *item*; None if it can."""
        if self.file is None or self._is_enclosed is not None:
            return None
        problem, self._is_enclosed = _try_exporter(self.plain, item)
        return problem

    def begin(self, slot: FeedSlot) -> None:
        """Go on with the file of *slot*, the next batch."""
        self.slot, self._first, self._at_start = slot, None, {}

    def write(self, item: Any) -> None:
        """Export *item*. Raise whatever the exporter raises."""
        self._start()
        file, exporter = self.file, self.slot.exporter
        assert exporter is not None  # noqa: S101 - it has begun
        size = len(file.waiting) if file is not None and self._first is None else 0
        exporter.export_item(item)
        self.slot.itemcount += 1
        if file is not None and self._first is None and len(file.waiting) > size:
            try:
                self._first = pickle.dumps(item, PICKLE_PROTOCOL)
            except Exception:
                self._first = b""

    def _start(self) -> None:
        if self.slot.exporter is None:
            self.slot.start_exporting()
            self._at_start = _plain_attributes(self.slot.exporter)

    def state(self) -> FeedState:
        """Return how far the feed has got with its file."""
        slot = self.slot
        if slot.exporter is None:
            self._state = FeedState(slot.batch_id)
        elif (slot.batch_id, slot.itemcount) != (self._state.batch, self._state.items):
            now = _plain_attributes(slot.exporter)
            changed = {name: value for name, value in now.items() if self._at_start.get(name) != value}
            exporter = pickle.dumps((self._first, changed), PICKLE_PROTOCOL)
            self._state = FeedState(slot.batch_id, slot.itemcount, bool(self._is_enclosed), exporter)
        return self._state

    def resume(self, state: FeedState) -> None:
        """Bring the exporter into the *state* in which an earlier run left it."""
        file = self.file
        assert file is not None  # noqa: S101 - only such a feed is resumed
        self._state, self._is_enclosed = state, state.is_enclosed
        self.slot.itemcount = state.items
        self._start()
        self._first, changed = pickle.loads(state.exporter)  # noqa: S301 - of our own job
        if self._first:
            try:
                self.slot.exporter.export_item(pickle.loads(self._first))  # type: ignore[union-attr]  # noqa: S301
            except Exception:  # the class of the item has changed, say
                logger.warning("%s is gone on with, but its first item cannot be read", self.slot.uri, exc_info=True)
        file.waiting.clear()  # the file has it
        for name, value in changed.items():
            setattr(self.slot.exporter, name, pickle.loads(value))  # noqa: S301


def _plain_attributes(exporter: object) -> dict[str, bytes]:
    """Return the attributes of *exporter* that consist of plain values, as pickles by name."""
    attributes = getattr(exporter, "__dict__", {})
    return {name: pickle.dumps(value, PICKLE_PROTOCOL) for name, value in attributes.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return value is None or type(value) in {bool, int, float, str, bytes}


class _Scratch(io.RawIOBase):
    """A storage of Scrapy's whose file counts the bytes that are written to it."""

    size = 0

    def open(self, spider: object) -> _Scratch:  # noqa: ARG002 - Scrapy's arguments
        return self

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


def _try_exporter(plain: FeedSlot, item: Any) -> tuple[str | None, bool | None]:
    """Return why items of the exporter of *plain* cannot be committed, if so; and whether it writes an end.

    None as the second value: it cannot export *item*, so try it with another one.

    Two files are written to nowhere, one without an item and one with a copy of *item*.
    """
    ends = []
    for items in ((), (item,)):
        slot, scratch = copy(plain), _Scratch()
        slot.storage = scratch  # type: ignore[assignment] # it needs no store()
        slot.feed_options = without_postprocessing(plain)
        try:
            slot.start_exporting()
            exporter: Any = slot.exporter
            begun = scratch.size
            for exported_item in items:
                with suppress(Exception):  # it cannot be copied
                    exported_item = deepcopy(exported_item)
                exporter.export_item(exported_item)
            exported = scratch.size
            slot.finish_exporting()
        except Exception as error:
            if isinstance(error, io.UnsupportedOperation) or isinstance(getattr(error, "obj", None), _Scratch):
                return "its exporter does more with its file than to write to it", False
            return None, None
        ends.append(scratch.size - exported)
    if exported == begun and ends[1] > ends[0]:
        return "its exporter writes items only when it ends", False
    return None, any(ends)


def without_postprocessing(slot: FeedSlot) -> dict[str, Any]:
    """Return the options of the feed of *slot* but for those of Scrapy's compression."""
    return {name: value for name, value in slot.feed_options.items() if name != "postprocessing"}


def path_of(slot: FeedSlot) -> str:
    """Return the path of the file of *slot*, as Scrapy opens it."""
    storage: Any = slot.storage
    return str(storage.path)


def problem_of(slot: FeedSlot, path: Path) -> str | None:
    """Return why the feed of *slot*, a file at *path*, cannot be part of commits; None if it can."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        return "it is not a regular file"
    plugins = {load_object(plugin) for plugin in slot.feed_options.get("postprocessing", ())}
    can_be_joined = slot.feed_options.get("lzma_format") in {None, FORMAT_XZ}
    if plugins <= {GzipPlugin, Bz2Plugin, LZMAPlugin} and can_be_joined:  # one file behind the other reads as one
        return None
    return "files compressed in this way cannot be continued"


def survives_kill(slot: FeedSlot) -> bool:
    """Return whether the file of *slot*, a feed of a worker, can be read after a kill up to what was flushed."""
    is_file = isinstance(slot.storage, ScrapyFileFeedStorage)
    return is_file and slot.format in LINES and "postprocessing" not in slot.feed_options


def compressed(data: bytes, options: dict[str, Any]) -> bytes:
    """Return *data* as a whole compressed file, by the plugins that *options* of a feed name."""
    file = io.BytesIO()
    manager = PostProcessingManager(options["postprocessing"], file, options)
    manager.write(data)
    manager.close()
    return file.getvalue()
