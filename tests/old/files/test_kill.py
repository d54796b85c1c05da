"""What is left after ``kill -9``: everything that was acknowledged."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import InUseError
from scrapy_bloom.old.filter.layer import Layer
from tests.old.support.damage import HEADER_BYTES, is_marked_clean, kill, knows, layer, running, wait_until
from tests.old.support.files_child import Done
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork there")


@pytest.mark.parametrize(
    ("seed", "sync_milliseconds", "inverse_rate"),
    [(1, 0, 1_000_000), (2, 5, 1_000_000), (3, 0, 100), (4, 5, 1_000_000_000)],
)
def test_a_kill_at_a_random_moment_forgets_nothing(
    tmp_path: Path, seed: int, sync_milliseconds: int, inverse_rate: int
) -> None:
    """Every fingerprint acknowledged before SIGKILL is known after reopening, in round after round of growth."""
    random_ = random.Random(seed)
    directory, done = tmp_path / "filter", Done(tmp_path / "done")
    capacity = 3
    for _ in range(6):
        target = done.count + round(10 ** random_.uniform(0, 3.5))
        with running("add", directory, capacity, inverse_rate, sync_milliseconds) as process:
            wait_until(lambda target=target: done.count >= target, process)  # type: ignore[misc]  # bound at once
            kill(process)
        acknowledged = done.count
        with open_filter(directory, capacity, 1 / inverse_rate) as chain:
            assert chain.was_unclean
            assert knows(chain, acknowledged)
            chain._check()
            # A layer of under 10,000 whose count was lost is taken for up to -ln(1 - x) / x = 1.7 times as full, with
            # x = ln 2. What the error rate takes and the one in flight may be missing.
            lost = 1 + 10 * max(1, acknowledged / inverse_rate)
            assert acknowledged - lost <= len(chain) <= 1.7 * (acknowledged + 2)
        with open_filter(directory, capacity, 1 / inverse_rate) as chain:
            assert not chain.was_unclean
            assert knows(chain, acknowledged)
    assert len(list(directory.glob("layer-*"))) >= 5, "the chain was to grow"
    assert not list(directory.glob("*.tmp"))


def test_the_count_after_a_kill_is_off_by_less_than_a_hundredth(tmp_path: Path) -> None:
    """In a layer of 10,000 or more the recount is near. Its standard error is 0.67 sqrt(n/k): 44.

    Eight of those, and what it misses at the edges, make less than one in a hundred.
    """
    done = Done(tmp_path / "done")
    with running("add", tmp_path / "filter", 100_000, 10_000, 0) as process:
        wait_until(lambda: done.count >= 57_000, process)
        kill(process)
    with open_filter(tmp_path / "filter", 100_000, 1e-4) as chain:
        assert len(chain) == pytest.approx(done.count, rel=0.01)
        assert knows(chain, done.count)
        chain._check()


@pytest.mark.slow
def test_a_kill_between_any_two_lines_leaves_whole_files_only(quick_path: Path) -> None:
    """Opening, growing twice and closing, killed before every single line of the store: what was done is known.

    A file is there whole or not at all, and a temporary one is gone after the next opening.
    """
    with running("step", quick_path, 7) as process:
        survivor = int(process.communicate()[0])
    assert survivor > 200, "there are more lines than that between opening and closing"
    seen_temporary = seen_layers = 0
    for deadline in range(1, survivor + 1):
        home = quick_path / str(deadline)
        if not (home / "done").exists():
            continue
        directory = home / "filter"
        seen_temporary += bool(list(directory.glob("*.tmp")))
        layers = list(directory.glob("layer-*.bloom"))
        seen_layers = max(seen_layers, len(layers))
        assert all(path.stat().st_size > HEADER_BYTES for path in layers)
        with open_filter(directory, 2) as chain:
            assert knows(chain, Done(home / "done").count), f"killed before line {deadline}"
            chain._check()
        assert not list(directory.glob("*.tmp"))
    assert seen_temporary > 10
    assert seen_layers == 3


def test_the_lock_names_its_holder_and_falls_with_it(tmp_path: Path) -> None:
    """A second process is refused with pid and host of the first, and let in as soon as that one is killed."""
    import platform

    with running("hold", tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        with pytest.raises(InUseError) as caught:
            open_filter(tmp_path)
        assert caught.value.found.startswith(f"is in use by process {process.pid} on {platform.node()}, since ")
        assert str(caught.value) == (
            f"The filter in {tmp_path} {caught.value.found}. Two crawls cannot share a job directory. Stop the other "
            "one, or give this one another JOBDIR."
        )
        kill(process)
    with open_filter(tmp_path) as chain:
        assert b"held" in chain


def test_a_layer_synced_before_the_kill_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full layers are marked clean by the thread that syncs, so that only the newest is recounted on reopening."""
    directory, done = tmp_path / "filter", Done(tmp_path / "done")
    with running("add", directory, 1_000, 1_000_000, 2) as process:
        wait_until(
            lambda: layer(directory, 3).exists() and all(is_marked_clean(layer(directory, i)) for i in (0, 1, 2))
        )
        kill(process)
    layers = sorted(directory.glob("layer-*.bloom"))
    assert not is_marked_clean(layers[-1])
    in_use = [path for path in layers if not is_marked_clean(path)]
    counted = []
    recount = Layer.recount

    def spy(self: Layer) -> None:  # the real recount, and a note of it: how often it ran shows nowhere else
        counted.append(self.spec.index)
        recount(self)

    monkeypatch.setattr(Layer, "recount", spy)
    with open_filter(directory, 1_000) as chain:
        assert knows(chain, done.count)
    assert counted == list(range(len(layers)))[-len(in_use) :]
    assert not {0, 1, 2} & set(counted)


def test_an_import_that_was_killed_begins_anew_and_ends_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half an import is not taken for a whole one."""
    seen = tmp_path / "requests.seen"
    seen.write_bytes(b"".join(b"\0\x14" + each for each in fingerprints(5_000)))
    directory = tmp_path / "requests.bloom"
    with running("import_some", directory, 300) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        kill(process)
    assert (directory / "importing").exists()
    with open_filter(directory, 10) as half:
        assert 500 < len(half) < 4_000, "the process was to be killed in the middle"
    caplog.set_level("INFO")
    with open_filter(directory, 10, import_from=seen) as chain:
        assert knows(chain, 5_000)
    assert caplog.messages[-1].startswith("Imported ")
    assert not (directory / "importing").exists()
