"""Requests that only this process has, and of which the server says which worker fetches them.

A claim goes to the server. If it is *granted*, this worker fetches the request; the claim holds until the request is
done, or the life of the worker ends. If the request is *done*, a worker has fetched it. If it is *taken*, another one
has it: a link is dropped, since the page that led to it is fetched again if that worker dies. A start request, which no
page leads to, is claimed again until it is granted or done.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from scrapy_bloom.fleet.messages import Answer, Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_bloom.frontier.page import Page

TAKEN_SECONDS, LOST_SECONDS = 1.0, 10.0
"""Seconds until a claim is made again: if another worker has the request, or if the answer may have got lost."""


class Claims:
    """The requests in the memory of this process, and which worker fetches them.

    *send* delivers a claim to the server. At most *most* requests are claimed, or granted and not begun, at a time, so
    that the other workers get theirs.
    """

    def __init__(self, send: Callable[[Claim], None], shard_of: Callable[[bytes], int], most: int) -> None:
        self._send, self._shard_of, self._most = send, shard_of, most
        self.granted: deque[Page] = deque()
        """Pages whose requests were granted to this worker and have not begun."""
        self._pages: dict[bytes, Page] = {}
        self._new: deque[bytes] = deque()
        self._asked: dict[bytes, float] = {}  # when to claim the request again if no answer has come
        self._taken: deque[tuple[float, bytes]] = deque()  # when to claim the request again, and its fingerprint

    def __len__(self) -> int:
        """Return how many requests wait for the server's decision, or for another worker to finish them."""
        return len(self._pages)

    def add(self, page: Page) -> bool:
        """Let *page*, which has a fingerprint, be claimed in its turn; return False if one like it waits already."""
        assert page.fingerprint is not None  # noqa: S101 - the caller has looked
        if page.fingerprint in self._pages:
            return False
        self._pages[page.fingerprint] = page
        self._new.append(page.fingerprint)
        return True

    def ask(self) -> None:
        """Claim what is due."""
        now = time.monotonic()
        while self._asked and next(iter(self._asked.values())) < now:
            fingerprint = next(iter(self._asked))
            del self._asked[fingerprint]
            self._new.append(fingerprint)
        while len(self._asked) + len(self.granted) < self._most:
            if self._new:
                fingerprint = self._new.popleft()
            elif self._taken and self._taken[0][0] <= now:
                fingerprint = self._taken.popleft()[1]
            else:
                return
            self._asked[fingerprint] = now + LOST_SECONDS
            self._send(self.of(fingerprint))

    def of(self, fingerprint: bytes, *, is_done: bool = False) -> Claim:
        """Return the message that claims a request, or says that it *is_done*."""
        return Claim(self._shard_of(fingerprint), fingerprint, is_done)

    def answered(self, answers: Iterable[tuple[bytes, Answer]]) -> list[tuple[Page, Answer]]:
        """Return the pages that *answers* settle; the start requests that are taken go on waiting."""
        settled = []
        for fingerprint, answer in answers:
            if self._asked.pop(fingerprint, None) is None:  # the second answer to a claim that was made twice
                continue
            if answer is Answer.TAKEN and not self._pages[fingerprint].parent:
                self._taken.append((time.monotonic() + TAKEN_SECONDS, fingerprint))
            else:
                settled.append((self._pages.pop(fingerprint), answer))
        return settled
