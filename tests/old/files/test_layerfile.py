"""One layer in one file: what is written, what is read, and that a file is there whole or not at all."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files import layerfile
from scrapy_bloom.old.filter.layer import LayerSpec
from tests.old.filter.sampling import questions
from tests.old.support.damage import HEADER_BYTES, flip_bits, is_marked_clean

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).with_name("golden") / "version-1.bloom"
FORMAT = Path(__file__).parents[3] / "docs" / "format.md"

SPEC = LayerSpec(index=0, capacity=8, error_rate=1e-4, size_bits=160, probes=13, seed=0x9E3779B9)
ORIGIN = layerfile.Origin(
    chain_id=bytes(range(16)),
    capacity=8,
    error_rate=5e-4,
    tightening=0.8,
    growth=2.0,
    created=1_750_000_000.0,
    key_space={"fingerprinter": "scrapy", "rules": "", "w3lib": "2.3.1"},
)
FINGERPRINTS = [b"https://example.com/%d" % number for number in range(5)]


def write_golden(path: Path) -> None:
    file = layerfile.create(path, SPEC, ORIGIN)
    bound = questions(file.layer)
    for fingerprint in FINGERPRINTS:
        file.layer.count += bound.add(fingerprint)
    file.write_state(clean=True)
    del bound
    file.close()


def test_a_layer_that_cannot_fit_takes_no_space_on_the_way_to_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full for a moment fails every other process on it."""
    spec = replace(SPEC, capacity=10**12, size_bits=1 << 45)
    monkeypatch.setattr(layerfile, "_allocate", lambda *_: pytest.fail("space was taken"))
    with pytest.raises(OSError, match="No space left"):
        layerfile.create(tmp_path / "layer-000.bloom", spec, ORIGIN)
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_written_are_those_of_format_version_1(tmp_path: Path) -> None:
    """A layer written today is the golden file, byte for byte; a change of format takes a new version number."""
    write_golden(tmp_path / "layer-000.bloom")
    assert (tmp_path / "layer-000.bloom").read_bytes() == GOLDEN.read_bytes()


def test_the_golden_file_is_read_back(tmp_path: Path) -> None:
    """A file written by the first release is opened with its design, its origin and its count."""
    file = layerfile.open_existing(Path(shutil.copy(GOLDEN, tmp_path)))
    try:
        assert file.layer.spec == SPEC
        assert file.origin == ORIGIN
        assert file.layer.count == len(FINGERPRINTS)
        assert file.is_clean
    finally:
        file.close()


def test_the_fingerprints_in_the_golden_file_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A filter of the first release goes on: it knows its fingerprints, and takes new ones."""
    shutil.copy(GOLDEN, tmp_path / "layer-000.bloom")
    with open_filter(tmp_path, 8, 5e-4, key_space=ORIGIN.key_space) as chain:
        chain._check()
        assert [chain.add(fingerprint) for fingerprint in FINGERPRINTS] == [False] * 5
        assert [chain.add(b"https://example.org/%d" % number) for number in range(10)] == [True] * 10
        assert [layer.count for layer in chain.layers] == [8, 7]
    assert not caplog.records


def test_the_worked_example_shows_the_golden_file() -> None:
    """Every byte in docs/format.md stands in the golden file at its offset, and zeros where lines are left out."""
    golden = GOLDEN.read_bytes()
    shown = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){1,16})", FORMAT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) >= 14
    covered = bytearray(golden[:HEADER_BYTES])
    for offset, content in shown:
        at, expected = int(offset, 16), bytes.fromhex(content)
        assert golden[at : at + len(expected)] == expected, offset
        covered[at : at + len(expected)] = bytes(len(expected))
    assert not any(covered), "a byte of the header is not shown"


def test_the_field_table_says_where_the_fields_are() -> None:
    """The offsets in docs/format.md follow from the sizes, and add up to the header."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `([a-z0-9]+)`", FORMAT.read_text(encoding="utf-8"), re.MULTILINE)
    at = 0
    for offset, size, _ in rows:
        assert int(offset) == at
        at += int(size)
    assert at == HEADER_BYTES


def test_the_space_of_a_layer_is_allocated(tmp_path: Path) -> None:
    """No hole: a bit set in a mapped hole on a full disk would end the process with SIGBUS."""
    spec = LayerSpec.smallest(index=0, capacity=200_000, error_rate=1e-6, probes=20, seed=1 << 31)
    layerfile.create(tmp_path / "layer", spec, ORIGIN).close()
    status = (tmp_path / "layer").stat()
    assert status.st_size == HEADER_BYTES + spec.nbytes
    assert status.st_blocks * 512 >= status.st_size


@pytest.mark.parametrize("number", [None, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV])
def test_zeros_are_written_where_the_file_system_cannot_allocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Without posix_fallocate, or where it is refused for what it is, the file is filled by hand and is the same."""
    # Patched, as no file system at hand refuses, and macOS, which has no such call, is not at hand either.
    if number is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", failing(OSError(number, os.strerror(number))), raising=False)
    spec = LayerSpec.smallest(index=0, capacity=600_000, error_rate=1e-6, probes=20, seed=1 << 31)
    assert spec.nbytes > 1 << 20, "more than one write"
    layerfile.create(tmp_path / "layer", spec, ORIGIN).close()
    status = (tmp_path / "layer").stat()
    assert status.st_size == HEADER_BYTES + spec.nbytes
    assert status.st_blocks * 512 >= status.st_size
    assert not any((tmp_path / "layer").read_bytes()[HEADER_BYTES:])


def failing(error: OSError) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_at_fsync(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        fsync, left = os.fsync, [number]

        def count_down(fd: int) -> None:
            left[0] -= 1
            if not left[0]:
                raise NO_SPACE
            fsync(fd)

        monkeypatch.setattr(os, "fsync", count_down)

    return patch


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "open": lambda patch: patch.setattr(Path, "open", failing(NO_SPACE)),
    "allocate": lambda patch: patch.setattr(os, "posix_fallocate", failing(NO_SPACE), raising=False),
    "sync the file": fail_at_fsync(1),
    "rename": lambda patch: patch.setattr(Path, "replace", failing(NO_SPACE)),
    "sync the directory": fail_at_fsync(2),
    "open again": lambda patch: patch.setattr(os, "open", failing(NO_SPACE)),
    "map": lambda patch: patch.setattr(mmap, "mmap", failing(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_any_step_leaves_no_file_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever the system refuses, no temporary file and no half file stays behind, and no descriptor open."""
    # Patched, as real disks fail at allocating only (see test_full_disk.py), and the other steps can fail as well.
    path = tmp_path / "layer-000.bloom"
    descriptors = open_descriptors()
    with monkeypatch.context() as patch:
        STEPS[step](patch)
        with pytest.raises(OSError, match=r"space|memory"):
            layerfile.create(path, SPEC, ORIGIN)
    assert open_descriptors() == descriptors
    assert not list(tmp_path.glob("*.tmp"))
    assert path.exists() == (step in {"sync the directory", "open again", "map"})
    if path.exists():
        layerfile.open_existing(path).close()
    layerfile.create(path, SPEC, ORIGIN).close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()  # noqa: PTH208 - names are wanted


@pytest.mark.parametrize("step", STEPS)
def test_a_filter_begins_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whatever the system refuses on opening comes out as one error of ours, and the next opening works."""
    with monkeypatch.context() as patch:
        STEPS[step](patch)
        with pytest.raises(UnusableError, match=re.escape(str(tmp_path / "filter"))):
            open_filter(tmp_path / "filter", 8)
    with open_filter(tmp_path / "filter", 8) as chain:
        assert chain.add(b"key")


def test_a_key_space_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    """A key space too long for the header is an error before anything is written."""
    with pytest.raises(ValueError, match=r"the key space takes \d+ bytes, at most 3800 fit"):
        open_filter(tmp_path / "filter", key_space={"rules": "x" * 3800})
    assert not list((tmp_path / "filter").glob("layer*"))


def test_a_state_that_is_broken_counts_as_in_use(tmp_path: Path) -> None:
    """Without a trustworthy state the bits are counted."""
    path = Path(shutil.copy(GOLDEN, tmp_path))
    assert is_marked_clean(path)
    flip_bits(path, 4064)
    file = layerfile.open_existing(path)
    assert not file.is_clean
    assert 5 <= file.layer.count <= 8
    file.close()


@pytest.mark.parametrize(("platform", "flushes"), [("linux", 0), ("darwin", 1), ("win32", 1)])
def test_fsync_flushes_the_mapping_where_the_system_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, flushes: int
) -> None:
    """Only Linux promises that fsync covers pages changed through a mapping."""

    class Mapping(mmap.mmap):
        flushed = 0

        def flush(self, *args: Any) -> None:
            Mapping.flushed += 1
            return super().flush(*args)

    # Patched, as neither macOS nor Windows is at hand: this proves the branch, not the system.
    monkeypatch.setattr(mmap, "mmap", Mapping)
    file = layerfile.create(tmp_path / "layer", SPEC, ORIGIN)
    monkeypatch.setattr(sys, "platform", platform)
    file.fsync()
    monkeypatch.undo()
    assert Mapping.flushed == flushes
    file.close()


def test_windows_is_not_asked_to_sync_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows cannot open directories; elsewhere a directory that cannot be synced is an error."""
    layerfile.sync_directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        layerfile.sync_directory(tmp_path / "missing")
    monkeypatch.setattr(sys, "platform", "win32")  # not at hand, as above
    layerfile.sync_directory(tmp_path / "missing")
