"""The chain keeps its promises: it knows what it was given, errs within its bound, and says how much it erred."""

from __future__ import annotations

import math
import os
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scrapy_bloom.old.filter import chain as chains
from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter import sizing
from scrapy_bloom.old.filter.chain import MemoryStore, ScalableBloomFilter
from tests.old.filter.sampling import FINGERPRINTS, hash_fingerprints, hits, poisson_interval, questions, url_fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.old.filter.layer import Layer, LayerSpec

SEEDED = 0xC0FFEE11


class KeptStore(MemoryStore):
    """Layers that outlive their chain, as files do, and a record of what the chain asked for."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.calls: list[str] = []

    def load(self) -> list[Layer]:
        return list(self.layers)

    def create(self, spec: LayerSpec, created: float) -> Layer:
        self.layers.append(super().create(spec, created))
        return self.layers[-1]

    def checkpoint(self) -> None:
        self.calls.append("checkpoint")

    def sync(self) -> None:
        self.calls.append("sync")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains with the same hash seed every time, where a test measures their error."""
    monkeypatch.setattr(chains.secrets, "randbits", lambda bits: SEEDED)


class AgainstASet(RuleBasedStateMachine):
    """A chain of tiny layers does what a set does, but for false positives, whatever happens to it in between."""

    fingerprints = st.one_of(st.binary(max_size=3), st.integers(0, 10**6).map(b"http://a.example/%d".__mod__))

    @initialize(
        capacity=st.integers(1, 20), error_rate=st.sampled_from([0.5, 1e-2, 1e-9]), growth=st.sampled_from([2, 2.5, 16])
    )
    def begin(self, capacity: int, error_rate: float, growth: float) -> None:
        self.store = KeptStore()
        self.model: set[bytes] = set()
        self.accepted = 0
        self.is_exact = True
        self.open(capacity, error_rate, growth)

    def open(self, capacity: int, error_rate: float, growth: float) -> None:
        self.chain = ScalableBloomFilter(capacity, error_rate, growth=growth, store=self.store)
        # Once in 1e9 is never in a test; any other rate is only bounded.
        self.is_exact = self.is_exact and error_rate == 1e-9

    @rule(fingerprint=fingerprints)
    def add(self, fingerprint: bytes) -> None:
        was_in = fingerprint in self.chain
        is_new = self.chain.add(fingerprint)
        assert is_new is not was_in
        assert not is_new or fingerprint not in self.model
        if self.is_exact:
            assert is_new is (fingerprint not in self.model)
        self.model.add(fingerprint)
        self.accepted += is_new
        assert not self.chain.add(fingerprint)

    @rule(start=st.integers(0, 10**6), count=st.integers(1, 60))
    def add_many(self, start: int, count: int) -> None:
        for number in range(start, start + count):
            self.add(b"http://a.example/%d" % number)

    @rule(fingerprint=fingerprints)
    def ask(self, fingerprint: bytes) -> None:
        seen = fingerprint in self.chain
        assert seen or fingerprint not in self.model
        if self.is_exact:
            assert seen is (fingerprint in self.model)

    @rule()
    def sync(self) -> None:
        self.chain.sync()
        assert self.store.calls[-2:] == ["checkpoint", "sync"]

    @rule(
        capacity=st.integers(1, 20), error_rate=st.sampled_from([0.5, 1e-2, 1e-9]), growth=st.sampled_from([2, 2.5, 16])
    )
    def close_and_open_with_other_parameters(self, capacity: int, error_rate: float, growth: float) -> None:
        designs = [layer.spec for layer in self.chain.layers]
        self.chain.close()
        self.open(capacity, error_rate, growth)
        assert [layer.spec for layer in self.chain.layers] == designs

    @rule()
    def look(self) -> None:
        assert 0 <= self.chain.estimated_error_rate() < 1
        assert self.chain.expected_false_positives() >= 0
        assert self.chain.error_rate >= sum(layer.error_rate for layer in self.chain.layers)

    @invariant()
    def nothing_is_forgotten_and_all_is_in_order(self) -> None:
        assert all(fingerprint in self.chain for fingerprint in self.model)
        assert len(self.chain) == self.accepted <= len(self.model)
        self.chain._check()


TestAgainstASet = AgainstASet.TestCase
TestAgainstASet.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("error_rate", "probed"), [(1e-2, 100_000), (1e-3, 200_000)])
@pytest.mark.parametrize("kind", FINGERPRINTS)
def test_a_chain_grown_a_hundredfold_stays_within_its_bound(error_rate: float, probed: int, kind: str) -> None:
    """However far it has grown past its first capacity, a chain errs no more often than it promised."""
    chain = ScalableBloomFilter(1000, error_rate)
    for fingerprint in FINGERPRINTS[kind](100_000, 1):
        chain.add(fingerprint)
    assert len(chain.layers) >= 7
    chain._check()
    found = hits(chain.__contains__, FINGERPRINTS[kind](probed, 2))
    assert found <= poisson_interval(probed * error_rate)[1]
    assert found <= poisson_interval(probed * chain.estimated_error_rate())[1]
    assert found > 0


@pytest.mark.slow
@pytest.mark.usefixtures("seeded")
def test_a_chain_grown_a_hundredfold_uses_its_bound() -> None:
    """Grown a hundredfold from a size at which edges matter little, a chain stays within its bound, and near it."""
    chain = ScalableBloomFilter(20_000, 1e-2)
    for fingerprint in hash_fingerprints(2_000_000, 1):
        chain.add(fingerprint)
    probed = 500_000
    found = hits(chain.__contains__, hash_fingerprints(probed, 2))
    assert found <= poisson_interval(probed * 1e-2)[1]
    # Six full layers may spend 1 - 0.8^6 = 74 % of the bound, and the seventh, three fifths full, hardly any.
    assert found >= poisson_interval(probed * 1e-2 / 2)[0]


@pytest.mark.usefixtures("seeded")
def test_the_estimated_rate_is_the_measured_one_within_a_factor_of_two() -> None:
    """estimated_error_rate() is half to twice what is measured at any moment of a chain's growth."""
    chain = ScalableBloomFilter(20_000, 0.02)
    probed = 50_000
    fingerprints = hash_fingerprints(100_000, 1)
    for batch in (14_000, 6_000, 20_000, 40_000):
        for _ in range(batch):
            chain.add(next(fingerprints))
        low, high = poisson_interval(hits(chain.__contains__, hash_fingerprints(probed, 2)))
        assert chain.estimated_error_rate() <= 2 * high / probed
        assert chain.estimated_error_rate() >= low / probed / 2
        assert chain.estimated_error_rate() <= chain.error_rate


@pytest.mark.usefixtures("seeded")
def test_the_expected_loss_is_the_measured_one() -> None:
    """As many new fingerprints are taken for seen as expected_false_positives() says, within sampling error and 5 %."""
    chain = ScalableBloomFilter(60_000, 0.03)
    given_ = 900_000
    for fingerprint in url_fingerprints(given_, 1):
        chain.add(fingerprint)
    lost = given_ - len(chain)
    expected = chain.expected_false_positives()
    assert len(chain.layers) == 4
    # Above: a sum over layers counts twice what two layers take for theirs. Below: rates of accepted fingerprints.
    low, high = poisson_interval(expected)
    assert 0.95 * low <= lost <= 1.05 * high
    assert lost > 1000


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("capacity", "error_rate"), [(10, 0.5), (100, 0.5), (1000, 0.1), (1000, 0.01)])
def test_the_expected_loss_of_a_chain_of_tiny_layers_is_too_high_but_not_absurd(
    capacity: int, error_rate: float
) -> None:
    """Where layers are mostly padding the expectation stays above the loss, and within ten times of it."""
    chain = ScalableBloomFilter(capacity, error_rate)
    given_ = 20_000
    for fingerprint in hash_fingerprints(given_, 1):
        chain.add(fingerprint)
    low, high = poisson_interval(chain.expected_false_positives())
    lost = given_ - len(chain)
    assert low / 10 <= lost <= high
    assert chain.expected_false_positives() > 1
    probed = 50_000
    low, high = poisson_interval(hits(chain.__contains__, hash_fingerprints(probed, 2)))
    assert low / probed <= chain.estimated_error_rate() <= 10 * high / probed


def test_nothing_is_expected_lost_by_an_empty_chain() -> None:
    """Before the first fingerprint there is no loss, and a first fingerprint cannot be lost."""
    chain = ScalableBloomFilter(10, 0.5)
    assert chain.expected_false_positives() == 0
    assert chain.estimated_error_rate() == 0
    chain.add(b"a")
    assert chain.expected_false_positives() < chain.error_rate


@pytest.mark.parametrize("error_rate", [0.5, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_a_fingerprint_costs_what_the_formula_says(error_rate: float) -> None:
    """Padding aside, a layer takes at most 3 % more bytes than independent probes (sizing.bits_per_fingerprint)."""
    chain = ScalableBloomFilter(1_000_000, error_rate)
    spec = chain.layers[0].spec
    formula = 1_000_000 * sizing.bits_per_fingerprint(spec.error_rate, spec.probes) / 8
    assert formula <= chain.nbytes - probing.padding_bits(spec.probes) / 8 <= 1.03 * formula + 8


@given(capacity=st.integers(1, 300), error_rate=st.sampled_from([1e-3, 1e-9]))
@settings(max_examples=30, deadline=None)
def test_exactly_its_capacity_costs_one_layer(capacity: int, error_rate: float) -> None:
    """The next layer is made for the first new fingerprint beyond capacity: not before, and not for a duplicate."""
    chain = ScalableBloomFilter(capacity, error_rate)
    number = 0
    while len(chain) < capacity:
        chain.add(b"%d" % number)
        number += 1
    assert len(chain.layers) == 1
    assert not chain.add(b"0")
    assert len(chain.layers) == 1
    while not chain.add(b"%d" % number):
        number += 1
    assert [layer.count for layer in chain.layers] == [capacity, 1]
    assert chain.layers[1].capacity == 2 * capacity
    assert len(chain) == capacity + 1


@pytest.mark.usefixtures("seeded")
def test_a_chain_grows_by_its_fill_too() -> None:
    """A layer whose bits are fuller than designed is left for the next, though its count says there is room."""
    store = KeptStore()
    with ScalableBloomFilter(60_000, 1e-3, store=store) as chain:
        for fingerprint in hash_fingerprints(60_000, 1):
            chain.add(fingerprint)
        overfull = questions(store.layers[0])
        for fingerprint in hash_fingerprints(6_000, 2):
            overfull.add(fingerprint)
    store.layers[0].count = 50_000
    again = ScalableBloomFilter(60_000, 1e-3, store=store)
    assert again.add(b"new")
    assert [layer.count for layer in again.layers] == [50_000, 1]


@pytest.mark.parametrize(("capacity", "calls"), [(1, 1), (20, 20), (64, 64), (1000, 67)])
def test_on_checkpoint_is_called_at_least_64_times_a_layer_or_at_every_fingerprint(capacity: int, calls: int) -> None:
    """Filling the first layer calls on_checkpoint as documented, and the last call sees the full count."""
    counts: list[int] = []
    chain = ScalableBloomFilter(capacity, 1e-9, on_checkpoint=lambda: counts.append(len(chain)))
    for number in range(capacity):
        chain.add(b"%d" % number)
    assert len(counts) == calls
    assert counts[-1] == capacity


def test_on_checkpoint_is_called_on_growth_with_the_new_layer_in_place() -> None:
    """The first fingerprint of a new layer is a checkpoint, which sees that fingerprint and the layer."""
    seen: list[tuple[int, int]] = []
    chain = ScalableBloomFilter(1000, 1e-9, on_checkpoint=lambda: seen.append((len(chain), len(chain.layers))))
    for number in range(1001):
        chain.add(b"%d" % number)
    assert seen[-2:] == [(1000, 1), (1001, 2)]


def test_on_checkpoint_is_called_on_sync_however_often() -> None:
    """A caller that syncs before a checkpoint falls due still hears of every sync."""
    counts: list[int] = []
    store = KeptStore()
    chain = ScalableBloomFilter(1_000_000, 1e-6, store=store, on_checkpoint=lambda: counts.append(len(chain)))
    for number in range(5):
        chain.add(b"%d" % number)
        chain.sync()
    assert counts == [1, 2, 3, 4, 5]
    assert store.calls == ["checkpoint", "sync"] * 5
    assert store.layers[0].count == 5


def test_a_store_may_exchange_the_bits_at_a_checkpoint() -> None:
    """After a checkpoint the chain works on the buffer that the store put in place."""

    class Moving(KeptStore):
        def checkpoint(self) -> None:
            for layer in self.layers:
                layer.bits = layer.bits.copy()

    chain = ScalableBloomFilter(10, 1e-9, store=Moving())
    for number in range(100):
        assert chain.add(b"%d" % number)
        chain._check()
    assert all(b"%d" % number in chain for number in range(100))


@pytest.mark.parametrize(
    "use",
    [
        lambda chain: chain.add(b"new"),
        lambda chain: chain.add(b"old"),
        lambda chain: b"old" in chain,
        lambda chain: chain.sync() or chain.add(b"new"),
    ],
    ids=["add", "add a duplicate", "in", "sync"],
)
def test_a_closed_filter_refuses_to_answer(use: Callable[[ScalableBloomFilter], object]) -> None:
    """After close() no fingerprint is called seen or new: the error says that the filter is closed, again and again."""
    chain = ScalableBloomFilter(100)
    chain.add(b"old")
    chain.close()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^the filter is closed"):
            use(chain)
    assert len(chain) == 1


def test_closing_twice_is_harmless() -> None:
    """The store is closed once, and only after the count was settled."""
    store = KeptStore()
    chain = ScalableBloomFilter(1000, store=store)
    chain.add(b"a")
    chain.close()
    chain.close()
    assert store.calls == ["close"]
    assert store.layers[0].count == 1


def test_a_with_block_closes_the_filter_even_on_an_error() -> None:
    """Leaving the block closes the chain, and the error passes."""
    store = KeptStore()
    with pytest.raises(TypeError), ScalableBloomFilter(store=store) as chain:
        chain.add(None)  # type: ignore[arg-type]  # the error
    assert store.calls == ["close"]


def test_all_that_is_wrong_is_named_at_once() -> None:
    """Parameters out of range are one ValueError with a sentence for each."""
    with pytest.raises(ValueError, match="capacity") as caught:
        ScalableBloomFilter(0, 0.6, growth=1.5)
    assert str(caught.value) == (
        "capacity must be an int of at least 1, not 0; error_rate must be from 1e-10 to 0.5, not 0.6; "
        "growth must be from 2 to 16, not 1.5"
    )


@pytest.mark.parametrize(
    ("capacity", "error_rate", "growth"),
    [
        (-1, 1e-6, 2),
        (1e6, 1e-6, 2),
        (math.nan, 1e-6, 2),
        (1, 0, 2),
        (1, 9e-11, 2),
        (1, math.nan, 2),
        (1, 1, 2),
        (1, 1e-6, 1.99),
        (1, 1e-6, 17),
        (1, 1e-6, math.inf),
        (1, 1e-6, math.nan),
    ],
)
def test_each_parameter_has_its_range(capacity: int, error_rate: float, growth: float) -> None:
    """Any single parameter out of range is refused; the ends of the ranges are not."""
    with pytest.raises(ValueError, match=r"must be [^;]*$"):
        ScalableBloomFilter(capacity, error_rate, growth=growth)


@pytest.mark.parametrize(("error_rate", "growth"), [(1e-10, 2), (1e-10, 16), (0.5, 2), (0.5, 16.0)])
def test_the_ends_of_the_ranges_work(error_rate: float, growth: float) -> None:
    """The extreme parameters make chains that keep every invariant while growing through several layers."""
    chain = ScalableBloomFilter(1, error_rate, growth=growth)
    for number in range(200):
        chain.add(b"%d" % number)
        chain._check()
    assert len(chain.layers) > 1
    assert all(b"%d" % number in chain for number in range(200))


def test_changed_parameters_leave_the_layers_that_are_there_as_they_were() -> None:
    """Reopened with other parameters, a chain keeps its layers' design, and new layers follow the new parameters."""
    store = KeptStore()
    with ScalableBloomFilter(10, 1e-2, store=store) as chain:
        for number in range(10):
            chain.add(b"%d" % number)
    designed = store.layers[0].spec
    chain = ScalableBloomFilter(1000, 1e-6, growth=16, store=store)
    assert [layer.spec for layer in chain.layers] == [designed]
    while len(chain.layers) == 1:
        chain.add(b"more %d" % len(chain))
    first, second = (layer.spec for layer in chain.layers)
    assert first == designed
    assert second.capacity == 1000
    assert second.error_rate == sizing.layer_error_rate(1, target=1e-6, tightening=chains.TIGHTENING)
    assert (second.probes, second.seed) == (first.probes, first.seed)
    assert all(b"%d" % number in chain for number in range(10))


@pytest.mark.usefixtures("seeded")
def test_the_promised_rate_covers_the_layers_that_are_there() -> None:
    """error_rate is the given one, unless older layers were designed for more; then it is theirs and the rest."""
    store = KeptStore()
    with ScalableBloomFilter(500, 0.05, store=store) as chain:
        assert chain.error_rate == pytest.approx(0.05)
        for fingerprint in hash_fingerprints(2_000, 1):
            chain.add(fingerprint)
        assert len(chain.layers) == 3
        assert chain.error_rate == pytest.approx(0.05)
    again = ScalableBloomFilter(500, 1e-4, store=store)
    promised = 0.05 * (1 - 0.8**3) + 1e-4 * 0.8**3
    assert again.error_rate == pytest.approx(promised)
    for fingerprint in hash_fingerprints(20_000, 2):
        again.add(fingerprint)
    assert len(again.layers) == 6
    assert again.error_rate == pytest.approx(promised)
    probed = 50_000
    assert hits(again.__contains__, hash_fingerprints(probed, 3)) <= poisson_interval(probed * promised)[1]


def test_every_chain_has_a_seed_of_its_own() -> None:
    """Seeds are random, of 32 bits with the highest set, and shared by the layers of a chain."""
    seeds = set()
    for _ in range(20):
        chain = ScalableBloomFilter(1)
        for number in range(5):
            chain.add(b"%d" % number)
        (seed,) = {layer.spec.seed for layer in chain.layers}
        seeds.add(seed)
    # Twenty draws of 31 bits coincide once in ten million runs.
    assert len(seeds) == 20
    assert all(2**31 <= seed < 2**32 for seed in seeds)


def test_a_duplicate_changes_nothing() -> None:
    """Adding a fingerprint again sets no bit and counts nothing."""
    chain = ScalableBloomFilter(100)
    chain.add(b"a")
    before = chain.layers[0].bits.copy()
    assert not chain.add(b"a")
    assert chain.layers[0].bits == before
    assert len(chain) == 1


def test_any_bytes_are_a_fingerprint_and_nothing_else_is() -> None:
    """Empty and long fingerprints are told apart; a str is an error, not another fingerprint."""
    chain = ScalableBloomFilter(100, 1e-9)
    fingerprints = [b"", b"\0", b"\0\0", b"a" * 10_000, b"a" * 10_001, random.Random(1).randbytes(100_000)]
    assert [chain.add(fingerprint) for fingerprint in fingerprints] == [True] * len(fingerprints)
    with pytest.raises(TypeError):
        chain.add("a")  # type: ignore[arg-type]  # what a caller without types may do
    assert len(chain) == len(fingerprints)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # the child does nothing but add
def test_a_forked_child_does_not_add_to_its_parents_filter() -> None:
    """What a child process adds is not taken for seen by its parent, and what the parent added is known to both."""
    chain = ScalableBloomFilter(1000)
    chain.add(b"before")
    child = os.fork()
    if child == 0:
        os._exit(0 if b"before" in chain and chain.add(b"child's") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"child's" not in chain
    assert b"before" in chain
