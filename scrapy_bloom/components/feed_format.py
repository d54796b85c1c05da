"""Items as the bytes that Scrapy's exporter makes of them, apart from what stands around the items in the file.

    begin  lead  item  separator  item  separator  item  tail

An exporter writes *begin* when it starts and *tail* when it finishes: the brackets of a JSON array, for example. The
*lead* stands before the first item alone (byte-order mark, CSV header), the *separator* before every other one. All
four are learned by watching the exporter, whatever its class, its options and its encoding.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from copy import copy, deepcopy
from lzma import FORMAT_XZ
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from itemadapter import ItemAdapter
from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage
from scrapy.extensions.postprocessing import Bz2Plugin, GzipPlugin, LZMAPlugin, PostProcessingManager
from scrapy.utils.misc import load_object

from scrapy_bloom.job.feedfile import FileFeedStorage, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy import Spider
    from scrapy.extensions.feedexport import FeedSlot


class UnframedError(Exception):
    """The output of an exporter cannot be taken apart into items; the message says why. Never leaves the package."""


class Frame(NamedTuple):
    """What an exporter writes around items."""

    begin: bytes
    lead: bytes
    separator: bytes
    tail: bytes
    columns: Any = None
    """The fields that the exporter took from the first item, or was given: a list or a mapping to output names."""


class Capture(io.RawIOBase):
    """A storage of Scrapy's whose file keeps in memory what is written.

    Args:
        position: Size in bytes of the file that it stands for: an encoder writes its byte-order mark only at 0. None
            if that file has no position, as under Scrapy's compression.

    """

    def __init__(self, position: int | None) -> None:
        super().__init__()
        self._position, self._data = position, bytearray()

    def open(self, spider: Spider) -> Capture:  # noqa: ARG002 - Scrapy's arguments
        """Return the file."""
        return self

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the file has a position."""
        return self._position is not None

    def tell(self) -> int:
        """Return the position of the file that this one stands for."""
        return (self._position or 0) + len(self._data)

    def write(self, data: Any) -> int:
        """Keep *data*."""
        self._data += data
        return len(data)

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        data = bytes(self._data)
        if self._position is not None:
            self._position += len(data)
        self._data.clear()
        return data


class Serializer:
    """Turns items into bytes, with the exporter of a feed.

    Args:
        slot: The feed; it is copied, and not changed.
        position: Returns the size of the file when the first item comes, as :class:`Capture` takes it.
        columns: Fields to export where the feed names none: the fields of the file.

    """

    def __init__(self, slot: FeedSlot, position: Callable[[], int | None], columns: Any = None) -> None:
        options = {name: value for name, value in slot.feed_options.items() if name != "postprocessing"}
        self._slot = copy(slot)
        self._slot.feed_options = {**options, "fields": options["fields"] or columns}
        self._position = position
        self._exporting: tuple[FeedSlot, Capture] | None = None
        self.frame: Frame | None = None
        """What stands around items; None before the first one."""

    def __call__(self, item: Any) -> bytes:
        """Return *item* as bytes, without what stands around it.

        Raises:
            UnframedError: The first item cannot be told from what stands around it. Nothing was kept of it.
            Exception: Whatever the exporter raises if it cannot export *item*. Other items are not affected.

        """
        if self._exporting is not None and self.frame is not None:
            slot, capture = self._exporting
            try:
                _export(slot, item)
            finally:
                chunk = capture.taken()
            return chunk.removeprefix(self.frame.separator)
        slot, capture = self._start()
        begin = capture.taken()
        try:
            _export(slot, item)
        except Exception as error:
            if isinstance(error, io.UnsupportedOperation) or isinstance(getattr(error, "obj", None), Capture):
                raise UnframedError("its exporter does more with its file than to write to it") from error
            raise
        chunk = capture.taken()
        for frame in self._frames(item):
            if begin == frame.begin and chunk.startswith(frame.lead) and chunk != frame.lead:
                self.frame, self._exporting = frame._replace(columns=_columns_of(slot)), (slot, capture)
                return chunk[len(frame.lead) :]
        raise UnframedError("its exporter does not write items one by one, each in the same way")

    def shell(self) -> tuple[bytes, bytes]:
        """Return what stands before and behind the items of a file without items."""
        slot, capture = self._start()
        begin = capture.taken()
        slot.finish_exporting()
        return begin, capture.taken()

    def _start(self) -> tuple[FeedSlot, Capture]:
        slot, capture = copy(self._slot), Capture(self._position())
        slot.storage = capture  # type: ignore[assignment] # it needs no store()
        slot.start_exporting()
        return slot, capture

    def _frames(self, item: Any) -> Iterator[Frame]:
        """Yield the frames that are seen when two equal items are exported: two blank ones, then two copies of *item*.

        Blank items come first: a serializer of the user's may count items, or return another value at each call.
        """
        for make in (lambda: dict.fromkeys(ItemAdapter(item).field_names(), ""), lambda: deepcopy(item)):
            try:
                frame = self._observe(make())
            except Exception:  # noqa: S112 - no blank items for this exporter, or no copies of this item
                continue
            if frame is not None:
                yield frame

    def _observe(self, item: Any) -> Frame | None:
        slot, capture = self._start()
        begin = capture.taken()
        chunks = []
        for _ in range(2):
            _export(slot, deepcopy(item))
            chunks.append(capture.taken())
        first, second = chunks
        slot.finish_exporting()
        tail = capture.taken()
        if second and first.endswith(second):
            return Frame(begin, first[: -len(second)], b"", tail)
        if first and second.endswith(first):
            return Frame(begin, b"", second[: -len(first)], tail)
        return None


def _columns_of(slot: FeedSlot) -> Any:
    fields = getattr(slot.exporter, "fields_to_export", None)
    return (dict(fields) if isinstance(fields, Mapping) else list(fields)) if fields else None


def _export(slot: FeedSlot, item: Any) -> None:
    assert slot.exporter is not None  # noqa: S101 - it was started
    slot.exporter.export_item(item)


class Feed:
    """A feed whose items wait, as bytes, for their pages to be done.

    Args:
        plain: Scrapy's record of the feed, for the case that Scrapy has to write it.
        slot: Such a record of the file that is being written, with our storage if the feed is part of the commit.
        is_begun: Whether the file has the beginning of the feed.
        columns: The fields that its header names, if it has one.

    """

    def __init__(self, plain: FeedSlot, slot: FeedSlot, *, is_begun: bool = False, columns: Any = None) -> None:
        self.plain, self.slot, self.is_begun, self.columns = plain, slot, is_begun, columns
        self._serializer = Serializer(slot, self._position, columns)
        self._last: Serializer | None = None  # of the batch before, until this one has had an item
        self._lead: bytes | None = None  # of the file, if this run has begun it

    @property
    def name(self) -> str:
        """The feed, as it stands in ``FEEDS``."""
        return str(self.plain.uri_template)

    @property
    def is_committed(self) -> bool:
        """Whether the feed is part of commits."""
        return isinstance(self.slot.storage, FileFeedStorage)

    def _position(self) -> int | None:
        """Return how long the file is that an encoder of items begins with; None if it has no position."""
        storage = self.slot.storage
        if "postprocessing" in self.plain.feed_options:
            return None
        if self.is_begun:  # the bytes may become the first ones of the next batch
            return 0
        if isinstance(storage, FileFeedStorage):
            return storage.size()
        appends = isinstance(storage, ScrapyFileFeedStorage) and storage.write_mode == "ab"
        return size_of(Path(path_of(self.slot))) if appends else 0

    def shell(self) -> tuple[bytes, bytes]:
        """Return what stands before and behind the items of a file without items."""
        return self._serializer.shell()

    def serialized(self, item: Any) -> tuple[Frame, bytes]:
        """Return what stands around items, and *item* as bytes. Raises what :class:`Serializer` does."""
        try:
            data = self._serializer(item)
        except UnframedError:
            if self._last is None:
                raise
            self._serializer = self._last
            data = self._serializer(item)
        self._last = None
        frame = self._serializer.frame
        assert frame is not None  # noqa: S101 - it has had an item
        if frame.begin + frame.tail and "postprocessing" in self.plain.feed_options and self.plain is not self.slot:
            raise UnframedError("it is compressed together with its end")
        return frame, data

    def is_like(self, frame: Frame) -> bool:
        """Return whether items of *frame* belong under the header of the file, as far as this run knows it."""
        return self._lead is None or self._lead == frame.lead

    def write(self, frame: Frame, data: bytes) -> None:
        """Write *data*, one item, to the file."""
        is_of_earlier_run = self._last is None and self._serializer.frame is None
        if is_of_earlier_run and not self.is_begun:
            self._serializer = Serializer(self.slot, self._position, frame.columns)
        self.slot.start_exporting()
        file: Any = self.slot.file
        if self.is_begun:
            file.write(frame.separator + data)
        else:
            file.write(frame.lead + data)
            self.is_begun, self._lead, self.columns = True, frame.lead, frame.columns
        self.slot.itemcount += 1

    def begin_file(self, slot: FeedSlot) -> None:
        """Go on with the file of *slot*, the next batch."""
        self.slot, self.is_begun, self._lead = slot, False, None
        self._last, self._serializer = self._serializer, Serializer(slot, self._position)


def path_of(slot: FeedSlot) -> str:
    """Return the path of the file of *slot*, as Scrapy opens it."""
    storage: Any = slot.storage
    return str(storage.path)


def can_be_joined(options: dict[str, Any]) -> bool:
    """Return whether files that *options* of a feed compress can be put one behind the other, and read as one."""
    plugins = {load_object(plugin) for plugin in options.get("postprocessing", ())}
    return plugins <= {GzipPlugin, Bz2Plugin, LZMAPlugin} and options.get("lzma_format") in {None, FORMAT_XZ}


def compressed(data: bytes, options: dict[str, Any]) -> bytes:
    """Return *data* as a whole compressed file, by the plugins that *options* of a feed name."""
    file = io.BytesIO()
    manager = PostProcessingManager(options["postprocessing"], file, options)
    manager.write(data)
    manager.close()
    return file.getvalue()
