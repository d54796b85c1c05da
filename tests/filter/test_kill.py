"""What is left after ``kill -9``, and on a full disk: everything that was acknowledged."""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom.errors import InUseError
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.filter.inspect import inspect_directory
from tests.filter.damage import CAPACITY, STEP, TOTAL, Done, fingerprint, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no RLIMIT_FSIZE there")


def test_a_kill_at_any_moment_forgets_nothing(tmp_path: Path) -> None:
    """Every fingerprint acknowledged before SIGKILL is known after reopening, those taken back are new, and the
    watermark is the last that was set, in round after round of growth. While the process runs, the lock names it."""
    directory, done, random_ = tmp_path / "filter", Done(tmp_path / "done"), random.Random(7)
    for steps in (1, 3, 5, 9, 30, 70):
        with running("add", directory) as process:
            assert process.stdout is not None
            assert process.stdout.read(steps)
            with pytest.raises(InUseError, match=f"process {process.pid} on {platform.node()}"):
                open_filter(directory)
            assert inspect_directory(directory).is_in_use
            moment = done.count + random_.randrange(STEP)
            while done.count < moment and process.poll() is None:
                pass
        described = inspect_directory(directory, thorough=True)
        assert (described.is_clean, described.is_in_use, described.damage) == (False, False, ())
        with open_filter(directory, CAPACITY) as chain:
            count = done.count
            assert 0 <= chain.watermark - count <= 1
            assert described.watermark == chain.watermark
            assert described.urls == len(chain)
            for number in range(count):
                assert (fingerprint(number) in chain) is (number % 10 != 0)
            assert len(chain) == pytest.approx(0.9 * count, abs=20 + 0.03 * count)
        assert inspect_directory(directory).is_clean
        with open_filter(directory, CAPACITY) as chain:
            chain.watermark = count  # the next process begins there
    assert done.count > 118 * STEP
    assert len(list(directory.glob("layer-*"))) >= 4, "the chain was to grow"


def crawl_on_a_full_disk(directory: Path, when: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.filter.damage", when, str(directory)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(process.stdout) if process.returncode == 0 else {}  # -7 would be SIGBUS
    return {"stderr": process.stderr, **told}


def test_a_layer_without_room_lives_in_memory(tmp_path: Path) -> None:
    """A full disk does not stop the crawl: one ERROR says so, all is known until the end, and nothing past the last
    file counts as synced. That layer and later ones are lost in the end; what was before them is known to the next
    process."""
    told = crawl_on_a_full_disk(tmp_path / "filter", "later")
    assert told["known"]
    assert told["log"] == ["ERROR"]
    assert told["synced"] < TOTAL
    assert told["after"] == told["on_disk"]
    assert told["known_after"]
    assert told["watermark"] == TOTAL, "a database older than that is refused all the same"


def test_a_filter_cannot_be_begun_without_room(tmp_path: Path) -> None:
    """At the very start there is no crawl to save: an error names the directory, and nothing is left behind."""
    told = crawl_on_a_full_disk(tmp_path / "filter", "start")
    assert "UnusableError" in told["stderr"]
    assert str(tmp_path / "filter") in told["stderr"]
    assert [path.name for path in (tmp_path / "filter").iterdir()] == ["lock"]
