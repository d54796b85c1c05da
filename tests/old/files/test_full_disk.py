"""A disk without room: the crawl goes on, what is at risk is said, and no page is lost for it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("resource", reason="Windows has no RLIMIT_FSIZE")

TOTAL = 34_000


@pytest.fixture(params=["limit", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A directory whose files cannot grow any more once ``fill_disk`` has run, and how that is brought about."""
    if request.param == "limit":
        yield "limit", tmp_path / "filter"
        return
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.geteuid() != 0 or not mount or not umount:
        pytest.skip("mounting a tmpfs takes root on Linux")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield "tmpfs", tmp_path / "filter"
    finally:
        subprocess.run([umount, str(tmp_path)], check=True)


def crawl(disk: tuple[str, Path], when: str) -> dict[str, Any]:
    mode, directory = disk
    child = Path(__file__).parents[1] / "support" / "full_disk_child.py"
    process = subprocess.run(
        [sys.executable, str(child), f"{mode}:{when}", str(directory)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr  # -7 would be SIGBUS
    told: dict[str, Any] = json.loads(process.stdout)
    return told


def reason(disk: tuple[str, Path]) -> str:
    return os.strerror(errno.EFBIG if disk[0] == "limit" else errno.ENOSPC)


def no_room(disk: tuple[str, Path], index: int) -> str:
    return (
        rf"ERROR No room for layer {index} of the filter in {re.escape(str(disk[1]))} \({reason(disk)}\): it lives "
        r"in memory until there is\. Free [\d,]+ bytes\. If the process is killed before that, the URLs of this "
        r"layer will be fetched again\."
    )


def first_in_memory(told: dict[str, Any]) -> int:
    return int(re.findall(r"No room for layer (\d+)", told["log"][0])[0])


def test_a_full_disk_does_not_stop_the_crawl(disk: tuple[str, Path]) -> None:
    """The next layers live in memory, an ERROR per layer says so, and each fingerprint is known until the end."""
    told = crawl(disk, "never")
    first = first_in_memory(told)
    assert told["all_known"]
    assert first == told["files"]
    assert len(told["log"]) == told["layers"] - first > 0
    for index, message in enumerate(told["log"], start=first):
        assert re.fullmatch(no_room(disk, index), message)


def test_layers_that_never_found_room_are_all_that_is_forgotten(disk: tuple[str, Path]) -> None:
    """Closing says of each how many URLs it held; a reopened filter knows every fingerprint before them, exactly."""
    told = crawl(disk, "never")
    first = first_in_memory(told)
    counts = []
    for index, message in enumerate(told["closing"], start=first):
        found = re.fullmatch(
            rf"ERROR Layer {index} of the filter in {re.escape(str(disk[1]))} never found room on disk\. Its (\d+) "
            r"URLs will be fetched again when the crawl is resumed\.",
            message,
        )
        assert found, message
        counts.append(int(found[1]))
    assert len(counts) == told["layers"] - first
    assert told["known"] == told["known_to"] == told["count"] == told["first_in_memory"] == TOTAL - sum(counts)


@pytest.mark.parametrize("when", ["room", "close"])
def test_layers_in_memory_are_written_out_when_there_is_room(disk: tuple[str, Path], when: str) -> None:
    """At the next checkpoint, at the latest on closing; after that the filter is as if there had always been room."""
    told = crawl(disk, when)
    first = first_in_memory(told)
    after = told["log" if when == "room" else "closing"]
    assert [message for message in after if message.startswith("WARNING")] == [
        f"WARNING Layer {index} of the filter has found room in {disk[1]} now"
        for index in range(first, first + len([m for m in told["log"] if "No room" in m]))
    ]
    assert not [message for message in told["closing"] if message.startswith("ERROR")]
    assert told["all_known"]
    assert told["known"] == told["count"] == TOTAL
    assert told["files"] == (told["layers"] if when == "room" else first)


def test_a_filter_cannot_be_begun_without_room(disk: tuple[str, Path]) -> None:
    """At the very start there is no crawl to save: an error says how much room it takes, and nothing is left behind."""
    told = crawl(disk, "start")
    assert told["files"] == []
    if disk[0] == "tmpfs":
        # Not even the note of who holds the lock finds room.
        assert told["error"] == (
            f"The filter's directory {disk[1]} cannot be used: {reason(disk)}. Check its "
            "owner, its permissions and the space on its disk."
        )
    else:
        assert re.fullmatch(
            rf"The filter in {re.escape(str(disk[1]))} cannot be begun: {reason(disk)}\. "
            r"It needs [\d,]+ bytes there, and [\d,]+ are free\. Make room, or lower BLOOM_CAPACITY, .*\.",
            told["error"],
        )
