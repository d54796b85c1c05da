"""The layers that another crawl filled: :class:`MergedChain`. They are asked like any others and never added to.

Their hash seed differs, and maybe their number of probes, so each chain is asked separately. Does not know which chain
takes what is new, nor where the bits live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scrapy_bloom.old.filter import probes as probing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from scrapy_bloom.old.filter.layer import Layer


class MergedChain:
    """The layers of one other crawl, with what that crawl had taken back."""

    def __init__(self, layers: Sequence[Layer], forgotten: Collection[bytes]) -> None:
        """Take at least one of the *layers* of a chain, oldest first, and the fingerprints that it had *forgotten*."""
        self.layers = tuple(layers)
        self.forgotten = frozenset(forgotten)
        spec = self.layers[0].spec
        self._probes = probing.bind(spec.probes, spec.seed, on_quota_spent=_refuse)
        self._probes.set_tables([layer.table for layer in reversed(self.layers)], 0)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the other crawl had seen *fingerprint*. False is certain, True is probable."""
        return self._probes.contains(fingerprint) and fingerprint not in self.forgotten

    def __len__(self) -> int:
        """Return the number of fingerprints that the other crawl had accepted and not forgotten."""
        return sum(layer.count for layer in self.layers) - len(self.forgotten)

    def close(self) -> None:
        """Release the bits."""
        self._probes.set_tables((), 0)


def _refuse() -> NoReturn:
    raise ValueError("a merged chain takes no more fingerprints")
