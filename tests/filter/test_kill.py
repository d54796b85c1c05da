"""What is left after ``kill -9``, and on a full disk: everything that was acknowledged."""

import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.filter.directory import inspect_directory, open_filter
from tests.filter.damage import CAPACITY, STEP, adding, fingerprint, knows
from tests.support.processes import PROCESSES

resource = pytest.importorskip("resource", reason="no SIGKILL and no RLIMIT_FSIZE on Windows")


def test_a_kill_at_any_moment_forgets_nothing(tmp_path: Path) -> None:
    """Every fingerprint acknowledged before SIGKILL is known after reopening, those taken back are new, and the
    watermark is the last that was set, in round after round of growth. While the process runs, the lock names it."""
    directory, done, random_ = tmp_path / "filter", PROCESSES.Value("Q", 0, lock=False), random.Random(7)
    for steps in (1, 5, 30, 80):
        begin, moment = done.value, done.value + steps * STEP + random_.randrange(STEP)
        with adding(directory, done) as process:
            while done.value == begin and process.is_alive():
                pass
            with pytest.raises(InUseError, match=f"process {process.pid} on {platform.node()}"):
                open_filter(directory)
            assert inspect_directory(directory).is_in_use
            while done.value < moment and process.is_alive():
                pass
        described = inspect_directory(directory, thorough=True)
        assert (described.is_clean, described.is_in_use, described.damage) == (False, False, ())
        with open_filter(directory, CAPACITY) as chain:
            count = done.value
            assert 0 <= chain.watermark - count <= 1
            assert described.watermark == chain.watermark
            assert described.urls == len(chain)
            for number in range(count):
                assert (fingerprint(number) in chain) is (number % 10 != 0)
            assert len(chain) == pytest.approx(0.9 * count, abs=20 + 0.03 * count)
        assert inspect_directory(directory).is_clean
        with open_filter(directory, CAPACITY) as chain:
            chain.watermark = count  # the next process begins there
    assert done.value > 116 * STEP
    assert len(list(directory.glob("layer-*"))) >= 4, "the chain was to grow"


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 150 kB, a size between those of the second and the third layer."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_layer_without_room_lives_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk does not stop the crawl: one ERROR says so, all is known until the end, and nothing past the last
    file counts as synced. That layer and later ones are lost in the end; what was before them is known to the next
    process."""
    total, on_disk = 70_000, 0
    with full_disk(), open_filter(tmp_path, 20_000, 1e-3) as chain:
        for number in range(total):
            chain.add(fingerprint(number))
            if caplog.records and not on_disk:
                on_disk = len(chain) - 1
        chain.watermark = total
        assert knows(chain, total)
        chain.sync()
        assert chain.synced < total
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with open_filter(tmp_path, 20_000, 1e-3) as chain:
        assert len(chain) == on_disk > 50_000
        assert knows(chain, on_disk)
        assert chain.watermark == total, "a database older than that is refused all the same"


def test_a_filter_cannot_be_begun_without_room(tmp_path: Path) -> None:
    """At the very start there is no crawl to save: an error names the directory, and nothing is left behind."""
    with full_disk(), pytest.raises(UnusableError, match=str(tmp_path)):
        open_filter(tmp_path, 200_000, 1e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
