"""The filter that grows, layer by layer: :class:`ScalableBloomFilter`.

Decides when a layer is added or dropped and how much error each may use up. Does not know where the bits live: a
:class:`LayerStore` does. Single-threaded, like the crawl that uses it; only a store may use a thread, to write to disk.
"""

from __future__ import annotations

import math
import mmap
import secrets
from typing import TYPE_CHECKING, Protocol, final

from scrapy_bloom.old.filter import ageing, sizing
from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter.layer import Layer, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from scrapy_bloom.old.filter.merged import MergedChain

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
DEFAULT_GROWTH = 2.0

MIN_ERROR_RATE = 1e-10  # below it, k would pass the 36 probes of the scheme
MAX_ERROR_RATE = 0.5
MIN_GROWTH, MAX_GROWTH = 2.0, 16.0

TIGHTENING = 0.8
"""r. At s = 2, p = 1e-6 a fingerprint costs 4.1 bytes in a full chain of 1 M, 4.7 in one of 1 B; 6.2 at r = 0.5."""

_CHECKPOINTS_PER_LAYER = 64
_MAX_CHECKPOINT_FINGERPRINTS = 1 << 16  # a tenth of a second of adding

MAX_FORGOTTEN_BYTES = 0xFFFF  # what fits the length field of a store's record
_HUGE_PAGES_FROM = 1 << 26  # 64 MiB: beyond it, a look-up in 4 KiB pages is half spent on finding the page


class Design(Protocol):
    """What is known of a layer before it has bits."""

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints."""


class LayerStore(Protocol):
    """Where the layers of one chain live."""

    was_unclean: bool
    """Whether the layers were left by a process that did not close them."""

    def load(self) -> list[Layer]:
        """Return the layers that are there already, oldest first."""

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Return a new empty layer, begun at *created*. On a full disk, return one in memory."""

    def drop(self, before: int) -> None:
        """Let go, for good, of the layers before index *before*, which nothing reads any more."""

    def load_forgotten(self) -> set[bytes]:
        """Return the fingerprints that had been forgotten when the layers were closed."""

    def load_merged(self) -> Sequence[MergedChain]:
        """Return the chains of other crawls that were merged into this one."""

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Note that *fingerprint* has been forgotten, or accepted once more. Must not fail."""

    def checkpoint(self) -> None:
        """Save the counts. The store may replace the ``bits`` of a layer by others with the same content."""

    def sync(self) -> None:
        """Return once everything added so far would survive a power failure."""

    def close(self) -> None:
        """Save the counts and release the buffers."""


class MemoryStore:
    """Layers in anonymous memory, which costs RAM only where it has been touched."""

    was_unclean = False

    def load(self) -> list[Layer]:
        """Return no layers: memory begins empty."""
        return []

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Return a layer over fresh zero pages."""
        # Private: a forked child that wrote into its parent's filter would make the parent lose those pages.
        memory = mmap.mmap(-1, spec.nbytes, access=mmap.ACCESS_COPY)
        if spec.nbytes >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
            memory.madvise(mmap.MADV_HUGEPAGE)
        return Layer(spec, memory, created=created)

    def drop(self, before: int) -> None:
        """Do nothing: the mappings go with the layers."""

    def load_forgotten(self) -> set[bytes]:
        """Return no fingerprints: memory begins empty."""
        return set()

    def load_merged(self) -> Sequence[MergedChain]:
        """Return none: memory begins empty."""
        return ()

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Do nothing: the chain remembers."""

    def checkpoint(self) -> None:
        """Do nothing: the layers hold their counts."""

    def sync(self) -> None:
        """Do nothing: there is no disk."""

    def close(self) -> None:
        """Do nothing: the mapping goes with the layers."""


@final
class ScalableBloomFilter:
    """A set of byte strings that answers "seen before?" with a bounded error and grows by itself.

    A fingerprint that was added is always found. One that was not is taken for seen with a probability of at most
    :attr:`error_rate`, however many there are. Close the filter, or use it in a ``with`` block, to free its memory and
    files at once; a filter that is merely dropped waits for the garbage collector.

    Args:
        capacity: Fingerprints that the first layer is sized for, at least 1.
        error_rate: Bound on the false-positive probability of the whole chain, from 1e-10 to 0.5.
        growth: How many times larger each next layer is, from 2 to 16.
        store: Where the layers live; anonymous memory if None. Layers that it already holds keep their design;
            the arguments above apply to new ones.
        on_checkpoint: Called at least 64 times per layer while it fills (at every addition if it holds under 64),
            after the first addition to a new layer, when layers are dropped, and by :meth:`sync`.
        max_age: Seconds after which a fingerprint is forgotten, and is new again: between 7/8 and 8/8 of that after it
            was added. None: never. With an age, :attr:`error_rate` is that of all layers alive at a time, and
            *capacity* counts the fingerprints of one age.
        clock: Returns the time in seconds since 1970, such as ``time.time``. Needed with *max_age*.

    Raises:
        ValueError: An argument is out of its range.

    """

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        growth: float = DEFAULT_GROWTH,
        store: LayerStore | None = None,
        on_checkpoint: Callable[[], None] | None = None,
        max_age: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_parameters(capacity, error_rate, growth, max_age)
        self._capacity = capacity
        self._target = error_rate
        self._growth = growth
        self._on_checkpoint = on_checkpoint
        self._store = MemoryStore() if store is None else store
        self._layers = self._store.load()
        self._forgotten = self._store.load_forgotten()
        self._max_age = max_age
        if max_age is not None and clock is None:
            raise ValueError("max_age needs a clock, such as clock=time.time")
        self._clock = clock or (lambda: 0.0)
        self._due = math.inf
        """When a layer is too old for more fingerprints, or to be kept."""
        self._since = -math.inf
        """What the clock said when that was found. If it says less, it was wrong then."""
        self._drops = 0
        self._expired = 0
        self._has_dropped_merged = False
        if not self._layers:
            self._begin_layer()
        first = self._layers[0].spec
        self._probes = probing.bind(
            first.probes, first.seed, on_quota_spent=self._on_quota_spent, forgotten=self._forgotten, recall=self.recall
        )
        self._merged = self._store.load_merged()
        if not self._merged and max_age is None:
            self.add = self._probes.add  # type: ignore[assignment, method-assign] # saves a call, see probes.py
        self._closed = False
        self._quota = 0
        self._arrange()
        if first.index:  # a kill may have come between a drop and the notes of what it left nothing to forget of
            self._recall_dropped()
        if max_age is not None:
            self._age()

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint*. Return True if it was new, False if it was added before or looks as if it was."""
        if not self._since <= self._clock() < self._due:
            self._age()
        for chain in self._merged:
            if fingerprint in chain:
                return self.recall(fingerprint) if self._forgotten else False
        is_new = self._probes.add(fingerprint)
        if is_new and self._has_dropped_merged:
            self.recall(fingerprint)
        return is_new

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was added before. False is certain, True is probable."""
        if self._max_age is not None and not self._since <= self._clock() < self._due:
            self._age()
        return self._is_held(fingerprint) and not (self._forgotten and fingerprint in self._forgotten)

    def __len__(self) -> int:
        """Return the number of fingerprints accepted as new and not forgotten.

        A fingerprint that several merged filters had seen counts once for each of them.
        """
        self._settle()
        forgotten = sum(map(self._is_held, self._forgotten)) if self._has_dropped_merged else len(self._forgotten)
        return max(0, sum(layer.count for layer in self._layers) + sum(map(len, self._merged)) - forgotten)

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back: it is not contained any more, and :meth:`add` accepts it once more, as new.

        Exact, and with files durable once this call returns. Meant for few fingerprints, such as those of failed
        requests: each costs some 100 bytes of memory until it is added again. ``docs/forgetting.md`` compares this with
        a counting filter. Return False, and do nothing, if the fingerprint was not contained.

        Raises:
            ValueError: The filter is closed, or the fingerprint is longer than 65,535 bytes.

        """
        if (length := len(fingerprint)) > MAX_FORGOTTEN_BYTES:
            raise ValueError(f"a fingerprint of {length} bytes cannot be forgotten, at most {MAX_FORGOTTEN_BYTES}")
        if fingerprint not in self:
            return False
        self._forgotten.add(fingerprint)
        self._store.note_forgotten(fingerprint, forgotten=True)
        return True

    def recall(self, fingerprint: bytes) -> bool:
        """Undo :meth:`forget` without recording anything. Return False if *fingerprint* is not forgotten."""
        if fingerprint not in self._forgotten:
            return False
        self._forgotten.discard(fingerprint)
        self._store.note_forgotten(fingerprint, forgotten=False)
        return True

    @property
    def forgotten(self) -> int:
        """How many fingerprints are forgotten and have not been added again."""
        return len(self._forgotten)

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers, oldest first, with ``.capacity``, ``.error_rate``, ``.count`` and ``.fill_ratio``.

        Those of other filters that were merged into this one come before its own.
        """
        self._settle()
        return (*(layer for chain in self._merged for layer in chain.layers), *self._layers)

    @property
    def was_unclean(self) -> bool:
        """Whether the layers were left by a process that did not close them: killed, or the machine went down."""
        return self._store.was_unclean

    def drops(self) -> int:
        """Return how often layers, or filters merged in, have been dropped for their age. It only ever grows."""
        if self._max_age is not None and not self._since <= self._clock() < self._due:
            self._age()
        return self._drops

    @property
    def expired(self) -> int:
        """Fingerprints that were dropped for their age since the chain was opened."""
        return self._expired

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays; resident memory is at most that."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def error_rate(self) -> float:
        """The promised bound on the false-positive probability of the chain, however long it gets.

        The rate given on construction. If the chain was begun with another one: the sum of what its layers were
        designed for and what the present rate leaves for the layers to come. What was merged into it adds to that.
        """
        designed = math.fsum(layer.error_rate for layer in self.layers)
        if self._max_age is None:
            return designed + sizing.remaining_error_rate(len(self._layers), target=self._target, tightening=TIGHTENING)
        return max(designed, self._target)

    def estimated_error_rate(self) -> float:
        """Return the chance that a fingerprint never added is taken for seen now, from the fill of the layers."""
        missed = math.prod(1 - layer.estimated_error_rate for layer in self.layers)
        return 1 - missed

    def expected_false_positives(self) -> float:
        """Return how many new fingerprints are expected to have been taken for seen since the chain began.

        With a maximum age: the number for as many fingerprints as are remembered now; too high until the age has passed
        once.
        """
        own = [(layer.spec, layer.count) for layer in self._own_layers()]
        merged = [[(layer.spec, layer.count) for layer in chain.layers] for chain in self._merged]
        if self._max_age is not None:
            layers = [*own, *(layer for chain in merged for layer in chain)]
            return expected_false_positives(layers, others_come_and_go=True)
        return expected_in_merged(own, merged)

    def sync(self) -> None:
        """Return once everything added so far would survive a power failure. In memory, do nothing."""
        if self._closed:
            raise ValueError("the filter is closed; there is nothing to sync")
        self._checkpoint()
        self._store.sync()

    def close(self) -> None:
        """Write out and release the layers. The filter cannot be used afterwards; closing twice is harmless."""
        if self._closed:
            return
        self._settle()
        self._closed = True
        self._quota = 0
        self._probes.set_tables((), 0)
        for chain in self._merged:
            chain.close()
        self._store.close()

    def __enter__(self) -> Self:
        """Return the filter itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the filter."""
        self.close()

    def _own_layers(self) -> Sequence[Layer]:
        self._settle()
        return self._layers

    def _begin_layer(self) -> None:
        now = self._clock()
        self._layers.append(self._store.create(self._next_spec(now), now))

    def _next_spec(self, now: float) -> LayerSpec:
        last = self._layers[-1].spec if self._layers else None
        if self._max_age is None:
            return next_spec(
                last,
                capacity=self._capacity,
                error_rate=self._target,
                growth=self._growth,
                position=len(self._layers),
            )
        error_rate = ageing.period_error_rate(self._target)
        share = -(-self._capacity // ageing.PERIODS)
        if last is None:
            return next_spec(None, capacity=share, error_rate=error_rate, growth=self._growth)
        position = ageing.position([layer.created for layer in self._layers], max_age=self._max_age)
        if ageing.is_closed(self._layers[-1].created, now=now, max_age=self._max_age):
            # Room for as many as came in the last period, so that a steady crawl has one layer in each.
            share = max(share, sum(layer.count for layer in self._layers[-1 - position :]))
            return next_spec(last, capacity=share, error_rate=error_rate, growth=0, position=0)
        return next_spec(last, capacity=share, error_rate=error_rate, growth=self._growth, position=position + 1)

    def _age(self) -> None:
        """Drop the layers that are too old, and let the next new fingerprint begin a layer if the newest is closed."""
        if self._max_age is None or self._closed:
            return
        now = self._clock()
        self._settle()
        expired = [ageing.is_expired(layer.created, now=now, max_age=self._max_age) for layer in self._layers]
        # Drop up to the last layer that is too old: those before it were begun earlier, whatever a wrong clock noted.
        dropped = len(expired) - expired[::-1].index(True) if any(expired) else 0
        if dropped == len(self._layers):
            self._begin_layer()
        self._expired += sum(layer.count for layer in self._layers[:dropped])
        del self._layers[:dropped]
        # Merged filters are read-only: all of one goes as soon as a part of it is too old.
        for chain in list(self._merged):
            if any(ageing.is_expired(layer.created, now=now, max_age=self._max_age) for layer in chain.layers):
                self._merged = [other for other in self._merged if other is not chain]
                self._expired += sum(layer.count for layer in chain.layers)
                chain.close()
                dropped += 1
                self._has_dropped_merged = True
        self._arrange()
        if dropped:
            self._drops += 1
            self._store.drop(self._layers[0].spec.index)
            self._recall_dropped()
            if self._on_checkpoint is not None:
                self._on_checkpoint()

    def _recall_dropped(self) -> None:
        """Recall what was forgotten and is in no layer any more: nothing is left to forget.

        A merged chain that was dropped comes back with the next process if the setting or the clock changes, and what
        was forgotten of it must not be seen then.
        """
        if not self._has_dropped_merged:
            for fingerprint in [one for one in self._forgotten if not self._is_held(one)]:
                self.recall(fingerprint)

    def _is_held(self, fingerprint: bytes) -> bool:
        """Return whether any layer has *fingerprint*, forgotten or not."""
        return self._probes.contains(fingerprint) or any(fingerprint in chain for chain in self._merged)

    def _arrange(self) -> None:
        """Hand the probes the present layers, newest first, and how many additions the next checkpoint is away."""
        newest = self._layers[-1]
        is_closed = False
        if self._max_age is not None:
            self._since = self._clock()
            is_closed = ageing.is_closed(newest.created, now=self._since, max_age=self._max_age)
            closing = math.inf if is_closed else newest.created + self._max_age / ageing.PERIODS
            held = [*self._layers, *(layer for chain in self._merged for layer in chain.layers)]
            self._due = min(closing, min(layer.created for layer in held) + self._max_age)
        if newest.is_saturated or is_closed:
            # The next layer waits for the next new fingerprint: a filter of exactly its capacity costs one layer.
            quota = 0
        else:
            left = newest.capacity - newest.count
            quota = min(left, max(1, newest.capacity // _CHECKPOINTS_PER_LAYER), _MAX_CHECKPOINT_FINGERPRINTS)
        self._use_layers(quota)

    def _use_layers(self, quota: int) -> None:
        self._quota = quota
        self._probes.set_tables([layer.table for layer in reversed(self._layers)], quota)

    def _settle(self) -> None:
        """Update the newest layer's count. Between checkpoints only the probes count, down from the quota."""
        left = self._probes.left()
        self._layers[-1].count += self._quota - left
        self._quota = left

    def _checkpoint(self) -> None:
        self._settle()
        self._store.checkpoint()
        self._arrange()
        if self._on_checkpoint is not None:
            self._on_checkpoint()

    def _on_quota_spent(self) -> None:
        """Save the counts after the last addition of the quota; with no quota left, add a layer first."""
        if self._quota:
            self._checkpoint()
        else:
            self._begin_layer()
            self._use_layers(1)  # so that this fingerprint ends in a checkpoint, which tells of the growth

    def _check(self) -> None:
        """Assert every invariant of the chain; for tests."""
        layers = self._own_layers()
        first = layers[0].spec
        assert self._probes.left() == self._quota
        assert self._quota or layers[-1].is_saturated or self._max_age is not None
        assert layers[-1].count + self._quota <= layers[-1].capacity
        for index, layer in enumerate(layers):
            spec = layer.spec
            assert spec.index == first.index + index
            assert (spec.probes, spec.seed, spec.scheme) == (first.probes, first.seed, first.scheme)
            assert 0 <= layer.count <= spec.capacity
            assert layer.contradiction() is None, layer.contradiction()
            assert layer.bits.count() <= layer.count * spec.probes
            assert probing.error_rate(spec.designed_fill, spec.probes) <= spec.error_rate
            assert index == 0 or spec.capacity > layers[index - 1].capacity or self._max_age is not None
        assert all(layer.is_saturated for layer in layers[:-1]) or self._max_age is not None
        assert not any(fingerprint in self for fingerprint in self._forgotten)
        assert all(map(self._is_held, self._forgotten)) or self._has_dropped_merged
        assert self.nbytes == sum(len(layer.bits) // 8 for layer in self.layers)


def next_spec(
    last: LayerSpec | None, *, capacity: int, error_rate: float, growth: float, position: int | None = None
) -> LayerSpec:
    """Return the layer that follows *last* in a chain with these parameters, or the first one.

    *position* is its place among the layers that share *error_rate*: all of the chain, unless layers are dropped.
    """
    index = 0 if last is None else last.index + 1
    budget = sizing.layer_error_rate(index if position is None else position, target=error_rate, tightening=TIGHTENING)
    if last is None:
        probes = min(sizing.optimal_probes(budget), probing.MAX_PROBES)
        # The upper half of the range: MurmurHash3 mixes few bytes badly under seeds near 0, see probes.py.
        seed = secrets.randbits(probing.SEED_BITS) | 1 << (probing.SEED_BITS - 1)
        return LayerSpec.smallest(index=0, capacity=capacity, error_rate=budget, probes=probes, seed=seed)
    # With one k for all layers, the runs of a fingerprint are computed once. Tighter layers get more bits instead. That
    # costs 3 % more than the best k per layer when a chain has grown a thousandfold (p = 1e-6).
    return LayerSpec.smallest(
        index=index,
        capacity=max(round(last.capacity * growth), capacity),
        error_rate=budget,
        probes=last.probes,
        seed=last.seed,
    )


def planned_layers(count: int, *, capacity: int, error_rate: float, growth: float) -> list[tuple[LayerSpec, int]]:
    """Return the layers of a chain that holds *count* fingerprints, each with its own count."""
    layers: list[tuple[LayerSpec, int]] = []
    while count or not layers:
        spec = next_spec(layers[-1][0] if layers else None, capacity=capacity, error_rate=error_rate, growth=growth)
        layers.append((spec, min(count, spec.capacity)))
        count -= layers[-1][1]
    return layers


def planned_ageing_layers(count: int, *, capacity: int, error_rate: float) -> list[tuple[LayerSpec, int]]:
    """Return the most layers of a chain that forgets by age and gets *count* fingerprints in each age."""
    share = -(-count // ageing.PERIODS)
    spec = next_spec(
        None,
        capacity=max(share, -(-capacity // ageing.PERIODS)),
        error_rate=ageing.period_error_rate(error_rate),
        growth=DEFAULT_GROWTH,
    )
    return [(spec, share)] * ageing.PERIODS + [(spec, 0)]


def first_layer_bytes(capacity: int, error_rate: float) -> int:
    """Return the bytes that a chain begins with: the bit array of a layer of *capacity*."""
    return next_spec(None, capacity=capacity, error_rate=error_rate, growth=MIN_GROWTH).nbytes


def check_parameters(capacity: int, error_rate: float, growth: float, max_age: float | None = None) -> None:
    """Raise ValueError, which names every parameter out of its range."""
    problems = []
    if not isinstance(capacity, int) or capacity < 1:
        problems.append(f"capacity must be an int of at least 1, not {capacity!r}")
    if not MIN_ERROR_RATE <= error_rate <= MAX_ERROR_RATE:
        problems.append(f"error_rate must be from {MIN_ERROR_RATE} to {MAX_ERROR_RATE}, not {error_rate!r}")
    if not MIN_GROWTH <= growth <= MAX_GROWTH:
        problems.append(f"growth must be from {MIN_GROWTH:g} to {MAX_GROWTH:g}, not {growth!r}")
    if max_age is not None and not max_age > 0:
        problems.append(f"max_age must be None or a positive number of seconds, not {max_age!r}")
    if problems:
        raise ValueError("; ".join(problems))


def expected_false_positives(layers: Sequence[tuple[Design, int]], *, others_come_and_go: bool = False) -> float:
    """Return how many new fingerprints a chain of *layers*, each with its count, is expected to have taken for seen.

    With *others_come_and_go*, for a chain that drops old layers as new ones come: each fingerprint was checked against
    as many other layers as there are now.

    Each new fingerprint was checked at the error rate that the chain had at that moment. Those moments follow from the
    counts, so the sum over the fingerprints is an integral over the fill of each layer (Simpson's rule, 64 intervals).
    """
    lost = 0.0
    of_full_layers = 0.0
    of_all_layers = math.fsum(spec.error_rate_at(count) for spec, count in layers) if others_come_and_go else 0.0
    for spec, count in layers:
        of_this_one = spec.error_rate_at(count)
        of_others = of_all_layers - of_this_one if others_come_and_go else of_full_layers
        lost += count * of_others + _false_positives_while_filling(spec, count)
        of_full_layers += of_this_one
    return lost


def expected_in_merged(
    own: Sequence[tuple[LayerSpec, int]], merged: Sequence[Sequence[tuple[LayerSpec, int]]]
) -> float:
    """Return the same for a chain of *own* layers with *merged* chains beside it.

    Each merged chain keeps the loss it had before the merge; since then every new fingerprint was checked in all
    chains.
    """
    rate = math.fsum(spec.error_rate_at(count) for chain in merged for spec, count in chain)
    before = math.fsum(map(expected_false_positives, merged))
    return before + expected_false_positives(own) + rate * sum(count for _, count in own)


def _false_positives_while_filling(spec: Design, count: int, intervals: int = 64) -> float:
    """Integrate the error rate of a layer over its count from 0 to *count*."""
    step = count / intervals
    weighted = (
        (1 if i in {0, intervals} else 4 if i % 2 else 2) * spec.error_rate_at(i * step) for i in range(intervals + 1)
    )
    return step / 3 * math.fsum(weighted)
