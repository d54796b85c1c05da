"""The file that Scrapy's own filter leaves: every whole fingerprint in it is found, whatever stands around it."""

from __future__ import annotations

import random
from hashlib import sha1, sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import open_filter
from scrapy_bloom.old.files import directory
from scrapy_bloom.old.files.scrapy_seen import read_fingerprints
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def text(fingerprints: Iterable[bytes], end: bytes = b"\n") -> bytes:
    return b"".join(each.hex().encode() + end for each in fingerprints)


def binary(fingerprints: Iterable[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def found(tmp_path: Path, content: bytes) -> list[bytes]:
    path = tmp_path / "requests.seen"
    path.write_bytes(content)
    return list(read_fingerprints(path))


FORMATS = pytest.mark.parametrize("written", [text, binary])


@FORMATS
def test_either_format_is_read_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture, written: type) -> None:
    """Text up to Scrapy 2.18, binary from 2.19."""
    assert found(tmp_path, written(fingerprints(1_000))) == fingerprints(1_000)
    assert not caplog.records


def test_lines_may_end_as_on_windows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy opened the file in text mode, which writes CR LF there."""
    assert found(tmp_path, text(fingerprints(100), b"\r\n")) == fingerprints(100)
    assert not caplog.records


def test_both_formats_may_stand_in_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When Scrapy was upgraded in the middle of a crawl, the binary records follow the lines."""
    assert found(tmp_path, text(fingerprints(100)) + binary(fingerprints(100, start=100))) == fingerprints(200)
    assert not caplog.records


@pytest.mark.parametrize("length", [1, 4, 8, 16, 32, 64, 255, 1000])
@FORMATS
def test_fingerprints_of_any_one_length_are_read(tmp_path: Path, written: type, length: int) -> None:
    """A custom fingerprinter makes fingerprints of its own length."""
    random_ = random.Random(length)
    expected = [random_.randbytes(length) for _ in range(50)]
    assert found(tmp_path, written(expected)) == expected


@FORMATS
def test_fingerprints_of_several_lengths_are_read(tmp_path: Path, written: type) -> None:
    """A custom fingerprinter may make fingerprints of a few lengths."""
    expected = [(sha1 if number % 3 else sha256)(b"%d" % number).digest() for number in range(300)]
    assert found(tmp_path, written(expected)) == expected


def test_an_empty_file_has_no_fingerprints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl that was killed early leaves one, which is nothing to warn about."""
    assert found(tmp_path, b"") == []
    assert not caplog.records


def test_garbage_has_no_fingerprints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is counted in one warning."""
    assert found(tmp_path, b"\0" * 5_000) == []
    assert caplog.messages == [
        (
            f"{tmp_path / 'requests.seen'}: 5000 of 5000 bytes belong to no whole fingerprint (a process was killed "
            "while it wrote). What they stood for may be fetched again."
        )
    ]


@FORMATS
def test_a_torn_tail_costs_its_own_record_only(tmp_path: Path, written: type) -> None:
    """Cut at every byte offset, the file yields each record that is whole."""
    whole = written(fingerprints(6))
    record = len(whole) // 6
    for length in range(len(whole)):
        expected = fingerprints(length // record)
        # A last line without its end has all of its digits.
        lacks_only_its_end = written is text and length % record == record - 1
        torn_end = fingerprints(length // record + 1) if lacks_only_its_end else expected
        assert found(tmp_path, whole[:length]) in (expected, torn_end), length


# Not text after binary: Scrapy before 2.19 does not start on a binary file.
@pytest.mark.parametrize(("written", "after"), [(text, text), (text, binary), (binary, binary)])
def test_a_torn_record_in_the_middle_costs_itself_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, written: type, after: type
) -> None:
    """A crawl that was killed and resumed goes on behind the torn record, at every offset within it."""
    before, torn, rest = fingerprints(30), fingerprints(1, start=30), fingerprints(30, start=40)
    for length in range(1, len(written(torn)) - 1):
        caplog.clear()
        content = written(before) + written(torn)[:length] + after(rest)
        assert found(tmp_path, content) == before + rest, length
        assert f": {length} of {len(content)} bytes belong to no whole fingerprint" in caplog.text


@FORMATS
def test_a_torn_record_at_the_very_beginning_misleads_nobody(tmp_path: Path, written: type) -> None:
    """The length of the fingerprints is not taken from the first record alone."""
    torn, rest = fingerprints(1), fingerprints(30, start=1)
    for length in range(1, len(written(torn)) - 1):
        assert found(tmp_path, written(torn)[:length] + written(rest)) == rest, length


def test_a_block_of_zeros_costs_what_it_covers(tmp_path: Path) -> None:
    """A power failure may leave zeros where a block of the file was."""
    before, rest = fingerprints(30), fingerprints(30, start=40)
    for length in (1, 2, 3, 19, 20, 21, 22, 44, 4096):
        assert found(tmp_path, binary(before) + bytes(length) + binary(rest)) == before + rest, length


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    runs=st.lists(
        st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    ),
)
def test_every_whole_record_is_found_between_torn_ones(
    tmp_path: Path, seed: int, runs: list[tuple[bool, int, int]]
) -> None:
    """Any number of crawls, each with some records and a torn one, text before binary: whole ones are found."""
    random_ = random.Random(seed)

    def fresh() -> bytes:
        # Chance makes one torn record in 65,536 swallow the next; this takes the chance out of the test.
        return bytes(random_.randrange(1, 256) for _ in range(20))

    content, whole = b"", []
    for is_binary, count, torn in sorted(runs):
        written = binary if is_binary else text
        added = [fresh() for _ in range(count)]
        whole += added
        content += written(added) + written([fresh()])[: min(torn, 20)]
    # What is common tells the length: eight torn lines, each cut at the same place, are not to be the majority.
    content = text([b"\1" * 20] * 100) + content
    assert set(whole) <= set(found(tmp_path, content))


def seen_by_scrapy(directory: Path, urls: Iterable[str]) -> list[bytes]:
    """Run *urls* through Scrapy's own filter, with *directory* for its job directory."""
    fingerprinter = RequestFingerprinter()
    requests = [Request(url) for url in urls]
    theirs = RFPDupeFilter(str(directory), fingerprinter=fingerprinter)
    for request in requests:
        theirs.request_seen(request)
    theirs.close("finished")
    return [fingerprinter.fingerprint(request) for request in requests]


def test_what_the_installed_scrapy_writes_is_imported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job directory of Scrapy's own filter is taken over whole, and its file stays as it was."""
    caplog.set_level("INFO", "scrapy_bloom")
    added = seen_by_scrapy(tmp_path, (f"https://example.com/{number}" for number in range(500)))
    seen = tmp_path / "requests.seen"
    before = seen.read_bytes()
    with open_filter(tmp_path / "requests.bloom", 100, import_from=seen) as chain:
        assert all(each in chain for each in added)
        assert len(chain) == 500
        chain._check()
    assert seen.read_bytes() == before
    assert caplog.messages == [f"Imported 500 fingerprints of Scrapy's own filter from {seen}"]


def test_a_file_that_was_upgraded_in_the_middle_is_imported(tmp_path: Path) -> None:
    """What an older Scrapy left as text and the installed one continued is known, all of it."""
    seen = tmp_path / "requests.seen"
    seen.write_bytes(text(fingerprints(300)) + text(fingerprints(1, start=300))[:17])
    added = seen_by_scrapy(tmp_path, (f"https://example.com/{number}" for number in range(300)))
    with open_filter(tmp_path / "requests.bloom", 100, import_from=seen) as chain:
        known = [each for each in added if each in chain]
        assert all(each in chain for each in fingerprints(300))
    # Scrapy before 2.19 goes on in the torn line, and the line is then both of them.
    assert len(known) == 300


def test_an_import_happens_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What Scrapy's filter appends later is not looked at: from now on there is another filter."""
    seen = tmp_path / "requests.seen"
    seen.write_bytes(binary(fingerprints(10)))
    open_filter(tmp_path / "filter", import_from=seen).close()
    seen.write_bytes(binary(fingerprints(20)))
    caplog.set_level("INFO")
    with open_filter(tmp_path / "filter", import_from=seen) as chain:
        assert len(chain) == 10
    assert not caplog.records


def test_a_filter_that_is_there_imports_nothing(tmp_path: Path) -> None:
    """Only a new filter begins with Scrapy's fingerprints."""
    seen = tmp_path / "requests.seen"
    open_filter(tmp_path / "filter").close()
    seen.write_bytes(binary(fingerprints(10)))
    with open_filter(tmp_path / "filter", import_from=seen) as chain:
        assert len(chain) == 0


def test_without_a_file_there_is_nothing_to_import(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fresh job directory is no occasion for a message."""
    caplog.set_level("INFO")
    with open_filter(tmp_path / "filter", import_from=tmp_path / "requests.seen") as chain:
        assert len(chain) == 0
    assert not caplog.records


def test_an_import_shows_its_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of many millions takes its time, and the log says how far it is."""
    monkeypatch.setattr(directory, "_IMPORT_REPORT_INTERVAL", 100)  # a million takes seconds
    seen = tmp_path / "requests.seen"
    seen.write_bytes(binary(fingerprints(250)))
    caplog.set_level("INFO")
    open_filter(tmp_path / "filter", import_from=seen).close()
    assert caplog.messages == [
        f"Importing {seen}: 100 fingerprints so far",
        f"Importing {seen}: 200 fingerprints so far",
        f"Imported 250 fingerprints of Scrapy's own filter from {seen}",
    ]


def test_half_an_import_whose_source_is_gone_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was not imported will be fetched again, which nobody should have to find out."""
    seen = tmp_path / "requests.seen"
    open_filter(tmp_path / "filter").close()
    (tmp_path / "filter" / "importing").touch()
    open_filter(tmp_path / "filter", import_from=seen).close()
    assert caplog.messages == [
        (
            f"The import of {seen} into the filter in {tmp_path / 'filter'} was cut short, and the file is gone. What "
            "was not imported will be fetched again."
        )
    ]
