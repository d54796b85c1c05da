"""A whole filter in one file, written and read at once: :func:`write` and :func:`read`.

A line of JSON has the arguments of the filter and the designs of its layers. It ends with its CRC-32 in hexadecimal.
The bits of the layers follow, oldest first, then their CRC-32. A filter that grows on disk is a directory instead:
see :mod:`~scrapy_bloom.filter.directory`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.filter.layer import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy_bloom.filter.layer import Layer

FORMAT = "scrapy-bloom filter 1"


def write(path: str | os.PathLike[str], made: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Write *layers* and the arguments that the filter was *made* with. The file at *path* is replaced whole."""
    designs = [{"spec": vars(layer.spec), "created": layer.created, "count": layer.count} for layer in layers]
    head = json.dumps({"format": FORMAT, "made": made, "layers": designs}).encode()
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


def read(
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
        if FORMAT.encode() not in head[:64]:
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
