"""The filter that grows, layer by layer: :class:`ScalableBloomFilter`.

The chain decides when a layer is added or dropped. A :class:`LayerStore` decides where the bits live.

Threads may share a chain under the GIL. :mod:`~scrapy_bloom.filter.probes` explains why the fast path works without a
lock. Everything that changes the list of layers or of forgotten fingerprints holds one.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, NoReturn, final

from scrapy_bloom.filter import layerfile, plan
from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter.layer import LayerStore, reader

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from scrapy_bloom.filter.layer import Layer

_LOOKS_PER_LAYER = 64  # at its fill, at a millisecond each


@final
class ScalableBloomFilter:
    """A set of byte strings that answers "seen before?" with a bounded error and grows by itself.

    A fingerprint that was added is always found. A fingerprint that was not added is taken for seen with a probability
    of at most :attr:`error_rate`, however many were added. Close the filter, or use it in a ``with`` block.

    Threads may share it, as long as Python has its GIL: no fingerprint is lost, and one that two threads add at the
    same moment may be new to both. After a fork, a filter in memory is the child's own copy, and a filter in files
    stays with the parent: in the child every call is a ValueError.

    Args:
        capacity: Fingerprints that the first layer is sized for, at least 1. Each next layer holds twice as many.
        error_rate: Bound on the false-positive probability of the whole chain, from 1e-10 to 0.5.
        max_age: Seconds after which a fingerprint is forgotten, up to an eighth earlier. None: never. With an age,
            *capacity* counts the fingerprints of one age.
        clock: Returns the time in seconds since 1970.
        store: Where the layers live; anonymous memory if None.

    Raises:
        ValueError: An argument is out of its range.
        BloomError: The first layer does not fit into memory.

    """

    def __init__(
        self,
        capacity: int = plan.DEFAULT_CAPACITY,
        error_rate: float = plan.DEFAULT_ERROR_RATE,
        *,
        max_age: float | None = None,
        clock: Callable[[], float] = time.time,
        store: LayerStore | None = None,
    ) -> None:
        plan.check_parameters(capacity, error_rate, max_age)
        self._capacity = capacity
        self._target = error_rate
        self._max_age = max_age
        self._clock = clock
        self._store = LayerStore() if store is None else store
        self._layers, self._forgotten = self._store.load()
        # While the clock is in this range, no layer expires or closes. It starts at the last look at the layers: an
        # earlier time means that the clock was put back.
        self._in_date = -math.inf, math.inf
        self._drops = 0
        self._closed = False
        self._lock = threading.RLock()
        self._quota = 0
        if not self._layers:
            self._begin_layer()
        self._counted = self._layers[-1]
        self.chain_id = self._store.chain_id
        """Random, in hexadecimal, and the same as long as the filter lives."""
        first = self._layers[0].spec
        self._probes = probing.bind(
            first.probes, first.seed, on_quota_spent=self._on_quota_spent, forgotten=self._forgotten, recall=self.recall
        )
        if max_age is None:  # saves a call, see Probes
            self.add = self._probes.add  # type: ignore[assignment, method-assign]
            self.contains = self._probes.contains  # type: ignore[assignment, method-assign]
        self._arrange()
        self._recall_dropped()  # a kill may have come before that
        self._in_date = math.inf, math.inf  # look at every layer: the clock may have been put back since it was begun
        self._age()

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint*. Return True if it was new, False if it was added before or looks as if it was."""
        self._age()
        return self._probes.add(fingerprint)

    def update(self, fingerprints: Iterable[bytes]) -> int:
        """Add all *fingerprints*, and return how many were new."""
        return sum(map(self.add, fingerprints))

    def contains(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was added before. False is certain, True is probable."""
        self._age()
        return self._probes.contains(fingerprint)

    def __contains__(self, fingerprint: bytes) -> bool:
        return self.contains(fingerprint)

    def __len__(self) -> int:
        """Return the number of fingerprints accepted as new and not forgotten."""
        return max(0, sum(layer.count for layer in self.layers) - len(self._forgotten))

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back: it is not contained any more, and :meth:`add` accepts it once more, as new.

        Exact, and in files kept through a kill. Meant for few fingerprints, such as those of failed requests: each
        costs some 100 bytes of memory until it is added again. Return False if the fingerprint was not contained.
        """
        with self._lock:
            if fingerprint not in self:
                return False
            self._forgotten.add(fingerprint)
            self._drops += 1
            self._store.note_forgotten(fingerprint, forgotten=True)
            return True

    def recall(self, fingerprint: bytes) -> bool:
        """Undo :meth:`forget` without recording anything. Return False if *fingerprint* is not forgotten."""
        with self._lock:
            if fingerprint not in self._forgotten:
                return False
            self._forgotten.discard(fingerprint)
            self._store.note_forgotten(fingerprint, forgotten=False)
            return True

    def is_forgotten(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was taken back and has not been added again."""
        return fingerprint in self._forgotten

    @property
    def forgotten(self) -> int:
        """How many fingerprints are forgotten and have not been added again."""
        return len(self._forgotten)

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers, oldest first, with ``.capacity``, ``.error_rate``, ``.count`` and ``.fill_ratio``."""
        with self._lock:
            self._settle()
            return tuple(self._layers)

    @property
    def watermark(self) -> int:
        """A number that the caller sets, 0 to 2**64 - 1, and that survives the process as the bits do; 0 at first.

        After a kill, it is the number that was set last, or 0 if the kill interrupted the write. After a power failure
        it may be an older number. It may also be newer than the bits on disk; :attr:`synced` never is.
        """
        return self._store.watermark

    @watermark.setter
    def watermark(self, number: int) -> None:
        if self._closed:
            raise ValueError("the filter is closed; the watermark was not set")
        self._store.watermark = number

    @property
    def synced(self) -> int:
        """The watermark when the last whole sync began: additions before that survive a power failure. 0 at first."""
        return self._store.synced

    @property
    def drops(self) -> int:
        """How often fingerprints have become new again since the filter was opened: by :meth:`forget` or by age."""
        self._age()
        return self._drops

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays; resident memory is at most that."""
        return sum(layer.spec.nbytes for layer in self._layers)

    @property
    def error_rate(self) -> float:
        """The promised bound on the false-positive probability of the chain, however long the chain gets.

        The rate given on construction. If the chain was begun with another rate, it is the sum of the rates that its
        layers were designed for, and of the share that the present rate leaves for later layers.
        """
        designed = math.fsum(layer.error_rate for layer in self._layers)
        if self._max_age is not None:
            return max(designed, self._target)
        return designed + self._target * plan.TIGHTENING ** len(self._layers)

    def estimated_error_rate(self) -> float:
        """Return the chance that a fingerprint never added is taken for seen now, from the fill of the layers."""
        return 1 - math.prod(1 - layer.estimated_error_rate for layer in self.layers)

    def expected_false_positives(self) -> float:
        """Return how many new fingerprints are expected to have been taken for seen since the chain began.

        With a maximum age, only the fingerprints that are remembered now count. The number is too high until the
        age has passed once.
        """
        layers = [(layer.spec, layer.count) for layer in self.layers]
        return plan.expected_false_positives(layers, others_come_and_go=self._max_age is not None)

    def copy(self) -> ScalableBloomFilter:
        """Return a filter in memory with the same content, wherever this one lives. They then grow apart."""
        copies = []
        with self._lock:
            for layer in self._open_layers("copied"):
                copies.append(LayerStore().create(layer.spec, layer.created))
                copies[-1].bits[:] = layer.bits
                copies[-1].count = layer.count
            store = LayerStore(copies, self._forgotten, self.watermark)
        return ScalableBloomFilter(self._capacity, self._target, max_age=self._max_age, clock=self._clock, store=store)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the filter to one file, which is replaced as a whole. Raises OSError.

        For a filter in memory. One that :func:`open_filter` opened is in files all the time.
        """
        with self._lock:
            layers = self._open_layers("saved")
            made = {"capacity": self._capacity, "error_rate": self._target, "max_age": self._max_age}
            forgotten = [fingerprint.hex() for fingerprint in self._forgotten]
            layerfile.save(path, {**made, "watermark": self.watermark, "forgotten": forgotten}, layers)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> ScalableBloomFilter:
        """Return the filter that :meth:`save` wrote to *path*, in memory.

        Raises:
            DamagedError: The file contradicts its length or checksum.
            UnusableError: It holds no filter, or one of another version.
            OSError: It cannot be read.

        """
        made, layers = layerfile.load(path, LayerStore().create)
        forgotten = map(bytes.fromhex, made.pop("forgotten"))
        store = LayerStore(layers, forgotten, made.pop("watermark"))
        return cls(**made, clock=clock, store=store)

    def _open_layers(self, done: str) -> Sequence[Layer]:
        if self._closed:
            raise ValueError(f"the filter is closed; it was not {done}")
        self._age()
        return self.layers

    def __reduce__(self) -> NoReturn:
        """Refuse :mod:`pickle`, :func:`copy.copy` and :func:`copy.deepcopy`: the bits belong to one process."""
        raise TypeError(
            "a ScalableBloomFilter cannot be pickled, nor copied by copy.copy(): call its copy(), "
            "or save(path) and ScalableBloomFilter.load(path)"
        )

    def sync(self) -> None:
        """Return once everything added so far would survive a power failure. In memory, do nothing."""
        if self._closed:
            raise ValueError("the filter is closed; there is nothing to sync")
        self._store.sync()

    def close(self) -> None:
        """Write out and release the layers. The filter cannot be used afterwards; closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._settle()
            self._closed = True
            self._quota = 0
            self._probes.set_tables((), 0)
            self._store.close()

    def disown(self, reason: str) -> None:
        """In a forked child, refuse every call for *reason*, and leave the layers to the parent."""
        self._lock = threading.RLock()  # at the fork, another thread may have held the one before
        self._closed = True
        self._quota = 0
        self._probes.set_tables((), 0, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_layer(self) -> None:
        now = self._clock()
        if self._max_age is None:
            last = self._layers[-1].spec if self._layers else None
            spec = plan.next_spec(last, self._capacity, self._target, len(self._layers))
        else:
            spec = plan.next_spec_of_ageing(self._layers, self._capacity, self._target, now=now, max_age=self._max_age)
        self._layers.append(self._store.create(spec, now))

    def _age(self) -> None:
        """Drop the layers that are too old, and let the next new fingerprint begin a layer if the newest is closed."""
        if self._max_age is None or self._closed:
            return
        since, until = self._in_date
        if since <= (now := self._clock()) < until:
            return
        with self._lock:
            self._drop_expired(now, self._max_age)

    def _drop_expired(self, now: float, max_age: float) -> None:
        self._settle()
        expired = [plan.is_expired(layer.created, now=now, max_age=max_age) for layer in self._layers]
        # Drop up to the last layer that is too old: those before it were begun earlier, whatever a wrong clock noted.
        dropped = len(expired) - expired[::-1].index(True) if any(expired) else 0
        if dropped == len(self._layers):
            self._begin_layer()
        del self._layers[:dropped]
        self._arrange()
        if dropped:
            self._drops += 1
            self._store.drop(self._layers[0].spec.index)
            self._recall_dropped()

    def _recall_dropped(self) -> None:
        """Recall forgotten fingerprints that only dropped layers had: these are new without being forgotten."""
        if self._forgotten:
            contains = reader(self._layers)
            for fingerprint in [forgotten for forgotten in self._forgotten if not contains(forgotten)]:
                self.recall(fingerprint)

    def _arrange(self) -> None:
        """Hand the probes the present layers, and how many additions to make before looking at the fill again."""
        newest = self._layers[-1]
        left = 0 if newest.is_saturated else newest.capacity - newest.count
        if self._max_age is not None:
            closing = newest.created + self._max_age / plan.PERIODS
            now = self._clock()
            if now >= closing:
                left, closing = 0, math.inf
            self._in_date = now, min(closing, min(layer.created for layer in self._layers) + self._max_age)
        # With a quota of 0, only the next new fingerprint begins a layer. So exactly the capacity fits in one layer.
        self._use_layers(min(left, max(1, newest.capacity // _LOOKS_PER_LAYER)))

    def _use_layers(self, quota: int) -> None:
        left = self._probes.set_tables([layer.table for layer in reversed(self._layers)], quota)
        self._counted.count += self._quota - left  # what other threads have added since the last look
        self._counted, self._quota = self._layers[-1], quota

    def _settle(self) -> None:
        """Update the count of the layer that takes additions. Meanwhile only the probes count, down from the quota."""
        left = self._probes.left()
        self._counted.count += self._quota - left
        self._quota = left

    def _on_quota_spent(self) -> None:
        """Look at the fill after the last addition of the quota; add a layer if there was no quota."""
        with self._lock:
            if self._quota:
                self._settle()
                self._arrange()
            else:
                self._begin_layer()
                self._use_layers(1)

    def _check(self) -> None:
        """Assert what holds between any two calls, for the tests of filters that one thread uses."""
        assert 0 <= self._probes.left() <= self._quota
        assert self._counted is self._layers[-1]
        first, newest = self.layers[0].spec, self.layers[-1]
        assert newest.count + self._quota <= newest.capacity
        assert self._quota <= max(1, newest.capacity // _LOOKS_PER_LAYER)
        for index, layer in enumerate(self._layers, start=first.index):
            assert layer.count <= layer.capacity
            assert layer.spec.index == index
            assert (layer.spec.probes, layer.spec.seed) == (first.probes, first.seed)
        assert all(map(reader(self._layers), self._forgotten))
