"""What a damaged file does to a crawl: it does not start, and says why. Or nothing is lost, and it says so."""

from __future__ import annotations

import logging
import random
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import DamagedError, UnknownFormatError
from tests.old.support.damage import (
    CONSTANT_CRC_AT,
    FOLLOWED_AT,
    HEADER_BYTES,
    STATE_AT,
    STATE_CRC_AT,
    cut,
    exchange,
    extend,
    filled,
    flip_bits,
    is_marked_clean,
    knows,
    layer,
    overwrite,
    read,
    restamp,
    restamp_state,
    restate,
    restored,
)
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from pathlib import Path

NOT_CLOSED = (
    "The filter in {} was not closed by its last crawl. It remembers about {} URLs; if the machine went down too, "
    "those of the last moments may be fetched again."
)
WAY_OUT = "Restore the file from a backup, or delete the directory {} to crawl all pages again."


@pytest.fixture
def small(quick_path: Path) -> Path:
    """A filter of one layer, 14 KB."""
    return filled(quick_path / "small", 8, capacity=10)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A filter of one layer of 56 KB, in whose middle the fill is even, half full of fingerprints."""
    return filled(tmp_path / "large", 20_000, capacity=30_000, error_rate=1e-3)


@pytest.fixture
def chain_of_three(tmp_path: Path) -> Path:
    return filled(tmp_path / "three", 60, capacity=10)


@pytest.mark.parametrize(
    ("masks", "step"), [([0xFF], 1), ([1 << bit for bit in range(8)], 5)], ids=["byte", "bit of every fifth"]
)
def test_a_flipped_header_byte_is_refused_or_survived_but_never_overlooked(
    small: Path, caplog: pytest.LogCaptureFixture, masks: list[int], step: int
) -> None:
    """Each of 4,096 bytes: in the constant part an error of ours; in the state a recount that forgets none."""
    path = layer(small)
    for offset in (*range(0, STATE_AT, step), *range(STATE_AT, HEADER_BYTES)):
        with restored(path):
            flip_bits(path, offset, masks[offset % len(masks)])
            if offset < STATE_AT:
                with pytest.raises((DamagedError, UnknownFormatError), match=re.escape(str(path))):
                    open_filter(small)
            else:
                caplog.clear()
                with open_filter(small) as chain:
                    assert chain.was_unclean
                    assert knows(chain, 8)
                    assert 8 <= len(chain) <= 10
                    chain._check()
                assert caplog.messages[0].startswith(f"The filter in {small} was not closed by its last crawl.")


def test_a_file_cut_anywhere_is_refused(small: Path) -> None:
    """At every length up to the header's and a sample of the longer ones, the error names the length that is there."""
    path = layer(small)
    whole = path.stat().st_size
    random_lengths = random.Random(20).sample(range(HEADER_BYTES, whole), 60)
    for length in (*range(HEADER_BYTES + 2), *random_lengths, whole - 1):
        with restored(path):
            cut(path, length)
            with pytest.raises(DamagedError) as caught:
                open_filter(small)
            assert caught.value.where == str(path)
            assert caught.value.offset == (0 if length < 8 else length)
            assert length < 8 or str(length) in caught.value.problem


def test_the_message_about_a_cut_file_says_where_and_what_to_do(small: Path) -> None:
    """File, offset, found, expected, and the way out stand in one message."""
    path = layer(small)
    whole = path.stat().st_size
    cut(path, 5000)
    with pytest.raises(DamagedError) as caught:
        open_filter(small)
    assert str(caught.value) == (
        f"{path} is damaged at byte 5000: the file has 5000 bytes, and its header says {whole}. "
        + WAY_OUT.format(small)
    )


def test_a_header_that_ends_early_is_named_as_such(small: Path) -> None:
    """A file shorter than its header says how much of it there is."""
    cut(layer(small), 100)
    with pytest.raises(DamagedError, match=r"at byte 100: the header of 4096 bytes ends after 100\."):
        open_filter(small)


def test_a_file_of_something_else_is_recognised(small: Path) -> None:
    """The first eight bytes tell a layer from anything else."""
    layer(small).write_bytes(b"<html><body>" * 1000)
    with pytest.raises(DamagedError) as caught:
        open_filter(small)
    assert str(caught.value) == (
        f"{layer(small)} is damaged at byte 0: it begins with b'<html><b' where a filter layer has "
        f"b'\\x89BLOOM\\r\\n'. {WAY_OUT.format(small)}"
    )


def test_an_empty_file_is_damage(small: Path) -> None:
    """What a full disk or a failed copy leaves is not taken for a filter."""
    cut(layer(small), 0)
    with pytest.raises(DamagedError, match=r"at byte 0: it begins with b'' where"):
        open_filter(small)


def test_a_file_with_something_behind_it_is_refused(small: Path) -> None:
    """One byte too many is damage at the byte where the file should end."""
    path = layer(small)
    whole = path.stat().st_size
    extend(path)
    with pytest.raises(DamagedError) as caught:
        open_filter(small)
    assert caught.value.offset == whole
    assert caught.value.problem == f"the file has {whole + 1} bytes, and its header says {whole}"


def test_a_wrong_checksum_says_both(small: Path) -> None:
    """The message has the checksum that is noted and the one that the header has."""
    path = layer(small)
    noted = int.from_bytes(read(path, CONSTANT_CRC_AT, 4), "little")
    flip_bits(path, 33)
    with pytest.raises(DamagedError) as caught:
        open_filter(small)
    assert caught.value.offset == CONSTANT_CRC_AT
    assert caught.value.problem.endswith(f", and {noted:#010x} is noted")
    assert caught.value.problem.startswith("the checksum of the header is 0x")


@pytest.mark.parametrize(
    ("offset", "what", "known"),
    [(8, "format version", 2), (12, "probe scheme", 1)],
    ids=["format version", "probe scheme"],
)
def test_a_file_of_a_newer_version_asks_for_an_upgrade(small: Path, offset: int, what: str, known: int) -> None:
    """A version that we do not know is not damage: the message says what would read it."""
    restamp(layer(small), offset, 3)
    with pytest.raises(UnknownFormatError) as caught:
        open_filter(small)
    assert (caught.value.version, caught.value.known) == (3, known)
    assert str(caught.value) == (
        f"{layer(small)} has {what} 3, and this scrapy-bloom knows {what}s up to {known}. "
        f"Upgrade scrapy-bloom; if nobody has run a newer one here, the file is damaged. {WAY_OUT.format(small)}"
    )


def test_a_newer_version_may_have_moved_the_checksum(small: Path) -> None:
    """The version is looked at before the checksum, whose place it may have changed."""
    overwrite(layer(small), 8, b"\3")
    with pytest.raises(UnknownFormatError, match="format version 3"):
        open_filter(small)


def test_an_array_length_that_the_design_does_not_give_is_damage(small: Path) -> None:
    """The length of the bit array is stored and computed, and both must agree."""
    restamp(layer(small), 48, 64)
    with pytest.raises(DamagedError, match=r"at byte 48: 64 bits are noted for a layer that takes \d+\."):
        open_filter(small)


@pytest.mark.parametrize("byte", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_a_block_of_the_bits_that_was_overwritten_contradicts_the_count(large: Path, byte: bytes) -> None:
    """A page of zeros or ones in the middle of a cleanly closed layer shows in the fill."""
    path = layer(large)
    overwrite(path, 6 * 4096, 4096 * byte)
    with pytest.raises(DamagedError) as caught:
        open_filter(large)
    assert caught.value.offset == HEADER_BYTES
    assert re.fullmatch(
        r"\d+\.\d\d% of the bits are set, but 20000 fingerprints set \d+\.\d\d% \(give or take \d+\.\d\d%\)",
        caught.value.problem,
    )


def test_bits_that_no_fingerprint_can_have_set_are_found_in_a_tiny_layer_too(small: Path) -> None:
    """A layer too small for a sample is held to k bits per fingerprint."""
    overwrite(layer(small), HEADER_BYTES + 5000, b"\xff" * 100)
    with pytest.raises(DamagedError, match=r"at byte 4096: \d+ bits are set, but 8 fingerprints set at most 176\."):
        open_filter(small)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_block_of_ones_is_found_after_a_kill_too(large: Path, size: int) -> None:
    """A recount would take it for fingerprints, and the layer would take new pages for seen."""
    path = layer(large)
    restate(path, 10_000, clean=False)
    overwrite(path, 5 * 4096, b"\xff" * size)
    with pytest.raises(DamagedError, match=r"64 bytes of nothing but ones, which no fingerprints leave") as caught:
        open_filter(large)
    assert caught.value.offset in (5 * 4096, 5 * 4096 - 1)


def test_bits_filled_up_after_a_kill_are_found_as_well(large: Path) -> None:
    """A recount explains no more than the layer's capacity, so that bits fuller than that are damage."""
    path = layer(large)
    restate(path, 20_000, clean=False)
    overwrite(path, HEADER_BYTES, b"\xff" * (path.stat().st_size - HEADER_BYTES))
    with pytest.raises(DamagedError, match=r"100\.00% of the bits are set, but 30000 fingerprints set"):
        open_filter(large)


def test_a_clean_count_that_the_bits_contradict_is_damage(large: Path) -> None:
    """Bits and count are written in an order that makes a clean mark binding."""
    restate(layer(large), 10_000, clean=True)
    with pytest.raises(DamagedError, match="of the bits are set, but 10000 fingerprints set"):
        open_filter(large)


def test_a_count_beyond_the_capacity_is_damage(small: Path) -> None:
    """No layer takes more fingerprints than it is made for."""
    restate(layer(small), 11, clean=True)
    with pytest.raises(DamagedError) as caught:
        open_filter(small)
    assert str(caught.value).startswith(
        f"{layer(small)} is damaged at byte {STATE_AT}: 11 fingerprints are noted in a layer made for 10. "
    )


def test_a_power_failure_that_kept_the_count_and_lost_the_bits_is_no_damage(
    large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The noted count of a layer in use may be newer than its bits; then the bits count."""
    path = layer(large)
    overwrite(path, HEADER_BYTES, bytes(path.stat().st_size - HEADER_BYTES))
    restate(path, 20_000, clean=False)
    with open_filter(large, error_rate=1e-3) as chain:
        assert len(chain) == 0
    assert caplog.messages == [NOT_CLOSED.format(large, 0)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_layer_is_named(chain_of_three: Path, index: int) -> None:
    """Files are numbered without a gap; the message names the one that is gone and the one that shows it."""
    layer(chain_of_three, index).unlink()
    with pytest.raises(DamagedError) as caught:
        open_filter(chain_of_three)
    assert str(caught.value) == (
        f"{layer(chain_of_three, index)} is damaged at byte 0: the file is missing, and layer-002.bloom shows that "
        f"there was one. {WAY_OUT.format(chain_of_three)}"
    )


def test_a_missing_newest_layer_is_named_by_the_one_before(chain_of_three: Path) -> None:
    """No number shows the gap, so each layer notes that another has followed."""
    layer(chain_of_three, 2).unlink()
    with pytest.raises(DamagedError) as caught:
        open_filter(chain_of_three)
    assert str(caught.value) == (
        f"{layer(chain_of_three, 2)} is damaged at byte 0: the file is missing, and layer-001.bloom notes that there "
        f"was one. {WAY_OUT.format(chain_of_three)}"
    )


def test_a_newest_layer_missing_after_a_kill_is_named(tmp_path: Path) -> None:
    """The note is there as soon as the next file is, whether anything was synced since or not."""
    with open_filter(tmp_path / "open", 10) as chain:
        for each in fingerprints(11):
            chain.add(each)
        shutil.copytree(tmp_path / "open", tmp_path / "killed")  # the files as a kill at this moment leaves them
    layer(tmp_path / "killed", 1).unlink()
    with pytest.raises(DamagedError, match=r"layer-001\.bloom is damaged at byte 0: the file is missing"):
        open_filter(tmp_path / "killed")


def test_layers_of_before_that_note_get_it_on_opening(chain_of_three: Path) -> None:
    """A chain of an older version opens as it is, and from then on its newest layer is missed, too."""
    for index in range(2):
        overwrite(layer(chain_of_three, index), FOLLOWED_AT, bytes(4))
        restamp_state(layer(chain_of_three, index))
    with open_filter(chain_of_three) as chain:
        assert knows(chain, 60)
        assert not chain.was_unclean
    layer(chain_of_three, 2).unlink()
    with pytest.raises(DamagedError, match=r"layer-001\.bloom notes that there was one"):
        open_filter(chain_of_three)


def test_exchanged_layers_are_found(chain_of_three: Path) -> None:
    """Each file says which layer it is."""
    exchange(layer(chain_of_three, 1), layer(chain_of_three, 2))
    with pytest.raises(DamagedError, match=r"layer-001\.bloom is damaged at byte 20: it holds layer 2, not layer 1\."):
        open_filter(chain_of_three)


def test_a_layer_of_another_filter_is_found(chain_of_three: Path, tmp_path: Path) -> None:
    """A layer copied from elsewhere would answer for other fingerprints."""
    other = filled(tmp_path / "other", 60, capacity=10)
    layer(other, 1).replace(layer(chain_of_three, 1))
    with pytest.raises(
        DamagedError,
        match=r"layer-001\.bloom is damaged at byte 104: it belongs to another filter than layer-000\.bloom\.",
    ):
        open_filter(chain_of_three)


def test_a_stranger_among_the_files_is_left_alone(small: Path) -> None:
    """Only names that a layer can have are looked at, and a copy beside the original does no harm."""
    copy = small / "layer-000 (copy).bloom"
    copy.write_bytes(b"anything")
    with open_filter(small) as chain:
        assert knows(chain, 8)
    assert copy.read_bytes() == b"anything"


def test_a_refused_filter_is_left_as_it_was(chain_of_three: Path) -> None:
    """Refusing changes no byte, keeps no lock, and works again after the repair."""
    path = layer(chain_of_three, 1)
    flip_bits(path, 40)
    before = {each.name: each.read_bytes() for each in chain_of_three.glob("layer-*")}
    for _ in range(2):
        with pytest.raises(DamagedError):
            open_filter(chain_of_three)
    assert {each.name: each.read_bytes() for each in chain_of_three.glob("layer-*")} == before
    flip_bits(path, 40)
    with open_filter(chain_of_three) as chain:
        assert knows(chain, 60)
        assert not chain.was_unclean


def test_the_state_is_marked_in_use_while_open(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The clean mark goes before the first bit is set and comes back on closing: a copy made between is recounted."""
    assert is_marked_clean(layer(small))
    with open_filter(small):
        assert not is_marked_clean(layer(small))
    assert is_marked_clean(layer(small))
    assert not caplog.records
    assert read(layer(small), STATE_AT, 8) == (8).to_bytes(8, "little")
    assert STATE_CRC_AT + 4 == HEADER_BYTES


@pytest.mark.parametrize("error_rate", [0.5, 0.2, 1e-3])
def test_a_sound_layer_is_never_taken_for_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error_rate: float
) -> None:
    """Closed or killed, at any fill, the bits agree with the count; at high error rates each one counted sets more."""
    caplog.set_level(logging.ERROR)
    count = 0
    for target in (1_000, 20_000, 60_000, 150_000, 290_000):
        with open_filter(tmp_path, 300_000, error_rate) as chain:
            for number in range(count, target):
                chain.add(b"%d" % number)
        count = target
        with open_filter(tmp_path, 300_000, error_rate) as chain:
            exact = len(chain)
            chain._check()
        restate(layer(tmp_path), exact * 9 // 10, clean=False)
        with open_filter(tmp_path, 300_000, error_rate) as chain:
            chain._check()
            # At p = 0.1 per layer, a fingerprint in ten sets no bit and is not counted, but those that do set more.
            assert exact * 0.99 <= len(chain) <= exact * 1.04
        restate(layer(tmp_path), exact, clean=True)


def test_the_noted_count_of_a_full_layer_outlives_a_kill(quick_path: Path) -> None:
    """It is exact, where every other recount falls short of the capacity, after which the layer would not look full."""
    for number in range(10):
        path = layer(filled(quick_path / str(number), 15_000, capacity=15_000, error_rate=1e-3))
        restate(path, 15_000, clean=False)
        with open_filter(path.parent, 15_000, 1e-3) as chain:
            assert len(chain) == 15_000
