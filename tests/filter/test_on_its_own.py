"""The filter behaves as Python's users expect of a set of bytes that knows files, threads and processes."""

import copy
import json
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.errors import BloomError, DamagedError, UnusableError
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from tests.filter.sampling import hash_fingerprints

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
KEYS = list(hash_fingerprints(3_000, 1))
OTHERS = list(hash_fingerprints(3_000, 2))


@pytest.fixture(params=["memory", "files"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScalableBloomFilter]:
    """A filter of several layers, one of whose fingerprints was taken back."""
    made = ScalableBloomFilter(500, 1e-6) if request.param == "memory" else open_filter(tmp_path / "kept", 500, 1e-6)
    with made:
        made.update(KEYS)
        made.forget(KEYS[7])
        made.watermark = 42
        assert len(made.layers) > 1
        yield made


def content(chain: ScalableBloomFilter) -> list[Any]:
    layers = [(layer.spec, layer.created, layer.count, bytes(layer.bits)) for layer in chain.layers]
    return [layers, len(chain), chain.forgotten, chain.watermark, chain.error_rate]


@pytest.mark.parametrize("wrong", ["text", 7, None, ["list"]])
def test_what_is_no_bytes_is_refused(chain: ScalableBloomFilter, wrong: Any) -> None:
    """Every operation names the type; for text, it says what to do."""
    for ask in (chain.add, chain.contains, chain.__contains__, chain.forget, lambda one: chain.update([one])):
        with pytest.raises(TypeError, match=rf"bytes, not {type(wrong).__name__}") as caught:
            ask(wrong)
        assert ("encode" in str(caught.value)) is isinstance(wrong, str)


def test_update_adds_all_and_counts_the_new(chain: ScalableBloomFilter) -> None:
    """Also of an iterator. Bytes alone are no collection of fingerprints."""
    assert chain.update(iter([*OTHERS[:50], *OTHERS[:50], *KEYS[:5]])) == 50
    assert all(map(chain.contains, OTHERS[:50]))
    with pytest.raises(TypeError, match="not int"):
        chain.update(b"bytes")


def test_a_copy_has_the_same_content_in_memory_and_grows_apart(chain: ScalableBloomFilter) -> None:
    """A copy of a filter in files does not touch them, and outlives it."""
    before = content(chain)
    twin = chain.copy()
    assert content(twin) == before
    assert (twin.update(OTHERS), twin.add(KEYS[7])) == (len(OTHERS), True)
    assert content(chain) == before
    assert chain.update(OTHERS) == len(OTHERS)
    chain.close()
    assert all(map(twin.contains, [*KEYS, *OTHERS]))
    with pytest.raises(ValueError, match="not copied"):
        chain.copy()


def test_what_was_saved_is_loaded(chain: ScalableBloomFilter, tmp_path: Path) -> None:
    """Bits, counts, what was taken back, and how it grows; saving again replaces the file, and leaves no other."""
    path = tmp_path / "saved.bloom"
    ScalableBloomFilter(10).save(path)
    chain.save(str(path))
    loaded = ScalableBloomFilter.load(path)
    assert content(loaded) == content(chain)
    assert loaded.add(KEYS[7])
    assert loaded.update(OTHERS) == chain.update(OTHERS) == len(OTHERS)
    assert [layer.spec for layer in loaded.layers] == [layer.spec for layer in chain.layers]
    assert {each.name for each in tmp_path.iterdir()} <= {"saved.bloom", "kept"}
    chain.close()
    with pytest.raises(ValueError, match="not saved"):
        chain.save(path)


def test_a_loaded_filter_still_forgets_by_age(tmp_path: Path) -> None:
    """The maximum age is in the file."""
    now = [1e9]
    chain = ScalableBloomFilter(100, max_age=800, clock=lambda: now[0])
    chain.add(b"old")
    chain.save(tmp_path / "saved")
    loaded = ScalableBloomFilter.load(tmp_path / "saved", clock=lambda: now[0])
    assert b"old" in loaded
    now[0] += 801
    assert b"old" not in loaded


def test_a_damaged_file_is_refused_at_every_byte(tmp_path: Path) -> None:
    """A flipped bit or a cut anywhere is an error of ours that names the file; a missing file is Python's own."""
    path, whole = tmp_path / "saved", ScalableBloomFilter(1, 0.5)
    whole.add(b"one")
    whole.save(path)
    good = path.read_bytes()
    head = good.index(b"\n") + 1
    for at in (*range(head), *range(head, len(good), 997), len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(BloomError, match="saved"):
            ScalableBloomFilter.load(path)
        if at % 7 == 0:
            path.write_bytes(good[:at])
            with pytest.raises(BloomError, match="saved"):
                ScalableBloomFilter.load(path)
    path.write_bytes(good + b"more")
    with pytest.raises(DamagedError, match="bytes"):
        ScalableBloomFilter.load(path)
    path.write_bytes(json.dumps({"format": "scrapy-bloom filter 2"}).encode())
    with pytest.raises(UnusableError, match="no filter"):
        ScalableBloomFilter.load(path)
    with pytest.raises(FileNotFoundError):
        ScalableBloomFilter.load(tmp_path / "nowhere")


def test_a_filter_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The new content takes the place of the old one at the end, or not at all."""
    path = tmp_path / "saved"
    ScalableBloomFilter(10).save(path)
    before = path.read_bytes()
    (tmp_path / "saved.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        ScalableBloomFilter(20).save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickle_and_copy_say_what_to_do_instead(chain: ScalableBloomFilter, duplicate: Any) -> None:
    """A filter cannot be pickled, so that it is no surprise in another process. The way out is in the message."""
    with pytest.raises(TypeError, match=r"copy\(\).*save\(path\).*load\(path\)"):
        duplicate(chain)


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_filter_in_files_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    """A child would make pages look seen that its parent never fetches. The parent goes on, and so does its lock.

    A filter in memory is a copy in the child, which knows what its parent added before.
    """
    directory = tmp_path / "kept"
    with open_filter(directory, 500) as chain, ScalableBloomFilter(500) as own:
        for either in (chain, own):
            either.add(b"before")
        child = os.fork()
        if not child:
            refused = 0
            for use in (chain.add, chain.contains, chain.forget, lambda _: chain.sync(), lambda _: chain.copy()):
                try:
                    use(b"before")
                except ValueError as error:
                    refused += str(os.getppid()) in str(error) or "closed" in str(error)
            chain.close()
            is_own = b"before" in own and own.add(b"child") and b"child" in own
            os._exit(0 if refused == 5 and is_own else 1)
        assert os.waitpid(child, 0)[1] == 0
        for either in (chain, own):
            assert b"before" in either
            assert b"child" not in either
        assert chain.add(b"after")
        with pytest.raises(BloomError, match="in use"):
            open_filter(directory)
    with open_filter(directory) as again:
        assert len(again) == 2


@pytest.mark.parametrize(("where", "max_age"), [("memory", None), ("files", 1e6)])
def test_no_thread_makes_another_forget(tmp_path: Path, where: str, max_age: float | None) -> None:
    """Eight threads that fill eleven layers lose no fingerprint, and the filter errs as rarely as it promises."""
    capacity, each, threads = 20, 4_000, 8
    keys = [list(hash_fingerprints(each, seed)) for seed in range(threads)]
    chain = (
        ScalableBloomFilter(capacity, 1e-6, max_age=max_age)
        if where == "memory"
        else open_filter(tmp_path / "kept", capacity, 1e-6, max_age=max_age)
    )
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=chain.update, args=[some]) for some in keys]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
    with chain:
        assert sum(not chain.contains(key) for some in keys for key in some) == 0
        assert chain.estimated_error_rate() <= chain.error_rate
        if sys.version_info >= (3, 11):  # before, threads also take turns within an addition, and the count is rough
            assert each * threads * 0.99 <= len(chain) <= each * threads * 1.01
