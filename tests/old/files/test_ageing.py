from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import DamagedError
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files import merge as merging
from scrapy_bloom.old.files.inspect import inspect
from tests.old.filter.test_ageing import AGE, Clock, fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_bloom.old.filter.chain import ScalableBloomFilter


def opened(directory: Path, clock: Clock, **options: object) -> ScalableBloomFilter:
    return open_filter(directory, 80, 1e-6, max_age=AGE, clock=clock, **options)  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.bloom"))


def test_old_layers_leave_the_disk_while_the_crawl_runs_and_when_it_comes_back(tmp_path: Path) -> None:
    """Files are deleted as soon as they are too old; a filter opened after the whole age is empty, and goes on."""
    clock = Clock()
    with opened(tmp_path, clock) as chain:
        for number in range(90):
            clock.now += AGE / 80
            assert chain.add(fingerprint(number))
        assert names(tmp_path)[0] > "layer-000.bloom"
        assert len(names(tmp_path)) == len(chain.layers) <= 9
    with opened(tmp_path, clock) as chain:
        assert fingerprint(89) in chain
        assert fingerprint(0) not in chain
    last = names(tmp_path)[-1]
    clock.now += AGE
    with opened(tmp_path, clock) as chain:
        assert len(chain) == 0
        assert len(names(tmp_path)) == 1
        assert names(tmp_path)[0] > last
        assert chain.add(fingerprint(89))


def test_layers_dropped_in_time_are_no_damage_and_those_lost_are(tmp_path: Path) -> None:
    """A filter whose oldest layers were dropped is sound, without the setting, too; one that lacks another is not."""
    clock = Clock()
    with opened(tmp_path, clock) as chain:
        for number in range(120):
            clock.now += AGE / 80
            chain.add(fingerprint(number))
        known = [number for number in range(120) if fingerprint(number) in chain]
    assert inspect(tmp_path, read_bits=True).findings == ()
    with open_filter(tmp_path) as kept:  # the setting was taken out again: nothing more is dropped
        assert all(fingerprint(number) in kept for number in known)
    oldest = layout.layer_paths(tmp_path)[0]
    oldest.unlink()
    with pytest.raises(DamagedError, match=oldest.name):
        opened(tmp_path, clock)
    assert any(oldest.name in finding for finding in inspect(tmp_path).findings)


CHILD = """
import os, signal, sys
from pathlib import Path
from scrapy_bloom import open_filter
from scrapy_bloom.old.files import directory
from tests.old.filter.test_ageing import AGE, Clock, fingerprint

clock = Clock()
chain = open_filter(sys.argv[1], 80, 1e-6, max_age=AGE, clock=clock)
for number in range(40):
    clock.now += AGE / 80
    chain.add(fingerprint(number))
Path.unlink = lambda self, missing_ok=False: os.kill(os.getpid(), signal.SIGKILL)
for number in range(40, 200):
    clock.now += AGE / 80
    chain.add(fingerprint(number))
"""


def test_a_kill_before_a_file_is_deleted_leaves_a_sound_filter(tmp_path: Path) -> None:
    """What was about to be deleted is deleted by the next process, which knows the rest."""
    killed = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = names(tmp_path)
    assert before[0] == "layer-000.bloom"
    clock = Clock()
    clock.now += AGE / 80 * 81
    with opened(tmp_path, clock) as chain:
        assert names(tmp_path)[0] == "layer-001.bloom"
        assert fingerprint(60) in chain
        assert fingerprint(0) not in chain
        chain._check()


def test_an_old_filter_that_never_forgot_begins_to(tmp_path: Path) -> None:
    """With the setting switched on later, layers are as old as they are, and the rate covers old and new ones."""
    clock = Clock()
    with open_filter(tmp_path, 80, 1e-6, clock=clock) as chain:
        for number in range(200):
            chain.add(fingerprint(number))
        layers = len(chain.layers)
    clock.now += AGE / 2
    with opened(tmp_path, clock) as chain:
        assert all(fingerprint(number) in chain for number in range(200))
        assert chain.add(fingerprint(200))
        assert len(chain.layers) == layers + 1
        assert chain.error_rate >= sum(layer.error_rate for layer in chain.layers)
        clock.now += AGE / 2
        assert fingerprint(0) not in chain
        assert fingerprint(200) in chain


def test_layers_have_numbers_beyond_a_thousand(tmp_path: Path) -> None:
    """A job that has crawled for years opens as any other: layer 1000 follows layer 999."""
    clock = Clock()
    with opened(tmp_path, clock) as chain:
        chain.add(b"1")
    (path,) = layout.layer_paths(tmp_path)
    header = layerfile.read_header(path)
    path.unlink()
    spec = type(header.spec)(**{**header.spec.__dict__, "index": 999})
    layerfile.create(layout.layer_path(tmp_path, 999), spec, header.origin, oldest=999).close()
    with opened(tmp_path, clock) as chain:
        clock.now += AGE / 2
        chain.add(b"2")
    assert names(tmp_path) == ["layer-1000.bloom", "layer-999.bloom"]
    with opened(tmp_path, clock) as chain:
        assert b"2" in chain
        assert [layer.spec.index for layer in chain.layers] == [999, 1000]


def test_a_full_disk_does_not_keep_what_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that wait in memory for room grow old there, too, and the filter is sound once there is room."""
    clock = Clock()
    chain = opened(tmp_path, clock)
    create = layerfile.create

    def refuse(path: Path, *_: object, **__: object) -> layerfile.LayerFile:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(layerfile, "create", refuse)
    for number in range(200):
        clock.now += AGE / 80
        assert chain.add(fingerprint(number))
    assert fingerprint(0) not in chain
    assert len(chain.layers) <= 9
    monkeypatch.setattr(layerfile, "create", create)
    chain.sync()
    chain.close()
    with opened(tmp_path, clock) as chain:
        assert all(fingerprint(number) in chain for number in range(140, 200))
        assert fingerprint(0) not in chain


def merged_with(directory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a filter without a layer of its own that is older than what was merged into it."""
    with open_filter(directory / "source", 80, 1e-6, clock=clock) as chain:
        chain.add(fingerprint(0))
        chain.add(fingerprint(1))
    monkeypatch.setattr(merging.time, "time", clock)
    clock.now += AGE / 2
    merging.merge(directory / "job", [directory / "source"], merging.Design(80, 1e-6, 2.0, {}))
    return directory / "job" / "requests.bloom"


def test_what_was_merged_in_and_grew_too_old_counts_as_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever remembers that a link was seen is told, although no layer of the filter's own has gone."""
    clock = Clock()
    with opened(merged_with(tmp_path, clock, monkeypatch), clock) as chain:
        before = chain.drops()
        assert fingerprint(0) in chain
        clock.now += AGE / 2
        assert chain.drops() != before
        assert fingerprint(0) not in chain


def test_what_was_taken_back_stays_so_when_a_merged_filter_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged filter that was too old is there again without the setting. A page that failed is not seen in it then,
    unless it has been accepted since."""
    clock = Clock()
    directory = merged_with(tmp_path, clock, monkeypatch)
    with open_filter(directory, 80, 1e-6, clock=clock) as chain:
        assert chain.forget(fingerprint(0))
        assert chain.forget(fingerprint(1))
    clock.now += AGE
    with opened(directory, clock) as chain:
        assert len(chain) == 0
        assert chain.add(fingerprint(1))
        assert not chain.add(fingerprint(1))
        assert len(chain) == 1
        chain._check()
    with open_filter(directory, 80, 1e-6, clock=clock) as chain:
        assert fingerprint(0) not in chain
        assert fingerprint(1) in chain


def test_a_kill_after_a_drop_leaves_nothing_taken_back_that_is_gone(tmp_path: Path) -> None:
    """Fingerprints that were taken back and left with their layer do not count, whenever the process died."""
    clock = Clock()
    with opened(tmp_path, clock) as chain:
        for number in range(3):
            chain.add(fingerprint(number))
            chain.forget(fingerprint(number))
    kept = (tmp_path / layout.FORGOTTEN_NAME).read_bytes()
    clock.now += AGE
    with opened(tmp_path, clock):
        (tmp_path / layout.FORGOTTEN_NAME).write_bytes(kept)  # as before the drop was noted there
    with opened(tmp_path, clock) as chain:
        assert len(chain) == chain.forgotten == 0
        assert chain.add(fingerprint(0))
        assert not chain.add(fingerprint(0))


def test_a_filter_whose_new_layers_never_found_room_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one file that is left, whose layer was dropped, has nothing of it; what comes then is kept, run after run."""
    clock = Clock()

    def create(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    chain = opened(tmp_path, clock)
    chain.add(fingerprint(0))
    with monkeypatch.context() as full:
        full.setattr(layerfile, "create", create)
        for number in range(1, 4):
            clock.now += AGE / 2
            chain.add(fingerprint(number))
        assert chain.layers[0].spec.index > 0
        chain.close()
    with open_filter(tmp_path) as chain:
        assert not any(fingerprint(number) in chain for number in range(4))
    for number in range(4):
        with opened(tmp_path, clock) as chain:
            assert chain.add(fingerprint(number))
            assert len(chain) == number + 1
    assert inspect(tmp_path, read_bits=True).findings == ()
