"""The chain keeps its promises, in memory as in files: what it was given it knows until its age, and it rarely errs."""

import math
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scrapy_bloom.filter import plan
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import inspect_directory, open_filter
from tests.filter.damage import STATE_AT, flip_bits
from tests.filter.sampling import FINGERPRINTS, hash_fingerprints, hits, poisson_interval, url_fingerprints

CAPACITIES = st.integers(1, 20)
RATES = st.sampled_from([0.5, 1e-2, 1e-6, 1e-9])
SOME = st.one_of(st.binary(max_size=2), st.integers(0, 300).map(b"http://a.example/%d".__mod__))


class Contract(RuleBasedStateMachine):
    """A chain does what a set does, whatever happens to it in between.

    Its layers are so small that, at the least size of a layer, no error rate leaves false positives to be seen.
    """

    def make(self, capacity: int, error_rate: float) -> ScalableBloomFilter:
        raise NotImplementedError

    @initialize(capacity=CAPACITIES, error_rate=RATES)
    def begin(self, capacity: int, error_rate: float) -> None:
        self.model: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        self.watermark = 0
        self.is_counted = True
        self.chain = self.make(capacity, error_rate)
        self.chain_id = self.chain.chain_id

    @rule(fingerprint=SOME)
    def add(self, fingerprint: bytes) -> None:
        assert self.chain.add(fingerprint) is (fingerprint not in self.model)
        assert not self.chain.add(fingerprint)
        self.model.add(fingerprint)
        self.forgotten.discard(fingerprint)

    @rule(start=st.integers(0, 300), count=st.integers(1, 60))
    def add_many(self, start: int, count: int) -> None:
        for number in range(start, start + count):
            self.add(b"http://a.example/%d" % number)

    @rule(fingerprint=SOME)
    def forget(self, fingerprint: bytes) -> None:
        assert self.chain.forget(fingerprint) is (fingerprint in self.model)
        if fingerprint in self.model:
            self.model.discard(fingerprint)
            self.forgotten.add(fingerprint)

    @rule(fingerprint=SOME)
    def recall(self, fingerprint: bytes) -> None:
        assert self.chain.recall(fingerprint) is (fingerprint in self.forgotten)
        if fingerprint in self.forgotten:
            self.forgotten.discard(fingerprint)
            self.model.add(fingerprint)

    @rule(number=st.integers(0, 2**64 - 1))
    def set_watermark(self, number: int) -> None:
        self.chain.watermark = self.watermark = number

    @rule()
    def sync(self) -> None:
        self.chain.sync()

    @rule(fingerprint=SOME)
    def ask(self, fingerprint: bytes) -> None:
        assert (fingerprint in self.chain) is (fingerprint in self.model)

    @invariant()
    def all_is_in_order(self) -> None:
        assert all(fingerprint in self.chain for fingerprint in self.model)
        assert not any(fingerprint in self.chain for fingerprint in self.forgotten)
        assert self.chain.forgotten == len(self.forgotten)
        assert self.chain.watermark == self.watermark
        assert self.chain.chain_id == self.chain_id
        self.chain._check()
        layers = self.chain.layers
        if self.is_counted:
            assert len(self.chain) == len(self.model)
            assert all(layer.count == layer.capacity for layer in layers[:-1])
        assert layers[0].spec.index == 0
        assert all(next_.capacity >= 2 * layer.capacity for layer, next_ in pairwise(layers))
        for layer in layers:
            assert layer.ones(thorough=True) is None
        assert self.chain.nbytes == sum(len(layer.bits) // 8 for layer in layers)
        assert self.chain.error_rate >= math.fsum(layer.error_rate for layer in layers)
        assert 0 <= self.chain.estimated_error_rate() < 1

    def teardown(self) -> None:
        self.chain.close()


class InMemory(Contract):
    def make(self, capacity: int, error_rate: float) -> ScalableBloomFilter:
        return ScalableBloomFilter(capacity, error_rate)


class InFiles(Contract):
    def make(self, capacity: int, error_rate: float) -> ScalableBloomFilter:
        self.home = Path(tempfile.mkdtemp())
        self.directory = self.home / "0"
        return open_filter(self.directory, capacity, error_rate)

    @rule(capacity=CAPACITIES, error_rate=RATES)
    def close_and_open_with_other_parameters(self, capacity: int, error_rate: float) -> None:
        designs = [layer.spec for layer in self.chain.layers]
        self.chain.close()
        assert inspect_directory(self.directory).is_clean
        self.chain = open_filter(self.directory, capacity, error_rate)
        assert [layer.spec for layer in self.chain.layers] == designs

    @rule()
    def be_killed(self) -> None:
        """A copy of the files at this moment is what SIGKILL leaves."""
        copy = self.home / str(int(self.directory.name) + 1)
        shutil.copytree(self.directory, copy)
        self.chain.close()
        self.directory = copy
        assert not inspect_directory(copy).is_clean
        self.chain = open_filter(copy, 1, 1e-6)
        self.is_counted = False

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.home)


for _machine in (InMemory, InFiles):
    _machine.TestCase.settings = settings(
        max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
TestInMemory, TestInFiles = InMemory.TestCase, InFiles.TestCase


@pytest.mark.parametrize(
    ("error_rate", "probed"), [(1e-2, 50_000), pytest.param(1e-3, 200_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", FINGERPRINTS)
def test_a_chain_grown_manyfold_stays_within_its_bound(error_rate: float, probed: int, kind: str) -> None:
    """However far it has grown past its first capacity, a chain errs no more often than it promised."""
    chain = ScalableBloomFilter(2_500, error_rate)
    for fingerprint in FINGERPRINTS[kind](100_000, 1):
        chain.add(fingerprint)
    assert len(chain.layers) == 6
    found = hits(chain.__contains__, FINGERPRINTS[kind](probed, 2))
    assert 0 < found <= poisson_interval(probed * error_rate)[1]
    assert found <= poisson_interval(probed * chain.estimated_error_rate())[1]


@pytest.mark.slow
def test_the_expected_loss_is_the_measured_one() -> None:
    """As many new fingerprints are taken for seen as expected_false_positives() says, within sampling error and 5 %;
    and estimated_error_rate() is half to twice what is measured on the way."""
    chain = ScalableBloomFilter(60_000, 0.03)
    assert chain.expected_false_positives() == chain.estimated_error_rate() == 0
    for fingerprint in url_fingerprints(600_000, 1):
        chain.add(fingerprint)
        if fingerprint.endswith((b"/20000", b"/100000", b"/599999")):
            low, high = poisson_interval(hits(chain.__contains__, hash_fingerprints(20_000, 2)))
            assert low / 20_000 / 2 <= chain.estimated_error_rate() <= 2 * high / 20_000
    lost = 600_000 - len(chain)
    # Above: a sum over layers counts twice what two layers take for theirs. Below: rates of accepted fingerprints.
    low, high = poisson_interval(chain.expected_false_positives())
    assert 0.95 * low <= lost <= 1.05 * high
    assert lost > 1000


def test_a_planned_chain_is_the_one_that_grows() -> None:
    """planned_layers() has the sizes and counts of a chain with as many fingerprints, and so its expected loss."""
    chain = ScalableBloomFilter(1_000, 1e-9)
    for number in range(12_345):
        chain.add(b"%d" % number)
    planned = plan.planned_layers(12_345, 1_000, 1e-9)
    assert plan.first_layer_bytes(1_000, 1e-9) == planned[0][0].nbytes
    assert [(layer.spec.size_bits, layer.count) for layer in chain.layers] == [
        (spec.size_bits, count) for spec, count in planned
    ]
    assert plan.expected_false_positives(planned) == chain.expected_false_positives()


@pytest.mark.parametrize("max_age", [None, 60.0])
def test_a_closed_filter_refuses_to_answer(max_age: float | None) -> None:
    """After close(), which may come twice, no fingerprint is called seen or new: it is an error, again and again."""
    with ScalableBloomFilter(100, max_age=max_age) as chain:
        chain.add(b"old")
    chain.close()
    uses: list[Callable[[bytes], object]] = [chain.add, chain.contains, chain.__contains__, chain.forget]
    uses += [lambda _: chain.sync(), lambda _: setattr(chain, "watermark", 1)]
    for use in [*uses, *uses]:
        for key in (b"old", b"new"):
            with pytest.raises(ValueError, match="closed"):
                use(key)
    assert len(chain) == 1


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    """Parameters out of range are one ValueError that names each, before anything is made; the ends are fine."""
    with pytest.raises(ValueError, match="capacity"):
        open_filter(tmp_path / "new", capacity=0)
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"capacity.*error_rate.*max_age"):
        ScalableBloomFilter(0, 0.6, max_age=0)
    for capacity, error_rate in [(-1, 1e-6), (1e6, 1e-6), (1, 0), (1, 9e-11), (1, math.nan), (1, 1)]:
        with pytest.raises(ValueError, match="must be"):
            ScalableBloomFilter(capacity, error_rate)  # type: ignore[arg-type]  # a float, too
    for error_rate in (1e-10, 0.5):
        assert ScalableBloomFilter(1, error_rate).error_rate == pytest.approx(error_rate)


def test_the_promised_rate_covers_the_layers_that_are_there(tmp_path: Path) -> None:
    """error_rate is the given one, unless older layers were designed for more; then it is theirs and the rest."""
    with open_filter(tmp_path, 500, 0.05) as chain:
        for fingerprint in hash_fingerprints(2_000, 1):
            chain.add(fingerprint)
        assert len(chain.layers) == 3
        assert chain.error_rate == pytest.approx(0.05)
    with open_filter(tmp_path, 9_000, 1e-4) as again:
        promised = 0.05 * (1 - 0.8**3) + 1e-4 * 0.8**3
        assert again.error_rate == pytest.approx(promised)
        for fingerprint in hash_fingerprints(10_000, 2):
            again.add(fingerprint)
        assert [layer.capacity for layer in again.layers] == [500, 1000, 2000, 9000]
        assert again.error_rate == pytest.approx(promised)


def test_every_chain_has_a_seed_and_an_id_of_its_own() -> None:
    """Seeds are random, of 32 bits with the highest set; ids are 32 hexadecimal digits."""
    chains = [ScalableBloomFilter(1) for _ in range(20)]
    seeds = {chain.layers[0].spec.seed for chain in chains}
    # Twenty draws of 31 bits coincide once in ten million runs.
    assert len(seeds) == len({chain.chain_id for chain in chains}) == 20
    assert all(2**31 <= seed < 2**32 for seed in seeds)
    assert all(len(bytes.fromhex(chain.chain_id)) == 16 for chain in chains)


# -- a maximum age: whole layers are forgotten, neither too early nor too late ----------------------------------------

AGE = 800.0


class Clock:
    """A clock that the test moves."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


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
            assert chain.add(b"%d" % number)
            added[b"%d" % number] = clock.now
        assert len(chain) == sum(one in chain for one in added)
        chain._check()
        assert sum(layer.error_rate for layer in chain.layers) <= chain.error_rate == 1e-9


def test_a_steady_crawl_has_one_layer_in_each_period() -> None:
    """From the second age on, a crawl that brings as much in each period has at most ten layers, sized for it."""
    clock = Clock()
    chain = ScalableBloomFilter(100, 1e-6, max_age=AGE, clock=clock)
    for number in range(6_000):
        clock.now += 1.0
        chain.add(b"%d" % number)
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
            assert [chain.add(b"0") for _ in range(2)] == [not is_known, False]


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
