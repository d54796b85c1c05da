"""The layers of a chain as files of one directory: :func:`open_filter`.

Decides when a file is created, when it is synced, and what happens on a full disk. Does not know what a file looks like
(``layerfile`` does) or when a layer is full (the chain does).
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from scrapy_bloom.old.errors import InUseError, UnusableError
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.damage import damaged
from scrapy_bloom.old.files.forgotten import ForgottenFile
from scrapy_bloom.old.files.merged import load, merged_paths
from scrapy_bloom.old.files.scrapy_seen import read_fingerprints
from scrapy_bloom.old.filter.chain import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    DEFAULT_GROWTH,
    TIGHTENING,
    MemoryStore,
    ScalableBloomFilter,
    check_parameters,
)
from scrapy_bloom.old.filter.key_space import check_key_space

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy_bloom.old.files.frontier_mark import FrontierMark
    from scrapy_bloom.old.filter.layer import Layer, LayerSpec
    from scrapy_bloom.old.filter.merged import MergedChain

logger = logging.getLogger(__name__)

_IMPORT_REPORT_INTERVAL = 1_000_000


def open_filter(
    directory: str | os.PathLike[str],
    capacity: int = DEFAULT_CAPACITY,
    error_rate: float = DEFAULT_ERROR_RATE,
    *,
    growth: float = DEFAULT_GROWTH,
    key_space: Mapping[str, str] | None = None,
    sync_interval: float = 0.0,
    import_from: Path | None = None,
    on_checkpoint: Callable[[], None] | None = None,
    frontier_mark: FrontierMark | None = None,
    max_age: float | None = None,
    clock: Callable[[], float] = time.time,
) -> ScalableBloomFilter:
    """Open the filter in *directory*, or begin one there.

    The operating system keeps a set bit even if the process dies, so ``kill -9`` forgets nothing. A power failure may
    forget what was added since the last sync.

    Args:
        directory: Where the layers are; created if missing. One process at a time.
        capacity: Fingerprints that the first layer is sized for, at least 1.
        error_rate: Bound on the false-positive probability of the whole chain, from 1e-10 to 0.5.
        growth: How many times larger each next layer is, from 2 to 16. An existing filter keeps the design of its
            layers; the three numbers apply to the layers it will grow.
        key_space: What makes the fingerprints, by ingredient. Not the one that the filter was filled under: an error,
            since every fingerprint would look new; only another version of w3lib: a warning. None: do not compare.
        sync_interval: Seconds between writing dirty pages to disk in a thread; 0: only on ``sync()`` and ``close()``.
        import_from: A ``requests.seen`` of Scrapy's own filter, whose fingerprints a new filter begins with.
        on_checkpoint: Passed on to :class:`ScalableBloomFilter`.
        frontier_mark: Opened with the filter, kept in step with its syncs, and closed with it.
        max_age: Seconds after which a fingerprint is forgotten; None: never. See :class:`ScalableBloomFilter`. It may
            change from one opening to the next, and counts for the layers that are there, too.
        clock: Returns the time in seconds since 1970.

    Raises:
        ValueError: capacity, error_rate, growth or max_age is out of its range.
        InUseError: Another process has the filter open.
        DamagedError: A file contradicts itself, or one is missing.
        UnknownFormatError: A file was written by a newer version.
        KeySpaceError: The filter was filled under another key space.
        UnusableError: The directory or a file in it cannot be created, read or written.

    """
    check_parameters(capacity, error_rate, growth, max_age)
    store = JobDirectoryStore(
        Path(directory), capacity, error_rate, growth=growth, key_space=key_space, import_from=import_from
    )
    try:
        chain = ScalableBloomFilter(
            capacity,
            error_rate,
            growth=growth,
            store=store,
            on_checkpoint=on_checkpoint,
            max_age=max_age,
            clock=clock,
        )
        if store.import_from is not None:
            store.finish_import(chain)
        if frontier_mark is not None:
            store.open_mark(frontier_mark, chain)
    except OSError as error:
        store.abandon()
        raise UnusableError(
            f"The filter in {store.directory}",
            f"cannot be opened: {error}",
            advice="Check the owner, the permissions and the disk of what is named.",
        ) from error
    except BaseException:
        store.abandon()
        raise
    store.start_syncing(sync_interval)
    return chain


class JobDirectoryStore:
    """Keeps each layer in ``layer-NNN.bloom`` of one directory, and holds the directory's lock."""

    def __init__(
        self,
        directory: Path,
        capacity: int,
        error_rate: float,
        *,
        growth: float,
        key_space: Mapping[str, str] | None,
        import_from: Path | None,
    ) -> None:
        """Keep the arguments of :func:`open_filter`; touch nothing before :meth:`load`."""
        self.directory = directory
        self._is_new = False
        self.was_unclean = False
        """Whether the last process to use the directory ended without closing the filter."""
        self.import_from = import_from
        """The file still to be imported, or None."""
        self._capacity = capacity
        self._error_rate = error_rate
        self._growth = growth
        self._key_space = key_space
        self._chain_id = secrets.token_bytes(16)
        self._merged = 0
        """How many chains of other crawls are in directories beside the layers."""
        self._files: list[layerfile.LayerFile] = []
        self._waiting: list[Layer] = []
        """Layers in memory, because the disk was full."""
        self._dropped: list[layerfile.LayerFile] = []
        """Files that are too old, and still to be deleted."""
        self._oldest = 0
        """Index of the oldest layer that is not too old."""
        self._forgotten: ForgottenFile | None = None
        self._lock = FileLock(directory / layout.LOCK_NAME, thread_local=False)
        self._mark: FrontierMark | None = None
        self._syncing = threading.Lock()
        self._has_warned_of_loss = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def load(self) -> list[Layer]:
        """Lock the directory and open its layers, oldest first."""
        self._acquire()
        try:
            return self._load()
        except BaseException:
            self.abandon()
            raise

    def _load(self) -> list[Layer]:
        for leftover in layout.unfinished(self.directory):
            leftover.unlink()
        paths = layout.layer_paths(self.directory)
        if paths:
            for gap in layout.gaps(self.directory, paths, oldest=layerfile.read_header(paths[-1]).oldest):
                raise gap
        for path in paths:
            self._files.append(layerfile.open_existing(path))
        if not paths and merged_paths(self.directory):
            raise damaged(layout.layer_path(self.directory, 0), 0, "the file is missing, and filters were merged here")
        self._leave_dropped()
        self._check_chain()
        if self._files and self._files[-1].is_followed:
            raise layout.missing_behind(self._files[-1].path)
        for file in self._files[:-1]:
            if not file.is_followed:  # of a version that had no such mark yet, or of a process killed before it set it
                file.is_followed = True
                file.write_state(clean=file.is_clean)
        self._is_new = not paths
        self._plan_import()
        if self._files:
            newest = self._files[-1]
            self.was_unclean = not all(file.is_clean for file in self._files)
            if self.was_unclean:
                logger.warning(
                    "The filter in %s was not closed by its last crawl. It remembers about %d URLs; if the machine "
                    "went down too, those of the last moments may be fetched again.",
                    self.directory,
                    sum(file.layer.count for file in self._files),
                )
            # On disk before the first bit is set: a clean mark over changed bits would look like damage.
            newest.write_state(clean=False)
            newest.fsync()
        return [file.layer for file in self._files]

    def _leave_dropped(self) -> None:
        """Delete the files before the oldest layer, which a process was killed before it could delete."""
        self._oldest = min(self._files[-1].oldest, self._files[-1].layer.spec.index) if self._files else 0
        self._dropped = [file for file in self._files if file.layer.spec.index < self._oldest]
        self._files = [file for file in self._files if file not in self._dropped]
        self._delete_dropped()

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
                    advice=f"It needs {spec.nbytes:,} bytes there, and {free:,} are free. Make room, or lower "
                    "BLOOM_CAPACITY, the URLs that its first layer is made for: it grows by itself.",
                ) from error
            logger.error(  # noqa: TRY400 - the reason is in the message, a traceback would bury what to do
                "No room for layer %d of the filter in %s (%s): it lives in memory until there is. Free %s bytes. "
                "If the process is killed before that, the URLs of this layer will be fetched again.",
                spec.index,
                self.directory,
                error.strerror,
                f"{spec.nbytes:,}",
            )
        layer = MemoryStore().create(spec, created)
        self._waiting.append(layer)
        return layer

    def drop(self, before: int) -> None:
        """Delete the files of layers before index *before*. What a kill leaves of them, the next process deletes."""
        self._oldest = before
        newest = self._files[-1]
        newest.oldest = min(before, newest.layer.spec.index)
        if newest.layer.spec.index < before:  # what follows waits for room; if it is lost, this one begins again
            newest.layer.bits.setall(False)
            newest.layer.count = 0
        newest.write_state(clean=False)
        newest.write_through()  # or a file that is gone after a power failure would look lost
        # The newest file stays, whatever its age: while layers wait for room, it has the note.
        self._dropped += [file for file in self._files[:-1] if file.layer.spec.index < before]
        self._files = [file for file in self._files if file not in self._dropped]
        self._waiting = [layer for layer in self._waiting if layer.spec.index >= before]
        self._delete_dropped()

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

    def load_forgotten(self) -> set[bytes]:
        """Return the fingerprints noted as forgotten."""
        self._forgotten = ForgottenFile(self.directory / layout.FORGOTTEN_NAME)
        return set(self._forgotten.fingerprints)

    def load_merged(self) -> list[MergedChain]:
        """Return the chains of other crawls that were merged into this filter.

        Raises:
            DamagedError: One is missing, or contradicts itself.
            KeySpaceError: One was filled under another key space.

        """
        try:
            loaded = load(self.directory, self._merged)
            self._check_key_spaces([key_space for _, key_space in loaded])
        except BaseException:
            self.abandon()
            raise
        return [chain for chain, _ in loaded]

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Append to the file of forgotten fingerprints. On a full disk, log what that means and go on."""
        if self._forgotten is None:
            raise ValueError(f"the filter in {self.directory} is closed")
        try:
            if forgotten:
                self._forgotten.add(fingerprint)
            else:
                self._forgotten.discard(fingerprint)
        except OSError as error:
            logger.error(  # noqa: TRY400 - as above
                "%s could not be written (%s). In this run the change counts; after it, %s",
                self._forgotten.path,
                error.strerror,
                "a page that failed may be taken for seen." if forgotten else "a page may be fetched once more.",
            )

    def checkpoint(self) -> None:
        """Save the newest count, and try again to write the layers that wait in memory."""
        if not self._files:
            raise ValueError(f"the filter in {self.directory} is closed")
        # Only the newest: the others no longer change, and the sync thread may be marking them clean.
        self._files[-1].write_state(clean=False)
        self._delete_dropped()
        if self._waiting:
            try:
                self._write_waiting_layers()
            except OSError as error:
                logger.debug("Still no room for a layer of the filter in %s: %s", self.directory, error)

    def sync(self) -> None:
        """Write all dirty pages to disk. Safe to call from another thread than the one that adds."""
        with self._syncing:
            # Read before the bits are synced: what is noted meanwhile may not be on disk.
            contained = 0 if self._mark is None else self._mark.contained
            *full, newest = self._files
            # Pick the full layers before syncing: meanwhile the newest may fill up and get a successor.
            full = [file for file in full if not file.is_clean]
            for file in (*full, newest):
                file.fsync()
            if self._forgotten is not None:
                self._forgotten.fsync()
            for file in full:
                file.write_state(clean=True)
                file.fsync()
            if not newest.is_in_place:
                self._warn_of_loss(newest.path)
            if self._mark is not None and not self._waiting:
                self._mark.note_synced(contained)

    def close(self) -> None:
        """Sync, mark everything clean, and release files and lock."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.checkpoint()
        for layer in self._waiting:
            logger.error(
                "Layer %d of the filter in %s never found room on disk. Its %d URLs will be fetched again when the "
                "crawl is resumed.",
                layer.spec.index,
                self.directory,
                layer.count,
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
        if self._mark is not None:
            self._mark.close()
        self._lock.release()

    def open_mark(self, mark: FrontierMark, chain: ScalableBloomFilter) -> None:
        """Open *mark* for *chain*; from now on it notes what is on disk."""
        mark.open(self._chain_id, is_new=self._is_new or not len(chain))
        self._mark = mark

    def start_syncing(self, interval: float) -> None:
        """Call :meth:`sync` every *interval* seconds in a thread, if *interval* is not 0."""
        if interval > 0:
            self._thread = threading.Thread(
                target=self._sync_repeatedly, args=(interval,), name="scrapy-bloom-sync", daemon=True
            )
            self._thread.start()

    def finish_import(self, chain: ScalableBloomFilter) -> None:
        """Add the fingerprints in :attr:`import_from` to *chain*, durably."""
        if self.import_from is None:
            return
        added = 0
        for found, fingerprint in enumerate(read_fingerprints(self.import_from), start=1):
            added += chain.add(fingerprint)
            if found % _IMPORT_REPORT_INTERVAL == 0:
                logger.info("Importing %s: %d fingerprints so far", self.import_from, found)
        chain.sync()
        if not self._waiting:  # a layer in memory would be lost with the process: import again next time
            self._import_marker.unlink()
            layerfile.sync_directory(self.directory)
        logger.info("Imported %d fingerprints of Scrapy's own filter from %s", added, self.import_from)
        self.import_from = None

    @property
    def _import_marker(self) -> Path:
        return self.directory / layout.IMPORT_MARKER_NAME

    def _plan_import(self) -> None:
        """Keep or drop :attr:`import_from`. A marker file makes an import that was killed start over."""
        if self.import_from is None:
            return
        if not self.import_from.exists():
            if self._import_marker.exists():
                logger.warning(
                    "The import of %s into the filter in %s was cut short, and the file is gone. What was not imported "
                    "will be fetched again.",
                    self.import_from,
                    self.directory,
                )
            self.import_from = None
        elif self._is_new:
            self._import_marker.touch()
            layerfile.sync_directory(self.directory)
        elif not self._import_marker.exists():
            self.import_from = None

    def _warn_of_loss(self, path: Path) -> None:
        if not self._has_warned_of_loss:
            self._has_warned_of_loss = True
            logger.error(
                "%s is not there any more: it was deleted or moved while the filter is in use. The filter goes on in "
                "memory, and what it remembers is lost with the process, unless the directory was only moved. Do not "
                "touch a job directory while its crawl runs.",
                path,
            )

    def _acquire(self) -> None:
        owner_file = self.directory / layout.OWNER_NAME
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            owner_file.write_text(
                f"process {os.getpid()} on {platform.node()}, since {time.ctime()}\n", encoding="utf-8"
            )
        except Timeout:
            try:
                owner = owner_file.read_text(encoding="utf-8").strip()
            except OSError:
                owner = ""
            raise InUseError(
                f"The filter in {self.directory}",
                f"is in use by {owner or 'another process'}",
                advice="Two crawls cannot share a job directory. Stop the other one, or give this one another JOBDIR.",
            ) from None
        except OSError as error:
            self._lock.release()
            is_file = self.directory.is_file()
            raise UnusableError(
                f"The filter's directory {self.directory}",
                f"cannot be used: {'it is a file' if is_file else error.strerror or error}",
                advice="Move it away, or use another directory."
                if is_file
                else "Check its owner, its permissions and the space on its disk.",
            ) from error

    def _check_chain(self) -> None:
        if not self._files:
            return
        self._chain_id = self._files[0].origin.chain_id
        self._merged = self._files[0].origin.merged
        for stranger in layout.strangers([(file.path, file.layer.spec, file.origin) for file in self._files]):
            raise stranger
        self._check_key_space()
        looser = [file.origin.error_rate for file in self._files if file.origin.error_rate > self._error_rate]
        if looser:
            logger.warning(
                "The filter in %s was begun with an error rate of %g. Its %d layers keep it; the rate of %g that is "
                "set now applies to the layers to come.",
                self.directory,
                max(looser),
                len(looser),
                self._error_rate,
            )

    def _check_key_space(self) -> None:
        if self._key_space is None:
            self._key_space = self._files[-1].origin.key_space  # for the layers to come
            return
        self._check_key_spaces([file.origin.key_space for file in self._files])

    def _check_key_spaces(self, stored: Sequence[Mapping[str, str]]) -> None:
        if self._key_space is None:
            return
        where = f"The filter in {self.directory}"
        advice = (
            "Put the setting back as it was, or use another JOBDIR, or delete the directory to crawl all pages again."
        )
        warnings: dict[str, None] = {}  # each once, in the order of the layers
        for each in stored:
            warnings.update(dict.fromkeys(check_key_space(where, each, self._key_space, advice=advice)))
        for warning in warnings:
            logger.warning("%s", warning)

    def _create_file(self, spec: LayerSpec, created: float) -> layerfile.LayerFile:
        origin = layerfile.Origin(
            chain_id=self._chain_id,
            capacity=self._capacity,
            error_rate=self._error_rate,
            tightening=TIGHTENING,
            growth=self._growth,
            created=created,
            key_space=self._key_space or {},
            merged=self._merged,
        )
        path = layout.layer_path(self.directory, spec.index)
        file = layerfile.create(path, spec, origin, oldest=self._oldest)
        if self._files:
            # Done here, since from the append below on the sync thread may write the state of this layer.
            self._files[-1].is_followed = True
            self._files[-1].write_state(clean=False)
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
            file.write_state(clean=False)
            del self._waiting[0]
            logger.warning("Layer %d of the filter has found room in %s now", layer.spec.index, self.directory)

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
