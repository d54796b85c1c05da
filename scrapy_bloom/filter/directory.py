"""The layers of a chain as files of one directory: :func:`open_filter`.

Decides when a file is created, when it is synced, and what happens on a full disk.

A bloom filter cannot unset the bits of one fingerprint without touching others. Fingerprints that were taken back are
therefore in a separate file, which the first of them creates. A line is ``-`` (taken back) or ``+`` (accepted again),
the fingerprint in hexadecimal, a space, and the CRC-32 of the text before the space. A kill or a power failure can tear
only the last line.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize, ref
from zlib import crc32

from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.filter import layerfile, plan
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.layer import LayerStore
from scrapy_bloom.filter.layerfile import Header, LayerFile, damaged
from scrapy_bloom.filter.lock import is_locked, lock_directory, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_bloom.filter.layer import Layer, LayerSpec

logger = logging.getLogger(__name__)

SYNC_INTERVAL = 30.0  # seconds; the kernel would write dirty pages to disk by itself after about as many
FORGOTTEN_NAME = "forgotten"

_open_chains: WeakKeyDictionary[ScalableBloomFilter, str] = WeakKeyDictionary()
"""Chains in files that this process has opened, and why a forked child must not use them.

A child shares the mapping, so its additions would look seen to its parent, which never fetches these pages.
"""


def _disown_all() -> None:
    for chain, reason in _open_chains.items():
        chain.disown(reason)
    _open_chains.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_disown_all)


def open_filter(
    directory: str | os.PathLike[str],
    capacity: int = plan.DEFAULT_CAPACITY,
    error_rate: float = plan.DEFAULT_ERROR_RATE,
    *,
    max_age: float | None = None,
    clock: Callable[[], float] = time.time,
) -> ScalableBloomFilter:
    """Open the filter in *directory*, or begin one there.

    Close it, or use it in a ``with`` block; a filter that nothing refers to any more lets go of its files by itself.
    ``kill -9`` forgets nothing. A power failure may forget what was added since the last sync; a thread syncs every 30
    seconds. The arguments are those of :class:`ScalableBloomFilter`. An existing filter keeps the design of its layers,
    and *capacity* and *error_rate* apply to those it will grow; *max_age* counts for all.

    Raises:
        ValueError: capacity, error_rate or max_age is out of its range.
        InUseError: Another process has the filter open, or this one has.
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
            advice="Check its owner, its permissions and its disk. A new filter begins with "
            f"{plan.first_layer_bytes(capacity, error_rate):,} bytes; with a lower capacity it is smaller, and grows.",
        ) from error
    except BaseException:
        store.close()
        raise
    store.start_syncing(SYNC_INTERVAL)
    _open_chains[chain] = f"the filter in {directory} belongs to process {os.getpid()}, which forked this one"
    return chain


class DirectoryStore(LayerStore):
    """Keeps each layer in ``layer-NNN.bloom`` of one directory, and holds the directory's lock."""

    def __init__(self, directory: Path, error_rate: float) -> None:
        """Lock *directory*; new layers note the *error_rate* of the chain. Raises as :func:`lock_directory`."""
        self.directory = directory
        self.chain_id = secrets.token_hex(16)
        self._error_rate = error_rate
        self._files: list[LayerFile] = []
        self._is_full = False  # whether the disk was, so that the newest layers live in memory
        self._forgotten_length = 0
        self._syncing = threading.Lock()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        lock = ExitStack()
        lock.enter_context(lock_directory(directory))
        self._release = finalize(self, _release, self._files, lock)  # also when nothing refers to the store any more
        self._release.atexit = False

    @property
    def watermark(self) -> int:
        """The watermark in the header of the newest file."""
        return self._files[-1].header.watermark if self._files else 0

    @watermark.setter
    def watermark(self, number: int) -> None:
        self._files[-1].write_state(watermark=number)

    def load(self) -> tuple[list[Layer], set[bytes]]:
        """Open the layers, oldest first, and return them with the forgotten fingerprints."""
        for leftover in self.directory.glob("layer-*.bloom.tmp"):  # creations cut short; they never held anything
            leftover.unlink()
        files, problems = open_layers(self.directory)
        self._files += files
        for error in problems:
            raise error
        forgotten, self._forgotten_length = read_forgotten(self.directory / FORGOTTEN_NAME)
        if self._files:
            self.chain_id = self._files[-1].header.chain_id
            # On disk before the first bit is set: a clean mark over changed bits would look like damage.
            self._files[-1].write_state()
            self._files[-1].fsync()
        return [file.layer for file in self._files], forgotten

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Create the file of the next layer. On a full disk, this layer and all later layers live in memory."""
        if self._is_full:  # a file after one that is missing would look like damage
            return super().create(spec, created)
        header = Header(spec, self._error_rate, created, self.chain_id, self.watermark)
        try:
            file = layerfile.create(_layer_path(self.directory, spec.index), header)
        except OSError as error:
            if not self._files:
                raise
            self._is_full = True
            logger.error(  # noqa: TRY400 - the reason is in the message, a traceback would bury what to do
                "Layer %d of the filter in %s cannot be written (%s). New URLs are remembered in memory only from now "
                "on, and the next run fetches them again. Stop the crawl, make room for %d bytes there, and resume it.",
                *(spec.index, self.directory, error.strerror, spec.nbytes),
            )
            return super().create(spec, created)
        self._files.append(file)
        return file.layer

    def drop(self, before: int) -> None:
        """Delete the files of layers before index *before*. After a kill, the next process deletes the rest.

        The newest file stays, even if all younger layers live in memory: its header contains the watermark.
        """
        with self._syncing:
            while len(self._files) > 1 and self._files[0].header.spec.index < before:
                file = self._files.pop(0)
                file.close()
                with suppress(OSError):  # the next process tries again
                    file.path.unlink()

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Append to the file of forgotten fingerprints. On a full disk, log the effect and go on."""
        body = (b"-" if forgotten else b"+") + fingerprint.hex().encode()
        line, path = b"%s %08x\n" % (body, crc32(body)), self.directory / FORGOTTEN_NAME
        try:
            with path.open("r+b" if self._forgotten_length else "wb") as file:
                file.seek(self._forgotten_length)
                file.truncate()  # cuts off a torn line
                file.write(line)
            self._forgotten_length += len(line)
        except OSError as error:
            effect = "a page that failed may be taken for seen" if forgotten else "a page may be fetched once more"
            message = "%s could not be written (%s). In this run the change counts; after it, %s."
            logger.error(message, path, error.strerror, effect)  # noqa: TRY400 - as above

    def sync(self, *, is_last: bool = False) -> None:
        """Write all dirty pages to disk, and mark full layers clean, or all if *is_last*. Any thread may call it."""
        with self._syncing:
            watermark = self.watermark  # before the bits: later bits may not be on disk
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
        """Sync a last time, unless the filter could not be opened, and release files and lock."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
            self.sync_or_log(is_last=True)
        self._release()

    def start_syncing(self, interval: float) -> None:
        """Sync every *interval* seconds in a thread."""
        self._thread = threading.Thread(
            target=_sync_until_closed, args=(ref(self), self._is_closing, interval), daemon=True
        )
        self._thread.start()

    def sync_or_log(self, *, is_last: bool = False) -> None:
        """Sync, and log an ERROR if the disk fails."""
        try:
            self.sync(is_last=is_last)
        except OSError as error:
            logger.error(  # noqa: TRY400 - as above
                "The filter in %s could not be written to disk (%s). It is complete as long as the machine runs; "
                "after a power failure, URLs may be fetched again.",
                *(self.directory, error.strerror),
            )


def _sync_until_closed(store: ref[DirectoryStore], is_closing: threading.Event, interval: float) -> None:
    """Sync *store* every *interval* seconds, until it is closed or nothing else refers to it."""
    while not is_closing.wait(interval) and (referred := store()) is not None:
        referred.sync_or_log()
        del referred


def _release(files: list[LayerFile], lock: ExitStack) -> None:
    """Close *files* and release *lock*. The counts of a filter that was not closed are estimated, as after a kill."""
    for file in files:
        file.close()
    files.clear()
    lock.close()


def open_layers(
    directory: Path, *, read_only: bool = False, thorough: bool = False
) -> tuple[list[LayerFile], list[BloomError]]:
    """Open the layers in *directory*, oldest first, and check their bits; return them, and all that is wrong."""
    files: list[LayerFile] = []
    problems: list[BloomError] = []
    names = (path.stem.removeprefix("layer-") for path in directory.glob("layer-*.bloom"))
    indexes = sorted(int(name) for name in names if name.isdecimal())
    for index in range(indexes[0], indexes[-1] + 1) if indexes else ():
        path = _layer_path(directory, index)
        try:
            files.append(LayerFile(path, layerfile.read_header(path), read_only=read_only))
            files[-1].check_bits(thorough=thorough)
            header = files[-1].header
            if header.spec.index != index:
                problems.append(damaged(path, f"it holds layer {header.spec.index}, not layer {index}"))
            elif header.chain_id != files[0].header.chain_id:
                problems.append(damaged(path, f"it belongs to another filter than {files[0].path.name}"))
        except FileNotFoundError:
            problems.append(damaged(path, f"the file is missing, and there is layer {indexes[-1]}"))
        except OSError as error:
            advice = "Check owner, permissions and disk."
            problems.append(UnusableError(path, f"cannot be read: {error.strerror}", advice=advice))
        except BloomError as error:
            problems.append(error)
    return files, problems


def read_forgotten(path: Path) -> tuple[set[bytes], int]:
    """Return the fingerprints that the file at *path* takes back, and the length of its whole lines in bytes.

    Without a file, these are an empty set and 0.

    Raises:
        DamagedError: A line contradicts its checksum.
        OSError: The file cannot be read.

    """
    fingerprints: set[bytes] = set()
    data = path.read_bytes().rstrip(b"\0") if path.exists() else b""  # a power failure can leave zeros at the end
    at = 0
    for line in data.splitlines(keepends=True):
        body, _, checksum = line.rpartition(b" ")
        if not line.endswith(b"\n"):  # torn
            break
        if checksum != b"%08x\n" % crc32(body):
            raise damaged(path, "the line contradicts its checksum", at)
        change = fingerprints.add if body.startswith(b"-") else fingerprints.discard
        change(bytes.fromhex(body[1:].decode()))
        at += len(line)
    return fingerprints, at


def _layer_path(directory: Path, index: int) -> Path:
    return directory / f"layer-{index:03d}.bloom"


@dataclass(frozen=True)
class FilterDescription:
    """The filter in a directory at one moment."""

    directory: Path
    layers: tuple[Header, ...]  # that can be read, oldest first; without a clean stop, the counts are from the bits
    forgotten: int  # URLs taken back because their requests failed
    is_in_use: bool  # whether a process holds the directory's lock
    owner: str  # the last process that held it, in words, or ""
    damage: tuple[str, ...]  # each problem, in sentences that end with advice

    @property
    def chain_id(self) -> str:
        """Id of the chain, as its newest layer has it; empty if none can be read."""
        return self.layers[-1].chain_id if self.layers else ""

    @property
    def watermark(self) -> int:
        """The watermark of the newest layer; 0 if none can be read."""
        return self.layers[-1].watermark if self.layers else 0

    @property
    def urls(self) -> int:
        """URLs remembered: exact after a clean stop, otherwise estimated from the bits."""
        return max(0, sum(layer.count for layer in self.layers) - self.forgotten)

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays."""
        return sum(layer.spec.nbytes for layer in self.layers)

    @property
    def expected_lost(self) -> float:
        """Pages that the approximation may have cost, from the counts."""
        return plan.expected_false_positives([(layer.spec, layer.count) for layer in self.layers])

    @property
    def is_clean(self) -> bool:
        """Whether the last crawl closed it. Also False while a crawl runs."""
        return not self.damage and all(layer.is_clean for layer in self.layers)


def inspect_directory(directory: str | os.PathLike[str], *, thorough: bool = False) -> FilterDescription:
    """Describe the filter in *directory*, which need not exist and may hold anything.

    If *thorough*, look at all bits; otherwise at a sample, as opening the filter does.
    """
    path = Path(directory)
    files, problems = open_layers(path, read_only=True, thorough=thorough)
    layers = tuple(replace(file.header, count=file.layer.count) for file in files)
    for file in files:
        file.close()
    forgotten: set[bytes] = set()
    try:
        forgotten, _ = read_forgotten(path / FORGOTTEN_NAME)
    except BloomError as error:
        problems.append(error)
    return FilterDescription(path, layers, len(forgotten), is_locked(path), owner(path), tuple(map(str, problems)))


@contextmanager
def reading(directory: str | os.PathLike[str], max_age: float | None = None) -> Iterator[ScalableBloomFilter]:
    """Open the filter in *directory* for questions only, without layers older than *max_age* seconds.

    Another process may be adding to it. Raises as :func:`open_filter` does.
    """
    forgotten, _ = read_forgotten(Path(directory, FORGOTTEN_NAME))
    files, problems = open_layers(Path(directory), read_only=True)
    with ExitStack() as opened:
        for file in files:
            opened.callback(file.close)
        for error in problems:
            raise error
        store = LayerStore([file.layer for file in files], forgotten)
        yield opened.enter_context(ScalableBloomFilter(max_age=max_age, store=store))
