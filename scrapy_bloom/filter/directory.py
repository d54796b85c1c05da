"""The layers of a chain as files of one directory: :func:`open_filter`.

Decides when a file is created, when it is synced, and what happens on a full disk.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.filter import layerfile, plan
from scrapy_bloom.filter.chain import LayerStore, ScalableBloomFilter
from scrapy_bloom.filter.forgotten import note_forgotten, read_forgotten
from scrapy_bloom.filter.layerfile import Header, LayerFile, damaged
from scrapy_bloom.filter.lock import lock_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scrapy_bloom.filter.layer import Layer, LayerSpec

logger = logging.getLogger(__name__)

SYNC_INTERVAL = 30.0  # seconds; the kernel would write dirty pages to disk by itself after about as many
FORGOTTEN_NAME = "forgotten"
_LAYER_NAME = re.compile(r"layer-(\d{3,10})\.bloom", re.ASCII)


def open_filter(
    directory: str | os.PathLike[str],
    capacity: int = plan.DEFAULT_CAPACITY,
    error_rate: float = plan.DEFAULT_ERROR_RATE,
    *,
    max_age: float | None = None,
    clock: Callable[[], float] = time.time,
) -> ScalableBloomFilter:
    """Open the filter in *directory*, or begin one there.

    ``kill -9`` forgets nothing. A power failure may forget what was added since the last sync; a thread syncs every 30
    seconds. The arguments are those of :class:`ScalableBloomFilter`. An existing filter keeps the design of its layers,
    and *capacity* and *error_rate* apply to those it will grow; *max_age* counts for all.

    Raises:
        ValueError: capacity, error_rate or max_age is out of its range.
        InUseError: Another process has the filter open.
        DamagedError: A file contradicts itself, or one is missing.
        UnusableError: A file was written by a newer version, or cannot be created, read or written.

    """
    plan.check_parameters(capacity, error_rate, max_age)
    store = DirectoryStore(Path(directory), error_rate)
    try:
        chain = ScalableBloomFilter(capacity, error_rate, max_age=max_age, clock=clock, store=store)
    except OSError as error:
        store.close()
        raise UnusableError(
            f"The filter in {directory}",
            f"cannot be opened: {error}",
            advice="Check the owner, the permissions and the disk of what is named. A new filter begins with "
            f"{plan.first_layer_bytes(capacity, error_rate):,} bytes; with a lower capacity it is smaller, and grows.",
        ) from error
    except BaseException:
        store.close()
        raise
    store.start_syncing(SYNC_INTERVAL)
    return chain


class DirectoryStore(LayerStore):
    """Keeps each layer in ``layer-NNN.bloom`` of one directory, and holds the directory's lock."""

    def __init__(self, directory: Path, error_rate: float) -> None:
        """Lock *directory*; new layers note *error_rate* as that of the chain. Raises as :func:`lock_directory`."""
        self.directory = directory
        self.chain_id = secrets.token_hex(16)
        self._error_rate = error_rate
        self._watermark = 0
        self._files: list[LayerFile] = []
        self._is_full = False  # whether the disk was, so that the newest layers live in memory
        self._forgotten_length = 0
        self._syncing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = ExitStack()
        self._lock.enter_context(lock_directory(directory))

    @property
    def watermark(self) -> int:
        """The number, kept in the header of the newest file."""
        return self._watermark

    @watermark.setter
    def watermark(self, number: int) -> None:
        self._files[-1].write_watermark(number)
        self._watermark = number

    def load(self) -> tuple[list[Layer], set[bytes]]:
        """Open the layers, oldest first, and return what was forgotten of them."""
        for leftover in self.directory.glob("layer-*.bloom.tmp"):  # creations cut short; they never held anything
            leftover.unlink()
        paths = layer_paths(self.directory)
        headers = {index: layerfile.read_header(path) for index, path in paths.items()}
        for error in contradictions(self.directory, headers):
            raise error
        for index, header in headers.items():
            self._files.append(LayerFile(paths[index], header))
            self._files[-1].check_bits()
        forgotten, self._forgotten_length = read_forgotten(self.directory / FORGOTTEN_NAME)
        if not self._files:
            return [], forgotten
        newest = self._files[-1]
        self.chain_id, self._watermark = newest.header.chain_id, newest.header.watermark
        for file in self._files[:-1]:  # the process may have been killed before it noted that
            file.write_state(is_clean=file.header.is_clean, is_followed=True)
        # On disk before the first bit is set: a clean mark over changed bits would look like damage.
        newest.write_state(oldest=self._files[0].header.spec.index)
        newest.fsync()
        return [file.layer for file in self._files], forgotten

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Create the file of the next layer. On a full disk, that layer and all that follow live in memory."""
        if self._is_full:  # a file after one that is missing would look like damage
            return super().create(spec, created)
        oldest = (self._files[0].layer.spec if self._files else spec).index
        header = Header(spec, self._error_rate, created, self.chain_id, self._watermark, oldest=oldest)
        try:
            file = layerfile.create(_layer_path(self.directory, spec.index), header)
        except OSError as error:
            if not self._files:
                raise
            self._is_full = True
            logger.error(  # noqa: TRY400 - the reason is in the message, a traceback would bury what to do
                "No room for layer %d of the filter in %s (%s). New URLs are remembered in memory only from now on, "
                "and the next run fetches them again. Stop the crawl, free %d bytes, and resume it.",
                *(spec.index, self.directory, error.strerror, spec.nbytes),
            )
            return super().create(spec, created)
        if self._files:
            # Done here, since from the append below on the sync thread may write the state of this layer.
            self._files[-1].write_state(is_followed=True)
        self._files.append(file)
        return file.layer

    def drop(self, before: int) -> None:
        """Delete the files of layers before index *before*. What a kill leaves of them, the next process drops."""
        newest = self._files[-1]  # stays, since it has the watermark, also if all younger layers live in memory
        before = min(before, newest.layer.spec.index)
        newest.write_state(oldest=before)
        newest.fsync()  # or a file that is gone after a power failure would look lost
        with self._syncing:
            while self._files[0].header.spec.index < before:
                file = self._files.pop(0)
                file.close()
                with suppress(OSError):  # the next process tries again
                    file.path.unlink()

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Append to the file of forgotten fingerprints. On a full disk, log what that means and go on."""
        path, length = self.directory / FORGOTTEN_NAME, self._forgotten_length
        try:
            self._forgotten_length = note_forgotten(path, fingerprint, forgotten=forgotten, length=length)
        except OSError as error:
            effect = "a page that failed may be taken for seen" if forgotten else "a page may be fetched once more"
            message = "%s could not be written (%s). In this run the change counts; after it, %s."
            logger.error(message, path, error.strerror, effect)  # noqa: TRY400 - as above

    def sync(self, *, is_last: bool = False) -> None:
        """Write all dirty pages to disk, and mark full layers clean, or all if *is_last*. Any thread may call it."""
        with self._syncing:
            watermark = self._watermark  # before the bits: what is set meanwhile may not be on disk
            dirty = [file for file in self._files if not file.header.is_clean]
            for file in dirty:
                file.fsync()
            if self._forgotten_length:
                with (self.directory / FORGOTTEN_NAME).open("rb+") as forgotten:
                    os.fsync(forgotten.fileno())
            for file in dirty if is_last else dirty[:-1]:
                file.write_state(is_clean=True)
                file.fsync()
            if not self._is_full:
                self.synced = watermark

    def close(self) -> None:
        """Let the thread sync a last time, if there is one, and release files and lock."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for file in self._files:
            file.close()
        self._files.clear()
        self._lock.close()

    def start_syncing(self, interval: float) -> None:
        """Sync every *interval* seconds in a thread, and a last time on closing."""
        self._thread = threading.Thread(target=self._sync_until_closed, args=(interval,), daemon=True)
        self._thread.start()

    def _sync_until_closed(self, interval: float) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(interval)
            try:
                self.sync(is_last=is_last)
            except OSError as error:
                logger.error(  # noqa: TRY400 - as above
                    "The filter in %s could not be written to disk (%s). It is complete as long as the machine runs; "
                    "after a power failure, URLs may be fetched again.",
                    *(self.directory, error.strerror),
                )


def layer_paths(directory: Path) -> dict[int, Path]:
    """Return the layer files in *directory* by index, oldest first."""
    names = ((_LAYER_NAME.fullmatch(path.name), path) for path in directory.glob("layer-*.bloom"))
    return dict(sorted((int(name[1]), path) for name, path in names if name))


def contradictions(directory: Path, headers: Mapping[int, Header]) -> Iterator[DamagedError]:
    """Yield an error for each layer that is missing from *headers*, oldest first, or belongs elsewhere."""
    if not headers:
        return
    last = max(headers)
    newest = headers[last]
    for index in range(min(headers) if newest.oldest is None else newest.oldest, last + 1 + newest.is_followed):
        path = _layer_path(directory, index)
        if index not in headers:
            yield damaged(path, f"the file is missing, and that of layer {last} shows that there was one")
        elif headers[index].spec.index != index:
            yield damaged(path, f"it holds layer {headers[index].spec.index}, not layer {index}")
        elif headers[index].chain_id != newest.chain_id:
            yield damaged(path, f"it belongs to another filter than layer {last}")


def _layer_path(directory: Path, index: int) -> Path:
    return directory / f"layer-{index:03d}.bloom"
