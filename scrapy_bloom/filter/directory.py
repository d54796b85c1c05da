"""The layers of a chain as files of one directory: :func:`open_filter`.

Decides when a file is created, when it is synced, and what happens on a full disk.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import DamagedError, UnusableError, counted
from scrapy_bloom.filter import layerfile, plan
from scrapy_bloom.filter.chain import LayerStore, ScalableBloomFilter
from scrapy_bloom.filter.forgotten import ForgottenFile
from scrapy_bloom.filter.layerfile import LayerFile, Origin, damaged
from scrapy_bloom.filter.lock import DirectoryLock

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scrapy_bloom.filter.layer import Layer, LayerSpec
    from scrapy_bloom.filter.layerfile import Header

logger = logging.getLogger(__name__)

SYNC_INTERVAL = 30.0
"""Seconds between writing dirty pages to disk; the kernel would do so by itself after about as many."""

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

    The operating system keeps a set bit even if the process dies, so ``kill -9`` forgets nothing. A power failure may
    forget what was added since the last sync; a thread syncs every 30 seconds.

    Args:
        directory: Where the layers are; created if missing. One process at a time.
        capacity: Fingerprints that the first layer is sized for, at least 1.
        error_rate: Bound on the false-positive probability of the whole chain, from 1e-10 to 0.5. An existing filter
            keeps the design of its layers; both numbers apply to the layers it will grow.
        max_age: Seconds after which a fingerprint is forgotten; None: never. See :class:`ScalableBloomFilter`. It may
            change from one opening to the next, and counts for the layers that are there, too.
        clock: Returns the time in seconds since 1970.

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
        store.abandon()
        raise UnusableError(
            f"The filter in {directory}",
            f"cannot be opened: {error}",
            advice="Check the owner, the permissions and the disk of what is named.",
        ) from error
    except BaseException:
        store.abandon()
        raise
    store.start_syncing(SYNC_INTERVAL)
    return chain


class DirectoryStore(LayerStore):
    """Keeps each layer in ``layer-NNN.bloom`` of one directory, and holds the directory's lock."""

    def __init__(self, directory: Path, error_rate: float) -> None:
        """Lock *directory*; new layers note *error_rate* as that of the chain. Raises as :class:`DirectoryLock`."""
        self.directory = directory
        self.chain_id = secrets.token_hex(16)
        self._error_rate = error_rate
        self._watermark = 0
        self._files: list[LayerFile] = []
        self._waiting: list[Layer] = []
        """Layers in memory, because the disk was full."""
        self._dropped: list[LayerFile] = []
        """Files that are too old, and still to be deleted."""
        self._oldest = 0
        """Index of the oldest layer that is not too old."""
        self._forgotten: ForgottenFile | None = None
        self._syncing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = DirectoryLock(directory)

    @property
    def watermark(self) -> int:
        """The number, kept in the header of the newest file."""
        return self._watermark

    @watermark.setter
    def watermark(self, number: int) -> None:
        self._files[-1].write_watermark(number)
        self._watermark = number

    def load(self) -> list[Layer]:
        """Open the layers, oldest first."""
        for leftover in self.directory.glob("layer-*.bloom.tmp"):  # creations cut short; they never held anything
            leftover.unlink()
        headers = {path: layerfile.read_header(path) for path in layer_paths(self.directory)}
        for error in contradictions(headers):
            raise error
        for path in headers:
            self._files.append(layerfile.open_existing(path))
        if not self._files:
            return []
        self._leave_dropped()
        newest = self._files[-1]
        self.chain_id = newest.origin.chain_id
        self._watermark = headers[newest.path].watermark
        self.was_unclean = not all(file.state.is_clean for file in self._files)
        if self.was_unclean:
            count = sum(file.layer.count for file in self._files)
            logger.warning(
                "The filter in %s was not closed by its last crawl. It remembers about %s; if the machine went down "
                "too, those of the last moments may be fetched again.",
                self.directory,
                counted(count, "URL"),
            )
        looser = max(file.origin.error_rate for file in self._files)
        if looser > self._error_rate:
            logger.warning(
                "The filter in %s was begun with an error rate of %g. Its %s that; the rate of %g that is set now "
                "applies to the layers to come.",
                self.directory,
                looser,
                counted(len(self._files), "layer keeps", "layers keep"),
                self._error_rate,
            )
        for file in self._files[:-1]:
            if not file.state.is_followed:  # the process was killed before it noted that
                file.write_state(clean=file.state.is_clean, followed=True)
        # On disk before the first bit is set: a clean mark over changed bits would look like damage.
        newest.write_state()
        newest.fsync()
        return [file.layer for file in self._files]

    def _leave_dropped(self) -> None:
        """Delete the files before the oldest layer, which a process was killed before it could delete."""
        newest = self._files[-1]
        self._oldest = min(newest.state.oldest, newest.layer.spec.index)
        self._dropped = [file for file in self._files if file.layer.spec.index < self._oldest]
        self._files = self._files[len(self._dropped) :]
        self._delete_dropped()

    def load_forgotten(self) -> set[bytes]:
        """Return the fingerprints noted as forgotten."""
        self._forgotten = ForgottenFile(self.directory / FORGOTTEN_NAME)
        return self._forgotten.fingerprints

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Create the file of the next layer. On a full disk, keep the layer in memory for now."""
        try:
            self._write_waiting_layers()
            return self._create_file(spec, created).layer
        except OSError as error:
            if not self._files:
                free = shutil.disk_usage(self.directory).free
                raise UnusableError(
                    f"The filter in {self.directory}",
                    f"cannot be begun: {error.strerror}",
                    advice=f"It needs {spec.nbytes:,} bytes there, and {free:,} are free. Make room, or lower the "
                    "capacity, the URLs that its first layer is made for: it grows by itself.",
                ) from error
            logger.error(  # noqa: TRY400 - the reason is in the message, a traceback would bury what to do
                "No room for layer %d of the filter in %s (%s): it lives in memory until there is. Free %s bytes. "
                "If the process is killed before that, the URLs of this layer will be fetched again.",
                spec.index,
                self.directory,
                error.strerror,
                f"{spec.nbytes:,}",
            )
        layer = super().create(spec, created)
        self._waiting.append(layer)
        return layer

    def drop(self, before: int) -> None:
        """Delete the files of layers before index *before*. What a kill leaves of them, the next process deletes."""
        newest = self._files[-1]
        # The newest file stays, whatever its age: while layers wait for room, it has the note and the watermark.
        self._oldest = min(before, newest.layer.spec.index)
        newest.write_state(oldest=self._oldest)
        newest.write_through()  # or a file that is gone after a power failure would look lost
        self._dropped += [file for file in self._files if file.layer.spec.index < self._oldest]
        self._files = [file for file in self._files if file.layer.spec.index >= self._oldest]
        self._waiting = [layer for layer in self._waiting if layer.spec.index >= before]
        self._delete_dropped()

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Append to the file of forgotten fingerprints. On a full disk, log what that means and go on."""
        if self._forgotten is None:
            raise ValueError(f"the filter in {self.directory} is closed")
        try:
            self._forgotten.note(fingerprint, forgotten=forgotten)
        except OSError as error:
            logger.error(  # noqa: TRY400 - as above
                "%s could not be written (%s). In this run the change counts; after it, %s",
                self._forgotten.path,
                error.strerror,
                "a page that failed may be taken for seen." if forgotten else "a page may be fetched once more.",
            )

    def checkpoint(self) -> None:
        """Save the newest count, and try again to write the layers that wait in memory."""
        # Only the newest: the others no longer change, and the sync thread may be marking them clean.
        self._files[-1].write_state()
        self._delete_dropped()
        if self._waiting:
            try:
                self._write_waiting_layers()
            except OSError as error:
                logger.debug("Still no room for a layer of the filter in %s: %s", self.directory, error)

    def sync(self) -> None:
        """Write all dirty pages to disk. Safe to call from another thread than the one that adds."""
        with self._syncing:
            # In this order: what is added or set meanwhile may not be on disk.
            watermark = self._watermark
            is_complete = not self._waiting
            *full, newest = self._files
            full = [file for file in full if not file.state.is_clean]
            for file in (*full, newest):
                file.fsync()
            if self._forgotten is not None:
                self._forgotten.fsync()
            for file in full:
                file.write_state(clean=True)
                file.fsync()
            if is_complete:
                self.synced = watermark

    def close(self) -> None:
        """Sync, mark everything clean, and release files and lock."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.checkpoint()
        for layer in self._waiting:
            logger.error(
                "Layer %d of the filter in %s never found room on disk. Its %s will be fetched again when the crawl is "
                "resumed.",
                layer.spec.index,
                self.directory,
                counted(layer.count, "URL"),
            )
        try:
            self.sync()
            self._files[-1].write_state(clean=True)
            self._files[-1].fsync()
            self._delete_dropped()
        except OSError as error:
            logger.error(  # noqa: TRY400 - as above
                "The filter in %s could not be written to disk (%s). It is complete as long as the machine runs; "
                "after a power failure, URLs may be fetched again.",
                self.directory,
                error.strerror,
            )
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release files and lock without writing anything."""
        for file in (*self._files, *self._dropped):
            file.close()
        self._files.clear()
        self._dropped.clear()
        if self._forgotten is not None:
            self._forgotten.close()
        self._lock.release()

    def start_syncing(self, interval: float) -> None:
        """Call :meth:`sync` every *interval* seconds in a thread."""
        self._thread = threading.Thread(
            target=self._sync_repeatedly, args=(interval,), name="scrapy-bloom-sync", daemon=True
        )
        self._thread.start()

    def _sync_repeatedly(self, interval: float) -> None:
        while not self._stop.wait(interval):
            try:
                self.sync()
            except OSError as error:
                logger.error(  # noqa: TRY400 - as above
                    "The filter in %s could not be written to disk (%s); trying again in %g s. Nothing is forgotten as "
                    "long as the machine runs.",
                    self.directory,
                    error.strerror,
                    interval,
                )

    def _create_file(self, spec: LayerSpec, created: float) -> LayerFile:
        origin = Origin(self.chain_id, self._error_rate, created)
        path = self.directory / f"layer-{spec.index:03d}.bloom"
        file = layerfile.create(path, spec, origin, oldest=self._oldest, watermark=self._watermark)
        if self._files:
            # Done here, since from the append below on the sync thread may write the state of this layer.
            self._files[-1].write_state(followed=True)
        self._files.append(file)
        return file

    def _write_waiting_layers(self) -> None:
        """Write the layers in memory to files, oldest first so that there is never a gap. OSError if still full."""
        while self._waiting:
            layer = self._waiting[0]
            file = self._create_file(layer.spec, layer.created)
            file.layer.bits[:] = layer.bits
            layer.bits = file.layer.bits
            file.layer = layer
            file.write_state()
            del self._waiting[0]
            logger.warning("Layer %d of the filter has found room in %s now", layer.spec.index, self.directory)

    def _delete_dropped(self) -> None:
        """Delete the files of dropped layers, unless the sync thread may be using them: then later."""
        if not self._dropped or not self._syncing.acquire(blocking=False):
            return
        try:
            while self._dropped:
                file = self._dropped.pop()
                file.close()
                try:
                    file.path.unlink(missing_ok=True)
                except OSError as error:
                    logger.warning("%s is too old and cannot be deleted: %s", file.path, error.strerror)
        finally:
            self._syncing.release()


def layer_paths(directory: Path) -> list[Path]:
    """Return the layer files in *directory*, oldest first."""
    return sorted((path for path in directory.glob("layer-*.bloom") if _LAYER_NAME.fullmatch(path.name)), key=_index_of)


def contradictions(headers: Mapping[Path, Header]) -> Iterator[DamagedError]:
    """Yield an error for each layer that is missing from *headers*, oldest first, or belongs elsewhere."""
    if not headers:
        return
    paths: Sequence[Path] = list(headers)
    oldest, newest = headers[paths[0]], headers[paths[-1]]
    first = _index_of(paths[0]) if newest.state is None else newest.state.oldest
    for index in range(first, _index_of(paths[-1])):
        if (missing := paths[0].with_name(f"layer-{index:03d}.bloom")) not in headers:
            yield damaged(missing, f"the file is missing, and {paths[-1].name} shows that there was one")
    if newest.state is not None and newest.state.is_followed:
        missing = paths[0].with_name(f"layer-{_index_of(paths[-1]) + 1:03d}.bloom")
        yield damaged(missing, f"the file is missing, and {paths[-1].name} notes that there was one")
    for path, header in headers.items():
        if header.spec.index != _index_of(path):
            yield damaged(path, f"it holds layer {header.spec.index}, not layer {_index_of(path)}")
        if header.origin.chain_id != oldest.origin.chain_id:
            yield damaged(path, f"it belongs to another filter than {paths[0].name}")


def _index_of(path: Path) -> int:
    return int(path.name.removeprefix("layer-").removesuffix(".bloom"))
