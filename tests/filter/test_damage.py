"""What a damaged file does to a filter: it does not open, and says why. Or nothing is lost, and it says so."""

import random
import shutil
from pathlib import Path

import pytest

from scrapy_bloom.errors import DamagedError, UnusableError
from scrapy_bloom.filter import layerfile
from scrapy_bloom.filter.directory import inspect_directory, open_filter, read_forgotten
from scrapy_bloom.filter.layer import LayerSpec
from scrapy_bloom.filter.layerfile import Header
from tests.filter.damage import (
    CHECKSUM_AT,
    HEADER_BYTES,
    STATE_AT,
    filled,
    fingerprint,
    flip_bits,
    knows,
    layer,
    overwrite,
    restate,
)
from tests.filter.sampling import questions

GOLDEN = Path(__file__).with_name("golden") / "version-1.bloom"
HEADER = Header(
    LayerSpec(index=0, capacity=8, error_rate=0.1, size_bits=49_152, probes=3, seed=0x9E3779B9),
    chain_id=bytes(range(16)).hex(),
    chain_error_rate=0.5,
    created=1_750_000_000.0,
    watermark=0x0123456789,
)
FINGERPRINTS = [b"https://example.com/%d" % number for number in range(5)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A filter of one layer."""
    return filled(tmp_path / "small", 8, capacity=10)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A filter of one layer, two thirds full."""
    return filled(tmp_path / "large", 20_000, capacity=30_000)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A filter of three layers."""
    return filled(tmp_path / "three", 60, capacity=10)


def assert_refused(directory: Path, path: Path) -> None:
    """Opening is refused by naming *path* and a way out, changes nothing, and the description says the same."""
    before = {each.name: each.read_bytes() for each in directory.glob("layer-*")}
    described = inspect_directory(directory)
    for _ in range(2):
        with pytest.raises((DamagedError, UnusableError)) as caught:
            open_filter(directory)
        assert caught.value.where == str(path)
        assert str(directory) in caught.value.advice
        assert str(caught.value) in described.damage
    assert not described.is_clean
    assert {each.name: each.read_bytes() for each in directory.glob("layer-*")} == before


def write_golden(path: Path) -> None:
    file = layerfile.create(path, HEADER)
    file.layer.count = sum(map(questions(file.layer).add, FINGERPRINTS))
    file.write_state(is_clean=True)
    file.close()


def test_the_bytes_written_are_those_of_format_version_1(tmp_path: Path) -> None:
    """A layer written today is the golden file, byte for byte; a change of format takes a new version number."""
    write_golden(tmp_path / "layer-000.bloom")
    assert (tmp_path / "layer-000.bloom").read_bytes() == GOLDEN.read_bytes()


def test_the_golden_file_is_read_back(tmp_path: Path) -> None:
    """A file of the first release opens with its design, count, watermark and id, and the filter goes on."""
    shutil.copy(GOLDEN, tmp_path / "layer-000.bloom")
    header = layerfile.read_header(GOLDEN)
    assert (header.spec, header.chain_error_rate, header.created) == (HEADER.spec, 0.5, HEADER.created)
    assert (header.count, header.is_clean) == (5, True)
    with open_filter(tmp_path, 8, 0.5) as chain:
        assert (chain.watermark, chain.chain_id) == (HEADER.watermark, HEADER.chain_id)
        assert [chain.add(each) for each in FINGERPRINTS] == [False] * 5
        assert [chain.add(b"https://example.org/%d" % number) for number in range(10)] == [True] * 10
        assert [each.count for each in chain.layers] == [8, 7]


@pytest.mark.parametrize("mask", [0x01, *(pytest.param(mask, marks=pytest.mark.slow) for mask in (0xFF, 0x80))])
def test_a_flipped_header_byte_is_refused_or_survived_but_never_overlooked(small: Path, mask: int) -> None:
    """Each of 4,096 bytes: in the design an error; in the state a recount that forgets none, and no watermark."""
    path = layer(small)
    for offset in range(STATE_AT):
        flip_bits(path, offset, mask)
        with pytest.raises((DamagedError, UnusableError)) as caught:
            layerfile.read_header(path)
        assert caught.value.where == str(path)
        if offset % 500 == 0:
            assert_refused(small, path)
        flip_bits(path, offset, mask)
    before = path.read_bytes()
    for offset in range(STATE_AT, HEADER_BYTES):
        flip_bits(path, offset, mask)
        with open_filter(small, error_rate=1e-3) as chain:
            assert knows(chain, 8)
            assert chain.watermark == 0
        path.write_bytes(before)


def test_a_file_cut_or_lengthened_anywhere_is_refused(small: Path) -> None:
    """At a sample of lengths, around every edge, and with a byte too many."""
    path = layer(small)
    whole = path.read_bytes()
    edges = [0, 1, 7, 8, 96, CHECKSUM_AT, STATE_AT, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, len(whole) - 1]
    for length in (*edges, *random.Random(20).sample(range(len(whole)), 60)):
        path.write_bytes(whole[:length])
        assert_refused(small, path)
    path.write_bytes(whole + b"\0")
    assert_refused(small, path)


@pytest.mark.parametrize("offset", [8, 12], ids=["format version", "probe scheme"])
def test_a_file_of_a_newer_version_asks_for_an_upgrade(small: Path, offset: int) -> None:
    """A version that we do not know is not damage, and it may keep its checksum elsewhere."""
    overwrite(layer(small), offset, b"\x02")
    with pytest.raises(UnusableError, match="Upgrade"):
        open_filter(small)
    assert_refused(small, layer(small))


@pytest.mark.parametrize("damage", ["ones", "ones after a kill", "all ones after a kill"])
def test_ones_that_no_fingerprints_leave_are_refused(large: Path, damage: str) -> None:
    """A block of them shows, in a closed layer and after a kill; of all damage, only that makes new URLs look seen."""
    path = layer(large)
    if damage == "all ones after a kill":
        overwrite(path, HEADER_BYTES, b"\xff" * (path.stat().st_size - HEADER_BYTES))
    else:
        overwrite(path, 5 * 4096, b"\xff" * 64)
    if damage != "ones":
        restate(path, 20_000, clean=False)
    assert_refused(large, path)


def test_a_power_failure_may_leave_any_mix_of_count_and_bits(large: Path) -> None:
    """The count of a layer in use is that of its bits, whatever was noted."""
    path = layer(large)
    restate(path, 0, clean=False)
    with open_filter(large, error_rate=1e-3) as chain:
        assert len(chain) == pytest.approx(20_000, rel=0.01)
        assert knows(chain, 20_000)
    overwrite(path, HEADER_BYTES, bytes(path.stat().st_size - HEADER_BYTES))
    restate(path, 20_000, clean=False)
    with open_filter(large, error_rate=1e-3) as chain:
        assert len(chain) == 0


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_layer_is_named_or_forgotten(three: Path, index: int) -> None:
    """Files are numbered without a gap. What the first or the last knew is new again, and its watermark unknown."""
    layer(three, index).unlink()
    if index == 1:
        assert_refused(three, layer(three, index))
        return
    with open_filter(three, 10) as chain:
        assert sum(fingerprint(number) in chain for number in range(60)) == (50 if index == 0 else 30)
        assert chain.watermark == (60 if index == 0 else 0)


def test_a_layer_in_the_wrong_place_is_named(three: Path, tmp_path: Path) -> None:
    """Each file says which layer of which filter it is; a creation that was cut short is deleted."""
    original = layer(three, 1).read_bytes()
    for other in (layer(filled(tmp_path / "other", 60, capacity=10), 1), layer(three, 2)):
        layer(three, 1).write_bytes(other.read_bytes())
        assert_refused(three, layer(three, 1))
    layer(three, 1).write_bytes(original)
    torn = three / "layer-003.bloom.tmp"
    torn.write_bytes(b"anything")
    with open_filter(three) as chain:
        assert knows(chain, 60)
        assert not torn.exists()


def test_the_list_of_what_was_taken_back_is_torn_or_refused_but_never_misread(small: Path) -> None:
    """Cut anywhere, whole lines count and more can be added; a flipped byte is damage, or in what was torn."""
    path = small / "forgotten"
    assert not path.exists()
    with open_filter(small) as chain:
        assert chain.forget(fingerprint(1))
        assert chain.forget(fingerprint(2))
        assert chain.add(fingerprint(2))
        assert chain.forget(fingerprint(3))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole)):
        path.write_bytes(whole[:length] + bytes(length % 2 * 5))  # a power failure may leave zeros
        expected = [set(), {1}, {1, 2}, {1}][whole[:length].count(b"\n")]
        assert read_forgotten(path)[0] == set(map(fingerprint, expected))
    for at in range(len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedError):
            read_forgotten(path)
    assert_refused(small, path)
    path.write_bytes(whole[: len(lines[0]) + 7])
    with open_filter(small) as chain:
        assert chain.forget(fingerprint(5))
    with open_filter(small) as chain:
        assert [number for number in range(8) if fingerprint(number) not in chain] == [1, 5]
