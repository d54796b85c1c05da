"""A chain with a maximum age forgets whole layers, neither too early nor too late."""

import shutil
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from tests.filter.damage import STATE_AT, flip_bits

AGE = 800.0


class Clock:
    """A clock that the test moves."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


def fingerprint(number: int) -> bytes:
    return b"%016d" % number


@given(
    steps=st.lists(st.tuples(st.floats(0, AGE / 3), st.integers(1, 9)), min_size=1, max_size=25),
    capacity=st.integers(1, 100),
)
@settings(max_examples=25, deadline=None)
def test_a_fingerprint_is_forgotten_between_seven_eighths_of_the_age_and_the_age(
    steps: list[tuple[float, int]], capacity: int
) -> None:
    """However a crawl goes, nothing younger than 7/8 of the age is new, and nothing older than the age is seen; and
    the designed rates of all layers alive never sum up to more than the rate that was asked for."""
    clock = Clock()
    chain = ScalableBloomFilter(capacity, 1e-9, max_age=AGE, clock=clock)
    added: dict[bytes, float] = {}
    for pause, count in steps:
        clock.now += pause
        for one, when in added.items():
            age = clock.now - when
            assert one in chain or age >= AGE * 7 / 8
            assert one not in chain or age < AGE
        for number in range(len(added), len(added) + count):
            assert chain.add(fingerprint(number))
            added[fingerprint(number)] = clock.now
        assert len(chain) == sum(one in chain for one in added)
        chain._check()
        assert sum(layer.error_rate for layer in chain.layers) <= chain.error_rate == 1e-9


def test_a_steady_crawl_has_one_layer_in_each_period() -> None:
    """From the second age on, a crawl that brings as much in each period has at most ten layers, sized for it."""
    clock = Clock()
    chain = ScalableBloomFilter(100, 1e-6, max_age=AGE, clock=clock)
    for number in range(6_000):
        clock.now += 1.0
        chain.add(fingerprint(number))
    assert len(chain.layers) <= 10
    assert chain.drops > 20
    assert all(90 <= layer.capacity <= 250 for layer in chain.layers)


def test_a_clock_that_was_ahead_keeps_nothing_for_longer(tmp_path: Path) -> None:
    """What was added under a clock that is put back before the next run is new then, since its age is not known. A
    correction by a second changes nothing."""
    clock = Clock()
    for back, is_known in ((0.0, False), (1.0, True), (100 * AGE, False)):
        clock.now -= back
        with open_filter(tmp_path, 100, max_age=AGE, clock=clock) as chain:
            assert [chain.add(fingerprint(0)) for _ in range(2)] == [not is_known, False]


def test_layers_too_old_are_deleted_from_disk_and_nothing_else_is(tmp_path: Path) -> None:
    """Files of dropped layers go, now or with the next process; what is younger and the watermark stay; what
    was forgotten of a layer that went is no more."""
    clock = Clock()
    with open_filter(tmp_path / "a", 80, max_age=AGE, clock=clock) as chain:
        chain.add(b"old")
        chain.forget(b"old")
        assert chain.drops == 1
        chain.watermark = 77
        clock.now += AGE * 3 / 4
        chain.add(b"young")
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as a kill leaves it
        before = sorted((tmp_path / "a").glob("layer-*"))
        clock.now += AGE / 2
        assert chain.add(b"newest")
        assert len(before) == 2
        assert not before[0].exists()
        assert (len(chain), chain.forgotten, chain.drops) == (2, 0, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    shutil.copy(tmp_path / "b" / "forgotten", tmp_path / "c")  # as if a kill had come after the layer was deleted
    with open_filter(tmp_path / "c", 80, max_age=AGE, clock=clock) as chain:
        assert (len(chain), chain.forgotten) == (2, 0)
    shutil.copy(tmp_path / "b" / before[0].name, before[0])  # as if a kill had come before it was deleted
    for name, known in (("a", {b"young", b"newest"}), ("b", {b"young"})):
        with open_filter(tmp_path / name, 80, max_age=AGE, clock=clock) as chain:
            assert {each for each in (b"old", b"young", b"newest") if each in chain} == known
            assert chain.watermark == 77
            assert not (tmp_path / name / before[0].name).exists()
    # Without an age nothing is forgotten. The state of the newest layer may be torn: the oldest is the first there is.
    (newest,) = (tmp_path / "a").glob("layer-*2.bloom")
    flip_bits(newest, STATE_AT + 16)
    for directory, known in ((tmp_path / "a", b"newest"), (tmp_path / "b", b"young")):
        for _ in range(2):
            with open_filter(directory, 80) as chain:
                assert known in chain
