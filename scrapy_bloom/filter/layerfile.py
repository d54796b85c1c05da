"""Layers in files. ``docs/format.md`` has the layout.

The file of one layer, of a filter that grows on disk, has a self-describing header of 4,096 bytes, then the bits. A
whole filter in one file, by :func:`save`, begins with a line of JSON, which has the arguments of the filter and the
designs of its layers, and ends with its CRC-32. The bits of the layers follow, oldest first, then their CRC-32.
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
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.filter.layer import Layer, LayerSpec
from scrapy_bloom.filter.probes import RUNS_SCHEME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


FORMAT_VERSION = 1
HEADER_BYTES = 4096
MAGIC = b"\x89BLOOM\r\n"  # not text, and broken by any transfer that rewrites line ends or strips the eighth bit

_DESIGN = struct.Struct("<8sIII4xQdQIIdd16s")  # written once, padded with zeros, with a checksum behind
_STATE = struct.Struct("<QQI")  # rewritten in place, with a checksum behind
_CHECKSUM_AT, _STATE_AT = 4068, 4072


@dataclass(frozen=True)
class Header:
    """Everything in a layer file before its bits. The fields after *chain_id* change."""

    spec: LayerSpec
    chain_error_rate: float  # p of the whole chain, as set when this layer was created
    created: float  # seconds since 1970 (UTC)
    chain_id: str  # 32 hexadecimal digits, random, the same in all layers of a chain
    watermark: int = 0  # a number of the caller's; this and the next two are 0 if their checksum does not match
    count: int = 0  # fingerprints in the layer; valid only if the file was closed
    is_clean: bool = False  # whether the file was closed: bits and count are on disk and belong together

    def pack(self) -> bytes:
        """Return the bytes in the file."""
        fields = self.chain_error_rate, self.created, bytes.fromhex(self.chain_id)
        design = _DESIGN.pack(MAGIC, FORMAT_VERSION, RUNS_SCHEME, *astuple(self.spec), *fields).ljust(
            _CHECKSUM_AT, b"\0"
        )
        return _sealed(design) + self.pack_state()

    def pack_state(self) -> bytes:
        """Return the bytes of the state, the end of the header."""
        return _sealed(_STATE.pack(self.watermark, self.count, self.is_clean))


class LayerFile:
    """An open layer file, and the :class:`Layer` over its mapping."""

    def __init__(self, path: Path, header: Header, *, read_only: bool = False) -> None:
        """Map the file at *path*, whose *header* has been checked."""
        self.path = path
        self.header = header
        self._file = path.open("rb" if read_only else "r+b", buffering=0)
        try:
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            self._map = mmap.mmap(self._file.fileno(), HEADER_BYTES + header.spec.nbytes, access=access)
        except BaseException:
            self._file.close()
            raise
        if hasattr(mmap, "MADV_RANDOM"):  # not on Windows
            # With read-ahead, one check of a cold filter reads 350 KB around the two pages it wants.
            self._map.madvise(mmap.MADV_RANDOM)
        self.layer = Layer(header.spec, memoryview(self._map)[HEADER_BYTES:], header.created)

    def write_state(self, *, is_clean: bool = False, watermark: int | None = None) -> None:
        """Save the count, whether the file is closed, and *watermark* if given. A kill does not undo it."""
        watermark = self.header.watermark if watermark is None else watermark
        self.header = replace(self.header, watermark=watermark, count=self.layer.count, is_clean=is_clean)
        self._map[_STATE_AT:HEADER_BYTES] = self.header.pack_state()

    def fsync(self) -> None:
        """Return once header and bits are on disk. Releases the GIL, so a thread can call it beside the crawl."""
        if sys.platform != "linux":
            # Only Linux promises that fsync() covers pages dirtied through a mapping. mmap.flush() does everywhere, but
            # holds the GIL (187 ms of a 199 ms flush).
            self._map.flush()
        os.fsync(self._file.fileno())

    def check_bits(self, *, thorough: bool = False) -> None:
        """Give the layer its count, and raise DamagedError if its bits look damaged: see :meth:`Layer.ones`.

        The count of a closed file stands in its header; otherwise it is estimated from the bits.
        """
        self.layer.count = self.header.count if self.header.is_clean else self.layer.estimated_count()
        if (offset := self.layer.ones(thorough=thorough)) is not None:
            raise damaged(self.path, "64 bytes in which all bits are set begin there", HEADER_BYTES + offset)

    def close(self) -> None:
        """Unmap and close. The layer keeps its count and loses its bits."""
        self.layer.bits = type(self.layer.bits)()
        with suppress(BufferError):  # somebody still holds the bits; the mapping goes with them
            self._map.close()
        self._file.close()


def create(path: Path, header: Header) -> LayerFile:
    """Create the file at *path*, whole or not at all, and open it. Raises OSError, and leaves nothing behind.

    Writes under a temporary name, allocates the space, syncs and renames. Without the allocation, setting a bit on a
    full disk would kill the process with SIGBUS.
    """
    nbytes = HEADER_BYTES + header.spec.nbytes
    if nbytes > shutil.disk_usage(path.parent).free:
        # ext4 takes all that is free before it finds that it is not enough, and every other process on the disk fails.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            _allocate(file.fileno(), nbytes)
            file.seek(0)
            file.write(header.pack())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # which cannot open directories, and does not need to
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    return LayerFile(path, header)


def read_header(path: Path) -> Header:
    """Read the header of the file at *path*, and check it against the file's length. Writes nothing.

    Raises:
        DamagedError: Wrong magic, checksum or length.
        UnusableError: Written by a newer version.

    """
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
        length = os.fstat(file.fileno()).st_size
    if data[: len(MAGIC)] != MAGIC:
        raise damaged(path, f"it begins with {data[:8]!r} where a filter layer has {MAGIC!r}", 0)
    if length < HEADER_BYTES:
        raise damaged(path, f"the header of {HEADER_BYTES} bytes ends after {length}", length)
    _, version, scheme, *design, chain_error_rate, created, chain_id = _DESIGN.unpack_from(data)
    for name, number, known in (("format version", version, FORMAT_VERSION), ("probe scheme", scheme, RUNS_SCHEME)):
        if number != known:  # before the checksum, which another version may keep elsewhere
            advice = f"Upgrade scrapy-bloom; if nobody has run a newer one here, the file is damaged. {_way_out(path)}"
            raise UnusableError(path, f"has the {name} {number}", expected=str(known), advice=advice)
    if data[:_STATE_AT] != _sealed(data[:_CHECKSUM_AT]):
        raise damaged(path, "the header contradicts its checksum", _CHECKSUM_AT)
    header = Header(LayerSpec(*design), chain_error_rate, created, chain_id.hex())
    if length != (expected := HEADER_BYTES + header.spec.nbytes):
        raise damaged(path, f"the file has {length} bytes, and its header says {expected}", length)
    if data[_STATE_AT:] == _sealed(data[_STATE_AT:-4]):
        watermark, count, is_clean = _STATE.unpack_from(data, _STATE_AT)
        return replace(header, watermark=watermark, count=count, is_clean=is_clean == 1)
    return header


def damaged(path: Path, problem: str, offset: int | None = None) -> DamagedError:
    """Return the error about *path*, a file in the directory of a filter, with the two ways out."""
    return DamagedError(path, problem, offset=offset, advice=_way_out(path))


def _way_out(path: Path) -> str:
    return f"Restore the file from a backup, or delete the directory {path.parent} to crawl all pages again."


def _sealed(data: bytes) -> bytes:
    return data + crc32(data).to_bytes(4, "little")


def _allocate(fd: int, nbytes: int) -> None:
    """Reserve *nbytes* zero bytes of disk for an empty file."""
    # macOS and Windows do not have the call, and some network and FUSE file systems refuse it: write zeros there.
    with suppress(AttributeError, OSError):
        os.posix_fallocate(fd, 0, nbytes)
        return
    zeros = memoryview(bytes(1 << 20))
    while nbytes:
        nbytes -= os.write(fd, zeros[:nbytes])


SAVED = "scrapy-bloom filter 1"


def save(path: str | os.PathLike[str], made: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Write *layers* and the arguments that the filter was *made* with. The file at *path* is replaced whole."""
    designs = [{"spec": vars(layer.spec), "created": layer.created, "count": layer.count} for layer in layers]
    head = json.dumps({"format": SAVED, "made": made, "layers": designs}).encode()
    temporary = Path(f"{os.fspath(path)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(b"%s %08x\n" % (head, crc32(head)))
            checksum = 0
            for layer in layers:
                file.write(layer.bits)
                checksum = crc32(layer.bits, checksum)
            file.write(checksum.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def load(
    path: str | os.PathLike[str], create: Callable[[LayerSpec, float], Layer]
) -> tuple[dict[str, Any], list[Layer]]:
    """Return the arguments of the filter in *path*, and its layers, for whose bits *create* makes room.

    Raises:
        DamagedError: The file contradicts its length or checksum.
        UnusableError: It holds no filter, or one of another version.
        OSError: It cannot be read.

    """
    advice = "Save the filter again, or restore the file from a backup."
    with Path(path).open("rb") as file:
        head = file.readline()
        if SAVED.encode() not in head[:64]:
            raise UnusableError(path, "holds no filter that this scrapy-bloom has saved", advice=advice)
        text, _, checksum_of_text = head.rpartition(b" ")
        if checksum_of_text != b"%08x\n" % crc32(text):
            raise DamagedError(path, "its first line contradicts its checksum", offset=len(text), advice=advice)
        content = json.loads(text)
        designs = [(LayerSpec(**design["spec"]), design) for design in content["layers"]]
        length, expected = os.fstat(file.fileno()).st_size, len(head) + sum(spec.nbytes for spec, _ in designs) + 4
        if length != expected:
            raise DamagedError(path, f"it has {length} bytes, and its first line says {expected}", advice=advice)
        checksum, layers = 0, []
        for spec, design in designs:
            layer = create(spec, design["created"])
            layer.count = design["count"]
            file.readinto(layer.bits)
            checksum = crc32(layer.bits, checksum)
            layers.append(layer)
        if file.read() != checksum.to_bytes(4, "little"):
            raise DamagedError(path, "it contradicts its checksum", offset=length - 4, advice=advice)
    return content["made"], layers
