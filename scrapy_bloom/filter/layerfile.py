"""One layer in one file: a self-describing header of 4,096 bytes, then the bits. ``docs/format.md`` has the layout."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter.layer import Layer, LayerSpec

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION = 1
HEADER_BYTES = 4096

# Not text, and broken by any transfer that rewrites line ends or strips the eighth bit.
MAGIC = b"\x89BLOOM\r\n"

_CONSTANT = struct.Struct("<8sIIIII4xQQddd16s")  # written once, padded with zeros, with a checksum behind
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = 4056
_WATERMARK = struct.Struct("<QI")  # with its checksum
_WATERMARK_AT = 4060
_STATE = struct.Struct("<QIIII")  # count, 1 if closed, 1 if followed, index of the oldest layer, checksum
_STATE_AT = 4072

_CANNOT_ALLOCATE = {errno.EINVAL, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class Origin:
    """The chain that a layer belongs to."""

    chain_id: str
    """32 hexadecimal digits, random, the same in all layers of a chain."""
    error_rate: float
    """p of the whole chain, as set when this layer was created."""
    created: float
    """When this layer was created, in seconds since 1970 (UTC)."""


@dataclass(frozen=True)
class State:
    """What changes in a header."""

    count: int = 0
    """Fingerprints in the layer, as noted last."""
    is_clean: bool = False
    """Whether the file was closed: bits and count are on disk and belong together."""
    is_followed: bool = False
    """Whether the chain has a newer layer with a file."""
    oldest: int = 0
    """Index of the chain's oldest layer: those before it were dropped for their age. The newest layer's counts."""

    def pack(self) -> bytes:
        """Return the bytes in the file."""
        packed = _STATE.pack(self.count, self.is_clean, self.is_followed, self.oldest, 0)[: -_CHECKSUM.size]
        return packed + _CHECKSUM.pack(crc32(packed))


@dataclass(frozen=True)
class Header:
    """Everything that stands in a layer file before its bits."""

    spec: LayerSpec
    origin: Origin
    state: State | None
    """None if it contradicts its checksum, as one half written does: the layer then counts as in use."""
    watermark: int
    """A number of the caller's; 0 if it contradicts its checksum."""

    @property
    def is_clean(self) -> bool:
        """Whether the file was closed: bits and count are on disk and belong together."""
        return self.state is not None and self.state.is_clean

    def pack(self) -> bytes:
        """Return the bytes in the file."""
        spec, origin = self.spec, self.origin
        constant = _CONSTANT.pack(
            MAGIC,
            FORMAT_VERSION,
            probing.RUNS_SCHEME,
            spec.seed,
            spec.index,
            spec.probes,
            spec.capacity,
            spec.size_bits,
            spec.error_rate,
            origin.error_rate,
            origin.created,
            bytes.fromhex(origin.chain_id),
        ).ljust(_CHECKSUM_AT, b"\0")
        state = (self.state or State()).pack()
        return constant + _CHECKSUM.pack(crc32(constant)) + _packed_watermark(self.watermark) + state


class LayerFile:
    """An open layer file, and the :class:`Layer` over its mapping."""

    def __init__(self, path: Path, header: Header) -> None:
        """Map the file at *path*, whose *header* has been checked."""
        self.path = path
        self.origin = header.origin
        self.state = header.state or State()
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            self._map = mmap.mmap(self._fd, HEADER_BYTES + header.spec.nbytes, access=mmap.ACCESS_WRITE)
        except BaseException:
            os.close(self._fd)
            raise
        if hasattr(mmap, "MADV_RANDOM"):  # not on Windows
            # With read-ahead, one check of a cold filter reads 350 KB around the two pages it wants.
            self._map.madvise(mmap.MADV_RANDOM)
        self.layer = Layer(header.spec, memoryview(self._map)[HEADER_BYTES:], created=header.origin.created)

    def write_state(self, *, clean: bool = False, followed: bool | None = None, oldest: int | None = None) -> None:
        """Save the count, whether the file is closed cleanly, and what is given."""
        self.state = State(
            self.layer.count,
            clean,
            self.state.is_followed if followed is None else followed,
            self.state.oldest if oldest is None else oldest,
        )
        self._map[_STATE_AT:HEADER_BYTES] = self.state.pack()

    def write_watermark(self, number: int) -> None:
        """Save *number*. The kernel keeps it if the process dies; one half written counts as 0."""
        self._map[_WATERMARK_AT:_STATE_AT] = _packed_watermark(number)

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

    def close(self) -> None:
        """Unmap and close. The layer keeps its count and loses its bits."""
        self.layer.bits = type(self.layer.bits)()
        with suppress(BufferError):  # somebody still holds the bits; the mapping goes with them
            self._map.close()
        os.close(self._fd)


def create(path: Path, spec: LayerSpec, origin: Origin, *, oldest: int = 0, watermark: int = 0) -> LayerFile:
    """Create the file at *path*, whole or not at all, and open it.

    Writes under a temporary name, allocates the space, syncs and renames. Without the allocation, setting a bit on a
    full disk would kill the process with SIGBUS. Raises OSError, and leaves nothing behind, if that fails.
    """
    header = Header(spec, origin, State(oldest=oldest), watermark)
    if HEADER_BYTES + spec.nbytes > shutil.disk_usage(path.parent).free:
        # ext4 takes all that is free before it finds that it is not enough, and every other process on the disk fails.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(header.pack())
            file.flush()
            _allocate(file.fileno(), HEADER_BYTES, spec.nbytes)
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)
    return LayerFile(path, header)


def open_existing(path: Path) -> LayerFile:
    """Check that the file at *path* is whole and consistent, and open it.

    Raises:
        DamagedError: Wrong magic, checksum or length, or bits that the count cannot explain.
        UnusableError: Written by a newer version.

    """
    header = read_header(path)
    file = LayerFile(path, header)
    try:
        check_bits(path, header, file.layer)
    except BaseException:
        file.close()
        raise
    return file


def check_bits(path: Path, header: Header, layer: Layer, *, thorough: bool = False) -> None:
    """Give *layer*, over the bits of the file at *path*, its count, and raise DamagedError if they contradict it.

    The count is that of the header if the file was closed. Otherwise it is estimated from the bits, unless what was
    noted last is more: the bits may have gone on since then. Looks at a sample; if *thorough*, at all bits.
    """
    noted = 0 if header.state is None else header.state.count
    if noted > layer.capacity:
        problem = f"{noted} fingerprints are noted in a layer made for {layer.capacity}"
        raise damaged(path, problem, offset=_STATE_AT)
    estimate = 0 if header.is_clean else layer.estimated_count()
    layer.count = max(noted, estimate)
    found = layer.contradiction(thorough=thorough)
    if found is not None and not header.is_clean and noted > estimate:
        layer.count = estimate  # after a power failure, the note may be newer than the bits
        found = layer.contradiction(thorough=thorough)
    if found is not None:
        raise damaged(path, found, offset=HEADER_BYTES)


def read_header(path: Path) -> Header:
    """Read the header of the file at *path* without opening it for writing, and check it against the file's length.

    Raises:
        DamagedError: Wrong magic, checksum or length.
        UnusableError: Written by a newer version.

    """
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
        length = os.fstat(file.fileno()).st_size
    header = _parse(path, data)
    expected = HEADER_BYTES + header.spec.nbytes
    if length != expected:
        problem = f"the file has {length} bytes, and its header says {expected}"
        raise damaged(path, problem, offset=min(length, expected))
    return header


def damaged(path: Path, problem: str, *, offset: int | None = None) -> DamagedError:
    """Return the error about *path*, a file in the directory of a filter, with the two ways out."""
    return DamagedError(path, problem, offset=offset, advice=_way_out(path))


def sync_directory(directory: Path) -> None:
    """Make a rename in *directory* durable. Windows cannot open directories, and does not need to."""
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _parse(path: Path, header: bytes) -> Header:
    if header[: len(MAGIC)] != MAGIC:
        raise damaged(path, f"it begins with {header[:8]!r} where a filter layer has {MAGIC!r}", offset=0)
    if len(header) < HEADER_BYTES:
        problem = f"the header of {HEADER_BYTES} bytes ends after {len(header)}"
        raise damaged(path, problem, offset=len(header))
    _, version, scheme, seed, index, probes, capacity, size_bits, *rates, created, chain_id = _CONSTANT.unpack_from(
        header
    )
    if version != FORMAT_VERSION:  # before the checksum, which another version may keep elsewhere
        raise _unknown(path, "format version", version, FORMAT_VERSION)
    if _CHECKSUM.unpack_from(header, _CHECKSUM_AT)[0] != crc32(header[:_CHECKSUM_AT]):
        raise damaged(path, "the header contradicts its checksum", offset=_CHECKSUM_AT)
    if scheme != probing.RUNS_SCHEME:
        raise _unknown(path, "probe scheme", scheme, probing.RUNS_SCHEME)
    spec = LayerSpec(index, capacity, rates[0], size_bits, probes, seed)
    count, clean, followed, oldest, checksum = _STATE.unpack_from(header, _STATE_AT)
    is_whole = checksum == crc32(header[_STATE_AT : -_CHECKSUM.size])
    state = State(count, bool(clean), bool(followed), oldest) if is_whole else None
    watermark, _ = _WATERMARK.unpack_from(header, _WATERMARK_AT)
    if header[_WATERMARK_AT:_STATE_AT] != _packed_watermark(watermark):
        if state is not None and state.is_clean:
            raise damaged(path, "the watermark contradicts its checksum", offset=_WATERMARK_AT)
        watermark = 0
    return Header(spec, Origin(chain_id.hex(), rates[1], created), state, watermark)


def _packed_watermark(number: int) -> bytes:
    return _WATERMARK.pack(number, crc32(number.to_bytes(8, "little")))


def _unknown(path: Path, what: str, found: int, known: int) -> UnusableError:
    advice = f"Upgrade scrapy-bloom; if nobody has run a newer one here, the file is damaged. {_way_out(path)}"
    return UnusableError(path, f"has the {what} {found}", expected=str(known), advice=advice)


def _way_out(path: Path) -> str:
    return f"Restore the file from a backup, or delete the directory {path.parent} to crawl all pages again."


def _allocate(fd: int, offset: int, nbytes: int) -> None:
    """Reserve *nbytes* zero bytes of disk from *offset* on."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, offset, nbytes)
        except OSError as error:
            # Some network and FUSE file systems cannot allocate; write zeros there.
            if error.errno not in _CANNOT_ALLOCATE:
                raise
        else:
            return
    os.lseek(fd, offset, os.SEEK_SET)
    zeros = memoryview(bytes(1 << 20))
    while nbytes:
        nbytes -= os.write(fd, zeros[:nbytes])
