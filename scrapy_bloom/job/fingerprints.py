"""Which fingerprints a job knows: those in the filter, and those on their way into it or out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.commits import Commits


class JobFingerprints:
    """The fingerprints of one job.

    Args:
        chain: The filter.
        commits: Write the fingerprints of a batch together with its requests.

    """

    def __init__(self, chain: ScalableBloomFilter, commits: Commits) -> None:
        self._chain, self._commits = chain, commits
        self.of_memory: dict[bytes, Page] = {}
        """Pages whose requests are in memory only, by the fingerprints that are written with them."""
        self._taken_back: set[bytes] = set()  # new again, though the filter has them until their pages are committed

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint* with the next commit. Return True if it was new."""
        waiting = self._commits.batch.fingerprints
        if (
            fingerprint in waiting
            or fingerprint in self._commits.writing.fingerprints
            or (self._chain.contains(fingerprint) and fingerprint not in self._taken_back)
            or fingerprint in self.of_memory
        ):
            return False
        if self._taken_back:
            self._taken_back.discard(fingerprint)
        waiting[fingerprint] = None
        return True

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was added before. Remembers nothing."""
        waiting, writing = self._commits.batch.fingerprints, self._commits.writing.fingerprints
        return [
            fingerprint in waiting
            or fingerprint in writing
            or (fingerprint in self._chain and fingerprint not in self._taken_back)
            or fingerprint in self.of_memory
            for fingerprint in fingerprints
        ]

    def keep_in_memory(self, fingerprint: bytes | None, page: Page) -> None:
        """Write *fingerprint* with *page*, whose request is in memory only: before, it would outlive the request."""
        if fingerprint is not None and self._commits.batch.fingerprints.pop(fingerprint, fingerprint) is None:
            self.of_memory[fingerprint] = page
            page.fingerprint = fingerprint

    def forget(self, fingerprint: bytes) -> bool:
        """Take *fingerprint* back, durably. Return False if it was not known."""
        was_waiting = self._forget_waiting(fingerprint)
        return self._chain.forget(fingerprint) or was_waiting

    def _forget_waiting(self, fingerprint: bytes) -> bool:
        """Forget *fingerprint* where no commit has written it; return whether it was there."""
        commits = self._commits
        if fingerprint in commits.writing.fingerprints:
            commits.wait()
        batches = (commits.batch, commits.writing)
        is_waiting = [batch.fingerprints.pop(fingerprint, fingerprint) is None for batch in batches]
        page = self.of_memory.pop(fingerprint, None)
        if page is not None:
            page.fingerprint = None
        return page is not None or any(is_waiting)

    # -- taken back with a page ----------------------------------------------------------------------------------------

    def take_back(self, page: Page, fingerprints: Iterable[bytes]) -> None:
        """Take back *fingerprints* of *page*, which has failed: at once in this run, and in the commit of the page."""
        for fingerprint in fingerprints:
            self._forget_waiting(fingerprint)
            if self._chain.contains(fingerprint):  # also if a link was followed again, and failed again
                self._taken_back.add(fingerprint)
                page.taken_back.append(fingerprint)

    def still_taken_back(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return those of *fingerprints* that no later request has made known again."""
        return [fingerprint for fingerprint in fingerprints if fingerprint in self._taken_back]

    def forget_committed(self, fingerprints: Iterable[bytes]) -> None:
        """Forget *fingerprints*, which a commit has taken back, and let the next one take off its note of them."""
        for fingerprint in fingerprints:
            self._chain.forget(fingerprint)
            self._taken_back.discard(fingerprint)
            self._commits.batch.note("forgotten", {fingerprint.hex(): b""})
