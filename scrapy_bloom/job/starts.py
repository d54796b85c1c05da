"""Which start requests an unfinished job has asked for: a resumed run does not repeat them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy_bloom.filter.chain import ScalableBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from scrapy_bloom.job.store import JobStore


class StartRequests:
    """The start requests of one run. The n-th of those that look alike is the n-th of every run."""

    def __init__(self) -> None:
        self._of_run = ScalableBloomFilter(1_000, 1e-3)  # fingerprints; a false positive costs a fetch
        self._again: Counter[bytes] = Counter()
        self._last = b""

    def were_asked_for(self, request: Request, store: JobStore, of_request: Callable[[Request], bytes]) -> bool:
        """Return whether an earlier run of the job in *store* has asked for *request*, and note that this one does."""
        self._last = b""
        with suppress(Exception):  # of a fingerprinter of the user's: what cannot be checked is fetched
            fingerprint = of_request(request)
            if not self._of_run.add(fingerprint):
                self._again[fingerprint] += 1
            again = b"again %d " % self._again[fingerprint] if fingerprint in self._again else b""
            self._last = b"start %d " % store.state.cycle + again + fingerprint
            return not store.add(self._last) and store.is_resumed
        return False

    def ask_again(self, store: JobStore) -> None:
        """Have the next run ask for the last one again: it does not survive this run."""
        if self._last:
            store.forget(self._last)
