"""The filter in a directory: when it is on disk, who may open it, and what opening it may meet."""

import errno
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.filter import directory as directories
from scrapy_bloom.filter import layerfile
from scrapy_bloom.filter.directory import inspect_directory, open_filter
from scrapy_bloom.filter.layer import LayerSpec
from scrapy_bloom.filter.layerfile import HEADER_BYTES, Header, LayerFile, create
from scrapy_bloom.filter.lock import lock_directory
from tests.filter.damage import filled, fingerprint, knows, layer


def test_a_thread_syncs_while_the_crawl_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watermark that was set comes out as synced by itself, again and again, while layers fill and follow."""
    number = 0
    with monkeypatch.context() as patch:
        patch.setattr(directories, "SYNC_INTERVAL", 0.001)
        chain = open_filter(tmp_path, 500)
    with chain:
        while chain.synced < 5_000:
            chain.add(fingerprint(number))
            number += 1
            chain.watermark = number
            assert chain.synced <= chain.watermark
        described = inspect_directory(tmp_path)
        assert [each.is_clean for each in described.layers][:2] == [True, True]
        assert not described.is_clean
        assert described.watermark == number
    with open_filter(tmp_path, 500) as chain:
        assert knows(chain, number)
        assert (len(chain), chain.watermark, chain.synced) == (number, number, 0)
        chain.sync()
        assert chain.synced == number


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    """Filter and commands share one lock, which closing releases, a refused opening too; looking takes none."""
    with open_filter(tmp_path / "filter") as chain:
        chain.add(b"key")
        for attempt in (
            lambda: open_filter(tmp_path / "filter"),
            lambda: lock_directory(tmp_path / "filter").__enter__(),
        ):
            with pytest.raises(InUseError, match=str(os.getpid())):
                attempt()
        assert inspect_directory(tmp_path / "filter").is_in_use
    with lock_directory(tmp_path / "filter"), pytest.raises(InUseError):
        open_filter(tmp_path / "filter")
    with open_filter(tmp_path / "filter") as chain:
        assert b"key" in chain
    assert not inspect_directory(tmp_path / "filter").is_in_use


def test_a_description_agrees_with_the_filter_and_changes_nothing(tmp_path: Path) -> None:
    """Counts, sizes, rates, id and watermark are those that the filter has; of nothing, there is nothing."""
    filled(tmp_path / "filter", 5_000, capacity=1_000)
    before = {path: path.read_bytes() for path in (tmp_path / "filter").iterdir()}
    described = inspect_directory(tmp_path / "filter", thorough=True)
    assert {path: path.read_bytes() for path in (tmp_path / "filter").iterdir()} == before
    assert (described.is_clean, described.is_in_use) == (True, False)
    assert described.owner.startswith(f"process {os.getpid()} ")
    with open_filter(tmp_path / "filter", 1_000, 1e-3) as chain:
        assert [(each.spec, each.count, each.created) for each in described.layers] == [
            (each.spec, each.count, each.created) for each in chain.layers
        ]
        assert (described.urls, described.nbytes, described.forgotten) == (len(chain), chain.nbytes, 0)
        assert described.expected_lost == chain.expected_false_positives()
        assert (described.chain_id, described.watermark) == (chain.chain_id, 5_000)
        assert described.layers[-1].chain_error_rate == 1e-3
    nothing = inspect_directory(tmp_path / "nothing", thorough=True)
    assert (nothing.layers, nothing.urls, nothing.damage) == ((), 0, ())
    assert not (tmp_path / "nothing").exists()


def test_the_space_of_a_layer_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hole, also where the file system cannot allocate: a bit set in a mapped hole on a full disk would end the
    process with SIGBUS. A layer that cannot fit takes no space on the way to failing."""
    header = Header(
        LayerSpec.smallest(index=0, capacity=600_000, error_rate=1e-6, probes=20, seed=1), 1e-6, 0.0, "00" * 16
    )
    for number in (None, errno.EOPNOTSUPP):
        if number is not None:  # patched, as no file system at hand refuses
            monkeypatch.setattr(os, "posix_fallocate", failing(OSError(number, "no")), raising=False)
        create(tmp_path / "layer", header).close()
        status = (tmp_path / "layer").stat()
        assert status.st_size == 4096 + header.spec.nbytes
        assert status.st_blocks * 512 >= status.st_size
        assert (tmp_path / "layer").read_bytes()[4096:] == bytes(header.spec.nbytes)
    huge = LayerSpec.smallest(index=1, capacity=10**13, error_rate=1e-6, probes=20, seed=1)
    with pytest.raises(OSError, match="space"):
        create(tmp_path / "huge", Header(huge, 1e-6, 0.0, "00" * 16))
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


def failing(error: OSError) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("owner", "name"),
    [(os, "fsync"), (Path, "open"), (Path, "replace"), (os, "open")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_filter_begins_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """Whatever the system refuses is one error of ours that names the directory, leaves no temporary file and no lock,
    and the next opening works."""
    # Patched, as real disks fail at allocating only (see test_kill.py), and the other steps can fail as well.
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(OSError(errno.EIO, os.strerror(errno.EIO))), raising=False)
        with pytest.raises(UnusableError, match=str(tmp_path / "filter")):
            open_filter(tmp_path / "filter")
    assert not list((tmp_path / "filter").glob("layer-*"))
    with open_filter(tmp_path / "filter") as chain:
        assert chain.add(b"key")
    with pytest.raises(UnusableError, match=str(tmp_path / "filter" / "lock")):
        open_filter(tmp_path / "filter" / "lock")


def test_a_disk_that_fails_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """forget() and close() do not fail, and an ERROR names what may be lost; the run itself loses nothing."""
    chain = open_filter(tmp_path, 10)
    chain.add(b"key")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing(OSError(errno.EIO, "broken")))
        assert chain.forget(b"key")
    assert b"key" not in chain
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(OSError(errno.EIO, "broken")))
        chain.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert not inspect_directory(tmp_path).is_clean
    with open_filter(tmp_path, 10) as chain:
        assert b"key" in chain
    assert layer(tmp_path).exists()


def test_a_power_failure_leaves_no_count_that_is_too_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header on disk says that the filter is in use before a bit is set: the count of a closed one is believed."""
    with open_filter(tmp_path / "a", 1_000) as chain:
        chain.update(map(fingerprint, range(300)))
    [path] = (tmp_path / "a").glob("layer-*")
    on_disk, fsync = [path.read_bytes()], LayerFile.fsync

    def recording(file: LayerFile) -> None:
        fsync(file)
        on_disk.append(path.read_bytes())

    monkeypatch.setattr(LayerFile, "fsync", recording)
    with open_filter(tmp_path / "a", 1_000) as chain:
        chain.update(map(fingerprint, range(600)))
        header, bits = on_disk[-1][:HEADER_BYTES], path.read_bytes()[HEADER_BYTES:]
    monkeypatch.undo()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / path.name).write_bytes(header + bits)
    with open_filter(tmp_path / "b", 1_000) as chain:
        assert 570 < len(chain) < 630  # estimated from the bits


def test_layers_that_follow_one_in_memory_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file behind one that is missing would look like damage, also when there is room again. The newest file has the
    watermark, and stays when it is too old and all younger layers are in memory."""
    now = time.time()
    with open_filter(tmp_path, 100, max_age=100, clock=lambda: now) as chain:
        chain.watermark = 7
        with monkeypatch.context() as patch:
            patch.setattr(layerfile, "create", failing(OSError(errno.ENOSPC, "No space left on device")))
            chain.update(map(fingerprint, range(200)))
        chain.update(map(fingerprint, range(2_000)))
        assert len(chain.layers) > 3
        now += 200
        chain.add(b"young")
        assert chain.watermark == 7
        chain.watermark = 8
    with open_filter(tmp_path, 100, clock=lambda: now) as chain:
        assert (len(chain.layers), chain.watermark) == (1, 8)


def test_a_filter_that_nothing_refers_to_lets_go_of_its_files(tmp_path: Path) -> None:
    """Opened twice in a process, the second call says that it is this process that has the filter; once the first is
    garbage, its fingerprints are there."""
    chain = open_filter(tmp_path, 100)
    chain.add(b"one")
    with pytest.raises(InUseError, match="this process"):
        open_filter(tmp_path, 100)
    del chain
    gc.collect()
    with open_filter(tmp_path, 100) as chain:
        assert b"one" in chain
        assert len(chain) == 1
