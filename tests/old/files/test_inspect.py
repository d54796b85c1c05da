"""Looking at a filter without touching it: beside a crawl, on a read-only disk, and whatever lies there."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.files.inspect import inspect
from tests.old.support.damage import (  # fmt: skip
    HEADER_BYTES,
    STATE_AT,
    STATE_CRC_AT,
    cut,
    filled,
    flip_bits,
    kill,
    layer,
    overwrite,
    restamp,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY_SPACE = {"fingerprinter": "scrapy", "rules": "", "w3lib": "2.5.0"}


def traces(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in *directory* that a write would change: names, times, sizes and content."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in [directory, *directory.rglob("*")]
        if path.is_file()
    } | {".": (directory.stat().st_mtime_ns, 0, b"")}


def test_a_closed_filter_is_described(tmp_path: Path) -> None:
    """Layers, counts, key space and bounds are those that opening it finds, and there is nothing to report."""
    filled(tmp_path / "filter", 60, capacity=10, error_rate=1e-3, key_space=KEY_SPACE)
    seen = inspect(tmp_path / "filter", read_bits=True)
    assert seen.exists
    assert seen.is_clean
    assert seen.findings == ()
    assert seen.key_space == KEY_SPACE
    assert seen.error_rate == 1e-3
    assert seen.urls == 60
    assert [each.urls for each in seen.layers] == [10, 20, 30]
    assert [each.capacity for each in seen.layers] == [10, 20, 40]
    assert f"process {os.getpid()} on " in seen.owner
    with open_filter(tmp_path / "filter", 10, 1e-3) as chain:
        assert seen.nbytes == chain.nbytes
        assert seen.expected_lost == chain.expected_false_positives()


def test_forgotten_urls_are_counted_out(tmp_path: Path) -> None:
    """A fingerprint that was taken back is not among those remembered."""
    with open_filter(tmp_path, 10) as chain:
        chain.add(b"a")
        chain.add(b"b")
        chain.forget(b"a")
    assert (inspect(tmp_path).urls, inspect(tmp_path).forgotten) == (1, 1)


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    """No byte and no time of modification changes, even where opening would delete, cut or mark something."""
    filled(tmp_path, 60, capacity=10)
    layer(tmp_path, 3).with_suffix(".bloom.tmp").write_bytes(b"half")
    (tmp_path / "importing").touch()
    (tmp_path / "forgotten").write_bytes(b"-\x03\x00torn")
    before = traces(tmp_path)
    seen = inspect(tmp_path, read_bits=True)
    assert traces(tmp_path) == before
    assert len(seen.findings) == 2


def test_a_filter_in_use_can_be_looked_at(tmp_path: Path) -> None:
    """Beside the process that holds the lock: who that is, and no complaint that the filter is not closed."""
    with open_filter(tmp_path, 100) as chain:
        for number in range(50):
            chain.add(b"%d" % number)
        chain.sync()
        before = traces(tmp_path)
        seen = inspect(tmp_path, read_bits=True)
        assert traces(tmp_path) == before
        assert seen.urls == 50
        assert not seen.is_clean
        assert chain.add(b"one more")
        if sys.platform == "linux":
            assert seen.is_in_use is True
            assert seen.findings == ()
    assert inspect(tmp_path).is_in_use is (False if sys.platform == "linux" else None)


def test_a_killed_crawl_is_told_from_a_running_one(tmp_path: Path) -> None:
    """While the process lives there is nothing to report; after SIGKILL the description says what comes of it."""
    with running("hold", tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        if sys.platform == "linux":
            assert inspect(tmp_path).is_in_use is True
            assert inspect(tmp_path).findings == ()
        kill(process)
    seen = inspect(tmp_path, read_bits=True)
    assert not seen.is_clean
    (finding,) = seen.findings
    assert "was not closed by its last crawl" in finding
    assert "forgets none" in finding


def test_a_read_only_directory_can_be_looked_at(tmp_path: Path) -> None:
    """Without any permission to write, the description is the same."""
    filled(tmp_path / "filter", 60, capacity=10)
    writable = inspect(tmp_path / "filter", read_bits=True)
    for path in (tmp_path / "filter").iterdir():
        path.chmod(0o444)
    (tmp_path / "filter").chmod(0o555)
    try:
        assert inspect(tmp_path / "filter", read_bits=True) == writable
    finally:
        (tmp_path / "filter").chmod(0o755)


@pytest.mark.parametrize("what", ["missing", "empty", "file", "foreign"])
def test_what_holds_no_filter_is_described_too(tmp_path: Path, what: str) -> None:
    """A directory that is missing, empty, a file, or somebody else's has no layers, and raises nothing."""
    place = tmp_path / "filter"
    if what == "file":
        place.write_bytes(b"")
    elif what != "missing":
        place.mkdir()
    if what == "foreign":
        (place / "notes.txt").write_text("mine", encoding="utf-8")
    seen = inspect(place, read_bits=True)
    assert (seen.exists, seen.layers, seen.urls, seen.error_rate, seen.findings) == (False, (), 0, None, ())


def test_a_layer_that_is_no_layer_is_a_finding(tmp_path: Path) -> None:
    """Something else under a layer's name is found, not raised, and the filter is said to exist."""
    layer(tmp_path).write_bytes(b"<html>")
    seen = inspect(tmp_path, read_bits=True)
    assert seen.exists
    assert not seen.is_clean
    assert "is damaged at byte 0: it begins with b'<html>'" in seen.findings[0]


def test_all_that_is_wrong_is_found_at_once(tmp_path: Path) -> None:
    """One missing, one cut, one of a newer format and a damaged list of forgotten URLs make four findings."""
    with open_filter(tmp_path, 10) as chain:
        for number in range(400):
            chain.add(b"%d" % number)
        chain.forget(b"1")
        chain.forget(b"2")
    layer(tmp_path, 0).unlink()
    cut(layer(tmp_path, 1), 5000)
    restamp(layer(tmp_path, 2), 8, 9)
    flip_bits(tmp_path / "forgotten", 4)
    found = inspect(tmp_path).findings
    for part in ("layer-000.bloom is damaged at byte 0: the file is missing", "layer-001.bloom is damaged at byte 5000",
                 "layer-002.bloom has format version 9", "forgotten is damaged"):  # fmt: skip
        assert sum(part in each for each in found) == 1, (part, found)


def test_a_layer_of_another_filter_is_a_finding(tmp_path: Path) -> None:
    """Headers that are sound each and do not belong together are found."""
    filled(tmp_path / "one", 60, capacity=10)
    filled(tmp_path / "other", 60, capacity=10)
    layer(tmp_path / "other", 1).replace(layer(tmp_path / "one", 1))
    assert "it belongs to another filter than layer-000.bloom" in inspect(tmp_path / "one").findings[0]


def test_bits_are_held_against_the_count_on_demand(tmp_path: Path) -> None:
    """A block of ones is found when bits are read, and only then."""
    filled(tmp_path, 20_000, capacity=30_000, error_rate=1e-3)
    overwrite(layer(tmp_path), 6 * 4096, 4096 * b"\xff")
    assert inspect(tmp_path).findings == ()
    description = inspect(tmp_path, read_bits=True)
    (finding,) = description.findings
    assert f"of the bits are set, but {description.layers[0].urls} fingerprints set" in finding


def test_no_flipped_byte_of_a_header_raises(quick_path: Path) -> None:
    """Each byte of the header flipped: a finding in the constant part; in the state, an unreadable count."""
    directory = filled(quick_path / "small", 8, capacity=10)
    path = layer(directory)
    used_of_state = {*range(STATE_AT, STATE_AT + 16), *range(STATE_CRC_AT, HEADER_BYTES)}
    for offset in (*random.Random(9).sample(range(STATE_AT), 200), *sorted(used_of_state)):
        flip_bits(path, offset)
        seen = inspect(directory)
        assert seen.findings, offset
        if offset >= STATE_AT:
            assert seen.layers[0].urls is None
            assert not seen.is_clean
        flip_bits(path, offset)
    assert inspect(directory).findings == ()


def test_a_missing_newest_layer_is_a_finding(tmp_path: Path) -> None:
    """The layer before it notes that it was there."""
    filled(tmp_path, 60, capacity=10)
    layer(tmp_path, 2).unlink()
    assert "layer-002.bloom is damaged at byte 0: the file is missing" in inspect(tmp_path).findings[0]
