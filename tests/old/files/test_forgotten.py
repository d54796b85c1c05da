"""The file of fingerprints that were taken back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import DamagedError
from scrapy_bloom.old.files.forgotten import ForgottenFile

if TYPE_CHECKING:
    import os

fingerprints = st.binary(max_size=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forgotten"


def written(path: Path, *names: bytes) -> bytes:
    file = ForgottenFile(path)
    for name in names:
        file.add(name)
    file.close()
    return path.read_bytes()


@given(st.lists(st.tuples(st.booleans(), fingerprints) | st.none(), max_size=30))
def test_the_file_stands_for_the_set(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, bytes] | None]
) -> None:
    """Whatever is taken back, accepted again and reopened, the fingerprints are those of a set."""
    path = tmp_path_factory.mktemp("forgotten") / "forgotten"
    file, model = ForgottenFile(path), set[bytes]()
    for step in steps:
        if step is None:
            file.close()
            file = ForgottenFile(path)
        elif step[0]:
            file.add(step[1])
            model.add(step[1])
        else:
            file.discard(step[1])
            model.discard(step[1])
        assert file.fingerprints == model
    file.close()


def test_the_bytes_are_those_of_the_documentation(path: Path) -> None:
    """docs/forgetting.md shows a record as it is written."""
    page = (Path(__file__).parents[3] / "docs" / "forgetting.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n((?:[0-9a-f]{2} ?)+)\n```", page)
    assert shown == [written(path, b"abc").hex(" ")]


def test_a_torn_tail_is_dropped_at_every_length(path: Path) -> None:
    """After a power failure, the whole records count and the next ones can be appended."""
    whole = written(path, b"first", b"second")
    first = len(whole) - len(written(path.with_name("other"), b"second"))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        file = ForgottenFile(path)
        assert file.fingerprints == ({b"first"} if length >= first else set())
        file.add(b"third")
        file.close()
        assert ForgottenFile(path).fingerprints == ({b"first", b"third"} if length >= first else {b"third"})


def test_zeros_at_the_end_are_dropped(path: Path) -> None:
    """Some file systems leave zeros where a power failure hit."""
    path.write_bytes(written(path, b"key") + bytes(30))
    assert ForgottenFile(path).fingerprints == {b"key"}


def test_every_flipped_byte_before_the_end_is_noticed(path: Path) -> None:
    """A record that contradicts its checksum stops the start, or, if its length lies, what follows it is torn."""
    whole = written(path, b"first", b"second", b"third")
    for at in range(len(whole) // 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = ForgottenFile(path).fingerprints
        except DamagedError as error:
            assert error.where == str(path)  # noqa: PT017 - either outcome is right, by where the byte is
        else:
            assert at in (1, 2), "only a length that leads beyond the end looks like a torn tail"
            assert found == set()


def test_void_records_are_dropped_on_opening(path: Path) -> None:
    """The file does not grow with every failure of a long job."""
    file = ForgottenFile(path)
    for _ in range(100):
        file.add(b"key")
        file.discard(b"key")
    file.add(b"kept")
    file.close()
    assert ForgottenFile(path).fingerprints == {b"kept"}
    assert path.stat().st_size == len(written(path.with_name("other"), b"kept"))


def test_a_reopened_filter_has_forgotten_the_same_fingerprints(tmp_path: Path) -> None:
    """What was taken back is new in a later run, once."""
    with open_filter(tmp_path, 100, 1e-3) as seen:
        for fingerprint in (b"a", b"b", b"c"):
            seen.add(fingerprint)
        assert seen.forget(b"a")
        assert seen.forget(b"b")
        assert not seen.forget(b"never added")
        assert seen.add(b"b")
        assert len(seen) == 2
    with open_filter(tmp_path, 100, 1e-3) as seen:
        seen._check()
        assert b"a" not in seen
        assert b"b" in seen
        assert (seen.forgotten, len(seen)) == (1, 2)
        assert [seen.add(b"a") for _ in range(2)] == [True, False]
        assert (seen.forgotten, len(seen)) == (0, 3)


_FORGETTING = """
import os, signal, sys
from scrapy_bloom import open_filter
seen = open_filter(sys.argv[1], 100, 1e-3)
for number in range(20):
    seen.add(b"%d" % number)
for number in range(10):
    seen.forget(b"%d" % number)
seen.add(b"3")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_brings_nothing_back(tmp_path: Path) -> None:
    """From the return of forget() on it is forgotten for good, and from that of add() on accepted for good."""
    killed = subprocess.run([sys.executable, "-c", _FORGETTING, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with open_filter(tmp_path, 100, 1e-3) as seen:
        assert [number for number in range(20) if b"%d" % number not in seen] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_full_disk_is_said_and_changes_nothing_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """forget() does not fail, and an ERROR says what may be lost when the process ends."""
    with open_filter(tmp_path, 100, 1e-3) as seen:
        seen.add(b"key")

        def full(descriptor: int, data: os.PathLike[str]) -> int:
            raise OSError(28, "No space left on device")

        # A disk that is full for 15 bytes and not for the rest of the test cannot be had.
        with monkeypatch.context() as patched:
            patched.setattr("os.write", full)
            assert seen.forget(b"key")
        assert b"key" not in seen
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert message == (
        f"{tmp_path / 'forgotten'} could not be written (No space left on device). In this run the change counts; "
        "after it, a page that failed may be taken for seen."
    )


def test_a_record_written_by_half_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fills up within a record, the file ends with the last whole one."""
    import os

    before = written(path, b"first")
    file = ForgottenFile(path)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr("os.write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
        with pytest.raises(OSError, match="space"):
            file.add(b"second")
    assert path.read_bytes() == before
    file.close()


@pytest.mark.parametrize("record", [0, 1, 2])
@pytest.mark.parametrize("bit", range(16))
def test_a_wrong_length_is_refused_wherever_it_is(path: Path, record: int, bit: int) -> None:
    """A flipped bit in the length of any record is damage, also where it reaches past the end: dropping what follows
    would take forgotten pages for seen."""
    data = bytearray(written(path, b"first", b"second", b"third"))
    data[(0, 12, 25)[record] + 1 + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        ForgottenFile(path)
    assert path.read_bytes() == data
