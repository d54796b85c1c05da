"""One layer in one file: a self-describing header of 4,096 bytes, then the bits.

Bytes, not policy: creates, maps, checks and syncs a file, and does not know what other layers there are or what is
done about a full disk. ``docs/format.md`` is the reference for the layout, with a worked example.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from scrapy_bloom.old.errors import UnknownFormatError
from scrapy_bloom.old.files.damage import damaged, way_out
from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter.layer import Layer, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scrapy_bloom.old.errors import DamagedError

FORMAT_VERSION = 1
MERGED_FORMAT_VERSION = 2
"""Version of the files of a filter that others were merged into: a reader of version 1 would not look for those."""
HEADER_BYTES = 4096

# Not text, and broken by any transfer that rewrites line ends or strips the eighth bit.
MAGIC = b"\x89BLOOM\r\n"

_CONSTANT = struct.Struct("<8sIIIIIIQQQddddQd16sH")
_ARRAY_BITS_AT = 48
INDEX_AT = 20
MERGED_AT = 28
CHAIN_ID_AT = 104
_KEY_SPACE_MAX = 3800
_CONSTANT_CRC = struct.Struct("<I")
_CONSTANT_CRC_AT = 4060
_STATE = struct.Struct("<QIII8x")
_ONES = b"\xff" * 64
STATE_AT = 4064
_STATE_CRC_AT = 4092
_IN_USE, _CLEAN = 0, 1

_NO_ALLOCATE = {errno.EINVAL, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class Origin:
    """The chain that a layer belongs to, and what made its fingerprints."""

    chain_id: bytes
    """16 random bytes, the same in all layers of a chain."""
    capacity: int
    """n of the chain's first layer, as set when this layer was created."""
    error_rate: float
    """p of the whole chain, likewise."""
    tightening: float
    """r, likewise."""
    growth: float
    """s, likewise."""
    created: float
    """When this layer was created, in seconds since 1970 (UTC)."""
    key_space: Mapping[str, str]
    """What made the fingerprints: fingerprinter, URL rules, version of w3lib."""
    merged: int = 0
    """How many chains of other crawls were merged into this filter; they are in directories beside the file."""


@dataclass(frozen=True)
class Header:
    """Everything that stands in a layer file before its bits."""

    spec: LayerSpec
    origin: Origin
    noted: int | None
    """The count as noted last; None if the note contradicts its checksum, as one half written does."""
    is_clean: bool
    """Whether the file was closed: bits and count are on disk and belong together."""
    is_followed: bool
    """Whether the chain has a newer layer with a file."""
    oldest: int | None
    """Index of the oldest layer, as noted last: those before it were dropped for their age. None as for *noted*."""


class LayerFile:
    """An open layer file, and the :class:`Layer` over its mapping."""

    def __init__(self, path: Path, spec: LayerSpec, origin: Origin) -> None:
        """Map the file at *path*, whose header has been checked."""
        self.path = path
        self.origin = origin
        self.is_clean = False
        self.is_followed = False
        """Whether the chain has a newer layer with a file."""
        self.oldest = 0
        """Index of the chain's oldest layer when the state was written last; the newest layer's note counts."""
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            self._map = mmap.mmap(self._fd, HEADER_BYTES + spec.nbytes, access=mmap.ACCESS_WRITE)
        except BaseException:
            os.close(self._fd)
            raise
        if hasattr(mmap, "MADV_RANDOM"):  # not on Windows
            # With read-ahead, one check of a cold filter reads 350 KB around the two pages it wants.
            self._map.madvise(mmap.MADV_RANDOM)
        self.layer = Layer(spec, memoryview(self._map)[HEADER_BYTES:], created=origin.created)

    def write_state(self, *, clean: bool) -> None:
        """Save the count, whether the file is closed cleanly, and whether another one follows."""
        state = _STATE.pack(self.layer.count, _CLEAN if clean else _IN_USE, self.is_followed, self.oldest)
        self._map[STATE_AT:HEADER_BYTES] = state + _CONSTANT_CRC.pack(crc32(state))
        self.is_clean = clean

    def read_state(self) -> None:
        """Take the count from the header if the file was closed cleanly; otherwise estimate it from the bits."""
        noted, self.is_clean, self.is_followed, oldest = _parse_state(self._map[:HEADER_BYTES])
        self.oldest = oldest or 0
        if self.is_clean and noted is not None:
            self.layer.count = noted
        else:
            self.layer.recount()
            if noted is not None and noted > self.layer.count:
                self._prefer(noted)
        if self.layer.count > self.layer.capacity:
            problem = f"{self.layer.count} fingerprints are noted in a layer made for {self.layer.capacity}"
            raise damaged(self.path, STATE_AT, problem)
        contradiction = self.layer.contradiction()
        if contradiction is not None:
            raise damaged(self.path, HEADER_BYTES, contradiction)
        if not self.is_clean and (ones := _block_of_ones(self.path, self._map)):
            raise ones

    def _prefer(self, noted: int) -> None:
        """Prefer the count *noted* last to the estimate from the bits, unless the bits contradict it.

        For a full layer the noted count is exact, and an estimate may fall short of the capacity. After a power failure
        it may be newer than the bits.
        """
        estimate, self.layer.count = self.layer.count, noted
        if noted > self.layer.capacity or self.layer.contradiction() is not None:
            self.layer.count = estimate

    def fsync(self) -> None:
        """Return once header and bits are on disk. Releases the GIL, so a thread can call it beside the crawl."""
        if sys.platform != "linux":
            # Only Linux promises that fsync() covers pages dirtied through a mapping. mmap.flush() does everywhere, but
            # holds the GIL (187 ms of a 199 ms flush).
            self._map.flush()
        os.fsync(self._fd)

    def write_through(self) -> None:
        """Return once the header is on disk, and not necessarily the bits."""
        self._map.flush(0, HEADER_BYTES)

    @property
    def is_in_place(self) -> bool:
        """Whether :attr:`path` still leads to this file: not if it was deleted, or its directory moved."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """Unmap and close. The layer keeps its count and loses its bits."""
        self.layer.bits = type(self.layer.bits)()
        with suppress(BufferError):  # somebody still holds the bits; the mapping goes with them
            self._map.close()
        os.close(self._fd)


def create(path: Path, spec: LayerSpec, origin: Origin, *, oldest: int = 0) -> LayerFile:
    """Create the file at *path*, whole or not at all, and open it. It notes *oldest*, the chain's oldest layer.

    Writes under a temporary name, allocates the space, syncs and renames. Without the allocation, setting a bit on a
    full disk would kill the process with SIGBUS.

    Raises:
        OSError: No room or no permission. Nothing is left behind.

    """
    header = _header(spec, origin, oldest)
    if HEADER_BYTES + spec.nbytes > shutil.disk_usage(path.parent).free:
        # ext4 takes all that is free before it finds that it is not enough, and every other process on the disk fails.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(header)
            file.flush()
            _allocate(file.fileno(), HEADER_BYTES, spec.nbytes)
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)
    created = LayerFile(path, spec, origin)
    created.oldest = oldest
    return created


def open_existing(path: Path) -> LayerFile:
    """Check that the file at *path* is whole and consistent, and open it.

    Raises:
        DamagedError: Wrong magic, checksum or length, or a fill that the count cannot explain.
        UnknownFormatError: Written by a newer version.

    """
    header = read_header(path)
    opened = LayerFile(path, header.spec, header.origin)
    try:
        opened.read_state()
    except BaseException:
        opened.close()
        raise
    return opened


def read_header(path: Path) -> Header:
    """Read the header of the file at *path* without opening it for writing, and check it against the file's length.

    Raises:
        DamagedError: Wrong magic, checksum or length.
        UnknownFormatError: Written by a newer version.

    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        length = os.fstat(file.fileno()).st_size
    spec, origin = _parse(path, header)
    expected = HEADER_BYTES + spec.nbytes
    if length != expected:
        at = min(length, expected)
        raise damaged(path, at, f"the file has {length} bytes, and its header says {expected}")
    return Header(spec, origin, *_parse_state(header))


def _parse_state(header: bytes) -> tuple[int | None, bool, bool, int | None]:
    """Return the state as the last fields of :class:`Header`; None, False, False, None if it is torn."""
    state = header[STATE_AT:_STATE_CRC_AT]
    count, flag, followed, oldest = _STATE.unpack(state)
    if _CONSTANT_CRC.unpack_from(header, _STATE_CRC_AT)[0] != crc32(state):
        return None, False, False, None
    return count, flag == _CLEAN, bool(followed), oldest


def estimated_count(path: Path, header: Header) -> int:
    """Return about how many fingerprints are in the file at *path*, from a sample of its bits. Writes nothing."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layer = Layer(header.spec, memoryview(data)[HEADER_BYTES:])
        estimate = layer.estimated_count()
        layer.bits = type(layer.bits)()  # lets go of the mapping
        return estimate


def contradiction(path: Path, header: Header) -> DamagedError | None:
    """Return how the bits of the file at *path* contradict its *header*, or None. Reads all bits, and writes nothing.

    Of a file that was not closed, the bits are held to the count that they give themselves, as on opening it.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layer = Layer(header.spec, memoryview(data)[HEADER_BYTES:], header.noted or 0)
        if not header.is_clean:
            layer.recount()
        problem = layer.contradiction_anywhere()
        layer.bits = type(layer.bits)()  # lets go of the mapping
        return _block_of_ones(path, data) if problem is None else damaged(path, HEADER_BYTES, problem)


def _block_of_ones(path: Path, data: mmap.mmap) -> DamagedError | None:
    """Return the damage if *data* has a block of ones, which a recount would take for many fingerprints.

    Half the bits of a full layer are ones, so no fingerprints leave 512 of them in a row.
    """
    at = data.find(_ONES, HEADER_BYTES)
    return None if at < 0 else damaged(path, at, f"{len(_ONES)} bytes of nothing but ones, which no fingerprints leave")


def sync_directory(directory: Path) -> None:
    """Make a rename in *directory* durable. Windows cannot open directories, and does not need to."""
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _header(spec: LayerSpec, origin: Origin, oldest: int) -> bytes:
    key_space = json.dumps(dict(origin.key_space), sort_keys=True).encode()
    if len(key_space) > _KEY_SPACE_MAX:
        raise ValueError(f"the key space takes {len(key_space)} bytes, at most {_KEY_SPACE_MAX} fit")
    constant = _CONSTANT.pack(
        MAGIC,
        MERGED_FORMAT_VERSION if origin.merged else FORMAT_VERSION,
        spec.scheme,
        spec.seed,
        spec.index,
        spec.probes,
        origin.merged,
        spec.capacity,
        spec.size_bits,
        spec.array_bits,
        spec.error_rate,
        origin.error_rate,
        origin.tightening,
        origin.growth,
        origin.capacity,
        origin.created,
        origin.chain_id,
        len(key_space),
    )
    constant = (constant + key_space).ljust(_CONSTANT_CRC_AT, b"\0")
    state = _STATE.pack(0, _IN_USE, 0, oldest)
    return constant + _CONSTANT_CRC.pack(crc32(constant)) + state + _CONSTANT_CRC.pack(crc32(state))


def _parse(path: Path, header: bytes) -> tuple[LayerSpec, Origin]:
    if header[: len(MAGIC)] != MAGIC:
        problem = f"it begins with {header[: len(MAGIC)]!r} where a filter layer has {MAGIC!r}"
        raise damaged(path, 0, problem)
    if len(header) < HEADER_BYTES:
        problem = f"the header of {HEADER_BYTES} bytes ends after {len(header)}"
        raise damaged(path, len(header), problem)
    (
        _,
        version,
        scheme,
        seed,
        index,
        probes,
        merged,
        capacity,
        size_bits,
        array_bits,
        error_rate,
        chain_error_rate,
        tightening,
        growth,
        chain_capacity,
        created,
        chain_id,
        key_space_length,
    ) = _CONSTANT.unpack_from(header)
    # Before the checksum, which another version may keep elsewhere.
    if version not in (FORMAT_VERSION, MERGED_FORMAT_VERSION):
        raise _unknown(path, "format version", version, MERGED_FORMAT_VERSION)
    (noted,) = _CONSTANT_CRC.unpack_from(header, _CONSTANT_CRC_AT)
    found = crc32(header[:_CONSTANT_CRC_AT])
    if noted != found:
        problem = f"the checksum of the header is {found:#010x}, and {noted:#010x} is noted"
        raise damaged(path, _CONSTANT_CRC_AT, problem)
    if scheme != probing.RUNS_SCHEME:
        raise _unknown(path, "probe scheme", scheme, probing.RUNS_SCHEME)
    spec = LayerSpec(index, capacity, error_rate, size_bits, probes, seed, scheme)
    if spec.array_bits != array_bits:
        problem = f"{array_bits} bits are noted for a layer that takes {spec.array_bits}"
        raise damaged(path, _ARRAY_BITS_AT, problem)
    key_space = json.loads(header[_CONSTANT.size : _CONSTANT.size + key_space_length])
    origin = Origin(chain_id, chain_capacity, chain_error_rate, tightening, growth, created, key_space, merged)
    return spec, origin


def _unknown(path: Path, what: str, version: int, known: int) -> UnknownFormatError:
    advice = f"Upgrade scrapy-bloom; if nobody has run a newer one here, the file is damaged. {way_out(path)}"
    return UnknownFormatError(path, what, version, known, advice=advice)


def _allocate(fd: int, offset: int, nbytes: int) -> None:
    """Reserve *nbytes* zero bytes of disk from *offset* on."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, offset, nbytes)
        except OSError as error:
            # Some network and FUSE file systems cannot allocate; write zeros there.
            if error.errno not in _NO_ALLOCATE:
                raise
        else:
            return
    os.lseek(fd, offset, os.SEEK_SET)
    zeros = memoryview(bytes(1 << 20))
    while nbytes:
        nbytes -= os.write(fd, zeros[:nbytes])
