"""The chain in a job directory: what is kept, what is compared, who may open it, and when it is on disk."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import InUseError, KeySpaceError, UnusableError
from scrapy_bloom.old.files import layerfile
from scrapy_bloom.old.filter.chain import ScalableBloomFilter
from tests.old.support.damage import filled, is_marked_clean, knows, layer, wait_until
from tests.old.support.fingerprints import fingerprint, fingerprints

if TYPE_CHECKING:
    from pathlib import Path

SPACE = {"fingerprinter": "scrapy", "rules": "", "w3lib": "2.3.1"}


def sync_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scrapy-bloom-sync"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    capacity=st.integers(1, 8),
    error_rate=st.sampled_from([0.5, 1e-2, 1e-6, 1e-10]),
    runs=st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_a_reopened_filter_answers_as_one_that_was_never_closed(
    quick_path: Path, capacity: int, error_rate: float, runs: list[int]
) -> None:
    """Count and layers are exact, each fingerprint is known, and the invariants hold, over any number of runs."""
    directory = quick_path / str(len(list(quick_path.iterdir())))
    added: list[bytes] = []
    count = 0
    for number in runs:
        with open_filter(directory, capacity, error_rate) as chain:
            assert len(chain) == count
            assert not chain.was_unclean
            for each in fingerprints(number, start=len(added)):
                chain.add(each)
                added.append(each)
                chain._check()
            count = len(chain)
            assert all(each in chain for each in added)
            specs = [each.spec for each in chain.layers]
    with open_filter(directory, capacity, error_rate) as chain:
        assert [each.spec for each in chain.layers] == specs
        assert all(each in chain for each in added)


def test_files_and_memory_make_the_same_chain(tmp_path: Path) -> None:
    """Where the layers live changes neither their sizes nor the moment of growth."""
    with open_filter(tmp_path, 5, 1e-4, growth=3) as chain:
        memory = ScalableBloomFilter(5, 1e-4, growth=3)
        for each in fingerprints(100):
            assert chain.add(each) == memory.add(each)
        assert [(each.count, each.nbytes, each.capacity) for each in chain.layers] == [
            (each.count, each.nbytes, each.capacity) for each in memory.layers
        ]


def test_a_clean_end_is_nothing_to_warn_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After closing, the next opening has the exact count, and the log is silent."""
    caplog.set_level("INFO")
    filled(tmp_path, 1_000, capacity=100)
    with open_filter(tmp_path, 100) as chain:
        assert len(chain) == 1_000
        assert knows(chain, 1_000)
        assert not chain.was_unclean
    assert not caplog.records


def test_what_was_stored_wins_over_what_is_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Layers keep the design they were created with; capacity, error rate and growth apply to later layers."""
    with open_filter(filled(tmp_path, 20, capacity=10, error_rate=1e-3, growth=4), 10, 1e-3, growth=4) as chain:
        before = [each.spec for each in chain.layers]
    assert [spec.capacity for spec in before] == [10, 40]
    with open_filter(tmp_path, 300, 1e-2, growth=2) as chain:
        assert [each.spec for each in chain.layers] == before
        for each in fingerprints(100, start=20):
            chain.add(each)
        assert [each.spec for each in chain.layers[:2]] == before
        assert chain.layers[2].capacity == 300
        assert chain.layers[2].spec.probes == before[0].probes
        assert knows(chain, 120)
    assert not caplog.records, "a looser rate is kept by layers made for a tighter one"


def test_a_tighter_error_rate_cannot_be_had_from_layers_that_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Asking for a lower rate is warned about for as long as a layer made for a higher one is in the chain."""
    filled(tmp_path, 15, capacity=10, error_rate=1e-3)
    for run in range(2):
        with open_filter(tmp_path, 10, 1e-6) as chain:
            assert chain.error_rate > 1e-6
            for each in fingerprints(20, start=15 + 20 * run):
                chain.add(each)
            assert len(chain.layers) == 3
        assert caplog.messages == [
            (
                f"The filter in {tmp_path} was begun with an error rate of 0.001. Its 2 layers keep it; the rate of "
                "1e-06 that is set now applies to the layers to come."
            )
        ]
        caplog.clear()


@pytest.mark.parametrize(
    ("changed", "was", "now"),
    [
        ({"fingerprinter": "project.Own"}, {"fingerprinter": "scrapy"}, {"fingerprinter": "project.Own"}),
        ({"rules": "tracking"}, {"rules": ""}, {"rules": "tracking"}),
    ],
)
def test_another_key_space_is_refused(
    tmp_path: Path, changed: dict[str, str], was: dict[str, str], now: dict[str, str]
) -> None:
    """The error names what differs, both values, and three ways on."""
    filled(tmp_path, 5, capacity=10, key_space=SPACE)
    with pytest.raises(KeySpaceError) as caught:
        open_filter(tmp_path, key_space=SPACE | changed)
    (name,) = changed
    assert caught.value.differences == {name: (was[name], now[name])}
    assert str(caught.value) == (
        f"The filter in {tmp_path} was filled under other settings: {name} was {was[name]!r}, is now {now[name]!r}. "
        "Every URL would look new. Put the setting back as it was, or use another JOBDIR, "
        "or delete the directory to crawl all pages again."
    )
    assert is_marked_clean(layer(tmp_path)), "a refused filter is left as it was"
    with open_filter(tmp_path, key_space=SPACE) as chain:
        assert knows(chain, 5)


def test_another_w3lib_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A few URLs whose canonical form has changed are no reason to refuse a crawl: one warning says so."""
    filled(tmp_path, 50, capacity=10, key_space=SPACE)
    with open_filter(tmp_path, 10, key_space=SPACE | {"w3lib": "2.5.0"}) as chain:
        assert knows(chain, 50)
    assert caplog.messages == [
        (
            f"The filter in {tmp_path} was filled under w3lib 2.3.1, and this is 2.5.0. A few URLs whose canonical "
            "form has changed may be fetched again."
        )
    ]


def test_without_a_key_space_nothing_is_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And layers that are added meanwhile carry on the one that is there, so that its owner can open them."""
    filled(tmp_path, 10, capacity=10, key_space=SPACE)
    with open_filter(tmp_path, 10) as chain:
        chain.add(fingerprint(10))
        assert len(chain.layers) == 2
    with open_filter(tmp_path, 10, key_space=SPACE) as chain:
        assert knows(chain, 11)
    assert not caplog.records


def test_the_same_process_cannot_open_it_twice(tmp_path: Path) -> None:
    """Two chains over the same files would each grow a layer of the same number."""
    with open_filter(tmp_path) as chain:
        with pytest.raises(InUseError, match=f"in use by process {os.getpid()} on {platform.node()}, since "):
            open_filter(tmp_path)
        assert chain.add(b"key")
    with open_filter(tmp_path) as chain:
        assert b"key" in chain


def test_a_holder_that_left_no_name_is_another_process(tmp_path: Path) -> None:
    """The name of the holder is a courtesy; the lock is the kernel's."""
    with open_filter(tmp_path):
        (tmp_path / "owner").unlink()
        with pytest.raises(InUseError) as caught:
            open_filter(tmp_path)
    assert caught.value.found == "is in use by another process"


def test_a_leftover_temporary_file_is_removed(tmp_path: Path) -> None:
    """A layer that was half written when the process died never held anything."""
    filled(tmp_path, 5, capacity=10)
    leftover = tmp_path / "layer-001.bloom.tmp"
    leftover.write_bytes(b"half")
    with open_filter(tmp_path, 10) as chain:
        assert not leftover.exists()
        assert len(chain.layers) == 1


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message says so, and speaks of no permissions."""
    (tmp_path / "filter").write_bytes(b"")
    with pytest.raises(UnusableError) as caught:
        open_filter(tmp_path / "filter")
    assert str(caught.value) == (
        f"The filter's directory {tmp_path / 'filter'} cannot be used: it is a file. Move it "
        "away, or use another directory."
    )


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_directory_that_goes_away_in_mid_crawl_is_logged(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, as an ERROR that says what will be forgotten; the filter goes on, and closes."""
    directory = tmp_path / "filter"
    with open_filter(directory) as chain:
        chain.add(b"one")
        if how == "deleted":
            shutil.rmtree(directory)
        else:
            directory.rename(tmp_path / "elsewhere")
        for _ in range(2):
            chain.sync()
        assert b"one" in chain
        assert chain.add(b"two")
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        f"{layer(directory)} is not there any more: it was deleted or moved while the filter is in use. The filter "
        "goes on in memory, and what it remembers is lost with the process, unless the directory was only moved. Do "
        "not touch a job directory while its crawl runs."
    )


def test_a_layer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An error of the system on opening comes out as ours, with the file it is about."""
    layer(tmp_path).mkdir()
    with pytest.raises(UnusableError) as caught:
        open_filter(tmp_path)
    assert str(caught.value) == (
        f"The filter in {tmp_path} cannot be opened: [Errno {errno.EISDIR}] Is a directory: '{layer(tmp_path)}'. "
        "Check the owner, the permissions and the disk of what is named."
    )


@pytest.mark.parametrize(
    ("capacity", "error_rate", "growth"), [(0, 1e-6, 2.0), (1, 0.0, 2.0), (1, 1e-6, 1.0)], ids=["n", "p", "s"]
)
def test_numbers_out_of_range_leave_nothing_behind(
    tmp_path: Path, capacity: int, error_rate: float, growth: float
) -> None:
    """They are refused before anything is touched."""
    with pytest.raises(ValueError, match="must be"):
        open_filter(tmp_path / "filter", capacity, error_rate, growth=growth)
    assert not (tmp_path / "filter").exists()


def test_the_thread_syncs_while_fingerprints_are_added(tmp_path: Path) -> None:
    """Full layers become clean on disk in the middle of a crawl, the newest does not, and none is forgotten."""
    chain = open_filter(tmp_path, 20, sync_interval=0.001)
    added = 0

    def add_until_clean() -> bool:
        nonlocal added
        for _ in range(20):
            chain.add(fingerprint(added))
            added += 1
        files = sorted(tmp_path.glob("layer-*.bloom"))
        assert not is_marked_clean(files[-1])
        return len(files) > 5 and all(is_marked_clean(path) for path in files[:-1])

    wait_until(add_until_clean)
    assert len(sync_threads()) == 1
    assert knows(chain, added)
    chain._check()
    chain.close()
    assert not sync_threads()
    with open_filter(tmp_path, 20) as chain:
        assert len(chain) == added
        assert not chain.was_unclean


def test_a_sync_by_hand_marks_the_full_layers_clean(tmp_path: Path) -> None:
    """The mark says that the count will not change any more, which holds for all layers but the newest."""
    with open_filter(tmp_path, 10) as chain:
        for each in fingerprints(40):
            chain.add(each)
        files = sorted(tmp_path.glob("layer-*.bloom"))
        assert [is_marked_clean(path) for path in files] == [False, False, False]
        chain.sync()
        assert [is_marked_clean(path) for path in files] == [True, True, False]
        for each in fingerprints(20, start=40):
            chain.add(each)
        assert [is_marked_clean(path) for path in files] == [True, True, False]


def test_without_an_interval_there_is_no_thread(tmp_path: Path) -> None:
    """0 leaves syncing to sync() and close()."""
    with open_filter(tmp_path, sync_interval=0):
        assert not sync_threads()


def test_a_sync_that_fails_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails in the middle of a crawl costs durability, not the crawl."""
    chain = open_filter(tmp_path, 10, sync_interval=0.001)
    tries = []

    def fail(_: int) -> None:  # patched, as no failing disk is at hand
        tries.append(1)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        wait_until(lambda: len(tries) >= 3)
        assert chain.add(b"key")
    chain.close()
    assert caplog.messages[0] == (
        f"The filter in {tmp_path} could not be written to disk (Input/output error); trying again in 0.001 s. Nothing "
        "is forgotten as long as the machine runs."
    )
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    caplog.clear()
    with open_filter(tmp_path, 10) as chain:
        assert b"key" in chain
    assert not caplog.records


def test_a_close_that_cannot_sync_says_so_and_lets_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing does not raise; the filter counts as not closed, and the next crawl can open it."""
    chain = open_filter(tmp_path, 10)
    chain.add(b"key")

    def fail(_: int) -> None:  # patched, as above
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        chain.close()
    assert caplog.messages == [
        (
            f"The filter in {tmp_path} could not be written to disk (Input/output error). It is complete as long as "
            "the machine runs; after a power failure, URLs may be fetched again."
        )
    ]
    with open_filter(tmp_path, 10) as chain:
        assert chain.was_unclean
        assert b"key" in chain


def test_the_clean_mark_is_gone_before_the_first_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On reopening, the state is made durable as in use; a clean mark over other bits would pass for damage."""
    filled(tmp_path, 5, capacity=10)
    synced = []
    fsync = layerfile.LayerFile.fsync

    def spy(self: layerfile.LayerFile) -> None:  # what is on disk at that moment cannot be seen otherwise
        synced.append((self.path.name, is_marked_clean(self.path)))
        fsync(self)

    monkeypatch.setattr(layerfile.LayerFile, "fsync", spy)
    with open_filter(tmp_path, 10):
        assert synced == [("layer-000.bloom", False)]
        synced.clear()
    assert synced == [("layer-000.bloom", False), ("layer-000.bloom", True)]


def test_a_closed_filter_refuses(tmp_path: Path) -> None:
    """No answer is better than a wrong one: adding, asking and syncing raise, closing again does nothing."""
    chain = open_filter(tmp_path, 10)
    chain.add(b"key")
    chain.close()
    for _ in range(2):
        with pytest.raises(ValueError, match="closed"):
            chain.sync()
        with pytest.raises(ValueError, match="closed"):
            chain.add(b"key")
        with pytest.raises(ValueError, match="closed"):
            b"key" in chain  # noqa: B015 - asking is what raises
        chain.close()
    assert len(chain) == 1


def test_an_error_on_the_way_lets_go_of_the_directory(tmp_path: Path) -> None:
    """A callback that raises during an import leaves no lock, and the import begins anew."""
    seen = tmp_path / "requests.seen"
    seen.write_bytes(b"".join(b"\0\x14" + each for each in fingerprints(100)))

    def fail() -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        open_filter(tmp_path / "filter", 10, import_from=seen, on_checkpoint=fail)
    with open_filter(tmp_path / "filter", 10, import_from=seen) as chain:
        assert knows(chain, 100)


def test_an_import_is_not_done_while_part_of_it_is_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full during an import, the next opening imports again what would be lost with the process."""
    seen = tmp_path / "requests.seen"
    seen.write_bytes(b"".join(b"\0\x14" + each for each in fingerprints(100)))
    create = layerfile.create

    def full_after_the_first(path: Path, *args: Any, **options: Any) -> layerfile.LayerFile:
        if path.name != "layer-000.bloom":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(path, *args, **options)

    with monkeypatch.context() as patch:  # real full disks are in test_full_disk.py; this one is for the moment
        patch.setattr(layerfile, "create", full_after_the_first)
        chain = open_filter(tmp_path / "filter", 10, import_from=seen)
        assert knows(chain, 100)
        chain.close()
    assert "never found room" in caplog.text
    with open_filter(tmp_path / "filter", 10, import_from=seen) as chain:
        assert knows(chain, 100)
    with open_filter(tmp_path / "filter", 10, import_from=seen) as chain:
        assert len(chain) == 100
    assert not (tmp_path / "filter" / "importing").exists()


def test_a_layer_in_memory_gets_its_file_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If room comes at the moment of growth, the older layer takes it first: a gap would pass for a missing file."""
    chain = open_filter(tmp_path, 10)
    with monkeypatch.context() as patch:  # as above: the moment cannot be hit with a real disk
        patch.setattr(layerfile, "create", refuse)
        for each in fingerprints(30):
            chain.add(each)
        assert not layer(tmp_path, 1).exists()
    created, create = [], layerfile.create

    def spy(path: Path, *args: Any, **options: Any) -> layerfile.LayerFile:  # the order shows nowhere else
        created.append(path)
        return create(path, *args, **options)

    monkeypatch.setattr(layerfile, "create", spy)
    chain.add(fingerprint(30))
    assert created == [layer(tmp_path, 1), layer(tmp_path, 2)]
    chain._check()
    assert knows(chain, 31)
    chain.close()
    assert caplog.messages[-1] == f"Layer 1 of the filter has found room in {tmp_path} now"
    with open_filter(tmp_path, 10) as chain:
        assert knows(chain, 31)
        assert len(chain) == 31


def refuse(path: Path, *_: object, **__: object) -> layerfile.LayerFile:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
