"""A shared filter with a local one in front, which goes on when the server is away: :class:`FleetFilter`.

The local filter remembers what the server has called seen or accepted, so that a duplicate known to this process
costs no round trip. This module knows no Scrapy; ending a crawl is its caller's business.

**Whom to believe.** "New" from a server that has just lost something costs a fetch; "seen" must never be wrong:

- After a command that failed, nobody knows whether the server carried it out. If the same fingerprint is then "seen",
  that may be our own first attempt: it counts as new.
- If the queue is on a server, too, the push after the last fingerprint accepted before a failure may have failed. That
  fingerprint is accepted once more. ``backlog.py`` decides what becomes of fingerprints accepted during an outage.
- The local filter's "seen" counts for :data:`TRUST_SECONDS` after the server has last confirmed the chain. Then the
  next duplicate is asked about. So when somebody removes the filter from the server to crawl everything again, running
  processes forget it, too.
- A chain that is gone, for whatever reason, is begun anew, and the local filter with it.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import BloomError
from scrapy_bloom.old.filter.chain import ScalableBloomFilter
from scrapy_bloom.old.fleet.client import FullError, ServerError, unusable
from scrapy_bloom.old.fleet.filter.backlog import Backlog, QueuePlace
from scrapy_bloom.old.fleet.filter.outage import FIRST_PAUSE, Outage
from scrapy_bloom.old.fleet.filter.shared_chain import GoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.old.fleet.filter.shared import SharedFilter
    from scrapy_bloom.old.fleet.filter.shared_chain import ChainFigures

logger = logging.getLogger(__name__)

RETRY, CLOSE = "retry", "close"

LOCAL_SHARE = 0.25
"""Share of the promised error rate that the local filter may use up; the server's has the rest.

A new URL is wrongly called seen if either filter does so, and the two rates add up. A quarter costs the server 0.6
bits per URL more than the whole would, and the local filter, in cheaper memory, 2.9.
"""

TRUST_SECONDS = 1.0
"""Seconds for which "seen" from the local filter counts without an answer from the server."""

RETRY_SECONDS = 5.0
"""Seconds for which one call retries when the server has gone away, under ``retry``. The reactor waits meanwhile."""

LOOK_SECONDS = 5.0
"""How often :meth:`FleetFilter.look` should be called, and how long the server may be silent before it is asked."""

MAX_LOCAL = 100_000_000
"""Fingerprints at which the local filter, some 450 MB by then, begins again. What it forgets costs round trips, not
fetches."""

MAX_LOCAL_CAPACITY = MAX_LOCAL + 1_000_000
"""What the local filter is made for at most, however much the shared one is: it begins again before it grows."""

_CATCH_UP_SECONDS = 0.2
_CLOSING_SECONDS = 5.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 0.5
_SETTLE_URLS = 1024


class FleetFilter:
    """Answers "seen before?" for this process and its siblings; never raises for the server's sake.

    Args:
        shared: The filter on the server.
        capacity: Fingerprints that the first layer of the local filter is made for.
        error_rate: The local filter's part of the error rate.
        growth: The local filter's growth.
        local_age: Seconds for which the local filter may hold anything before it begins again; None: any time.
        on_error: ``"retry"``, ``"allow"`` or ``"close"``.
        queue: Where the requests of new fingerprints go.
        on_away: Called when the server has gone away, and again by :meth:`look` while it is.
        on_settled: Called now and then, when numbers worth showing have changed.

    """

    def __init__(
        self,
        shared: SharedFilter,
        *,
        capacity: int,
        error_rate: float,
        growth: float,
        local_age: float | None = None,
        on_error: str = RETRY,
        queue: QueuePlace = QueuePlace.HERE,
        on_away: Callable[[], None] | None = None,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        self.shared = shared
        self.figures: ChainFigures | None = None
        """The shared filter as it was at the last look."""
        self.expected_lost = 0.0
        """Expected number of new URLs that this process has called seen."""
        # If the queue may be away as well, look again soon: until then every push goes unfiltered or is lost.
        self.outage = Outage(longest_pause=None if queue is QueuePlace.HERE else FIRST_PAUSE)
        self.backlog = Backlog(queue)
        self._push_may_fail = queue is not QueuePlace.HERE
        self._last_new: bytes | None = None
        self._doubted: set[bytes] = set()
        self._new_local = partial(ScalableBloomFilter, min(capacity, MAX_LOCAL_CAPACITY), error_rate, growth=growth)
        self._local = self._new_local()
        self._local_age = math.inf if local_age is None else local_age
        self._local_until = time.monotonic() + self._local_age
        self._epoch = 0
        self._on_error = on_error
        self._on_away = on_away
        self._on_settled = on_settled
        self._trusted_until = 0.0
        self._next_bulk = 0.0
        self._has_warned_of_full_server = False
        self._unsettled = 0
        self._answers = 0

    def open(self) -> None:
        """Find or begin the shared filter.

        Raises:
            BloomError: It cannot be used, or the server is not there.

        """
        try:
            self.shared.open()
            self.figures = self.shared.figures()
        except ServerError as error:
            advice = "See what the server logs, and whether its user may do that."
            raise unusable(self.shared.where, str(error), advice) from None
        self._trust()

    @property
    def local(self) -> ScalableBloomFilter:
        """The filter in front, of this process alone."""
        return self._local

    @property
    def epoch(self) -> int | None:
        """A number that stays the same as long as what was seen is seen; None while the server has to confirm that."""
        return self._epoch if time.monotonic() < min(self._trusted_until, self._local_until) else None

    def add(self, fingerprint: bytes) -> bool:
        """Remember *fingerprint*. Return True if it is new to all processes, or if the server does not say."""
        self._forget_if_old()
        is_known = fingerprint in self._local
        if is_known and time.monotonic() < self._trusted_until:
            return False
        is_new = self._ask(fingerprint, is_known=is_known)
        if is_new:
            self._last_new = fingerprint
            self._unsettled += 1
            if self._unsettled >= _SETTLE_URLS:
                self._settle()
        return is_new

    def seen_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether any process added it, in one round trip at most. Adds nothing.

        What the server does not say counts as not seen.
        """
        self._forget_if_old()
        local = self._local
        seen = [fingerprint in local for fingerprint in fingerprints]
        now = time.monotonic()
        if now < self._trusted_until:
            unknown = [i for i, is_known in enumerate(seen) if not is_known]
        else:
            unknown = list(range(len(fingerprints)))
        if not unknown or now < max(self.outage.next_look, self._next_bulk):
            return seen
        try:
            answers = self.shared.seen_many([fingerprints[i] for i in unknown])
        except GoneError:
            self._trusted_until = 0.0  # the next addition finds out, and begins anew
            return [False] * len(fingerprints)
        except ServerError as error:
            # Not worth waiting for: links that pass become requests, and the first of those finds out.
            logger.debug("The filter on %s could not be asked about links: %s", self.shared.where, error)
            self._next_bulk = now + FIRST_PAUSE
            return seen
        if any(answers):
            self._trust()
        for i, answer in zip(unknown, answers, strict=True):
            seen[i] = answer and fingerprints[i] not in self._doubted
            if seen[i]:
                local.add(fingerprints[i])
        if self.backlog:
            # The server does not know yet what waits to be written.
            waiting = set(self.backlog.waiting())
            seen = [is_seen or fingerprint in waiting for is_seen, fingerprint in zip(seen, fingerprints, strict=True)]
        return seen

    def look(self) -> None:
        """Ask the server for a sign of life if it has given none for a while, and keep the filter from expiring.

        Call it every :data:`LOOK_SECONDS` while the crawl runs. A process with nothing to ask would notice neither that
        the server has gone away nor that it is back.
        """
        if self.outage.is_on and self._on_away is not None:
            self._on_away()  # again: the crawl may have been too young to be ended before
        now = time.monotonic()
        if now < (self.outage.next_look if self.outage.is_on else self._trusted_until - TRUST_SECONDS + LOOK_SECONDS):
            return
        try:
            self.shared.confirm()
            self._back()
            while self.backlog and time.monotonic() < now + _CATCH_UP_SECONDS:
                self._catch_up()
        except GoneError:
            self._trusted_until = 0.0  # the next fingerprint to be added begins anew
        except ServerError as error:
            self._lose(error)

    def clear(self) -> None:
        """Remove the filter from the server, and forget all that is known here."""
        self._settle()
        self._local = self._new_local()
        self._epoch += 1
        self._doubted.clear()
        self._last_new = None
        self.backlog.forget()
        self._trusted_until = 0.0
        try:
            self.shared.clear()
        except (ServerError, BloomError) as error:
            logger.error(  # noqa: TRY400 - the reason is in the message
                "The filter on %s could not be removed: %s. Remove it by hand, or the next crawl will take its pages "
                "for seen.",
                self.shared.where,
                error,
            )

    def close(self) -> None:
        """Write what is waiting, take a last look, and close the connection."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        try:
            while self.backlog and time.monotonic() < deadline:
                self._catch_up()
            self._settle()
        except (ServerError, GoneError, BloomError) as error:
            logger.debug("The filter on %s could not be asked at the end: %s", self.shared.where, error)
        if self.backlog.unwritten:
            logger.warning(
                "%d URLs that were accepted while the server was away are not in the filter on %s: they may be fetched "
                "again by other or later crawls.",
                self.backlog.unwritten,
                self.shared.where,
            )
        try:
            self.shared.server.close()
        except ServerError as error:
            logger.debug("Closing the connection to %s failed: %s", self.shared.where, error)

    def _ask(self, fingerprint: bytes, *, is_known: bool) -> bool:
        if time.monotonic() < self.outage.next_look:
            return self._accept_alone(fingerprint, is_known=is_known)
        may_retry = self._on_error == RETRY and not self.outage.is_on
        deadline = time.monotonic() + (RETRY_SECONDS if may_retry else 0.0)
        backoff = _FIRST_BACKOFF
        is_doubtful = False
        while True:
            try:
                return self._ask_once(fingerprint, is_doubtful=is_doubtful)
            except FullError as error:
                return self._ask_full(fingerprint, error, is_doubtful=is_doubtful)
            except (ServerError, GoneError, BloomError) as error:
                is_doubtful = True
                self._doubt_the_last_push()
                if time.monotonic() + backoff > deadline:
                    self._lose(error)
                    return self._accept_alone(fingerprint, is_known=is_known)
            time.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def _ask_once(self, fingerprint: bytes, *, is_doubtful: bool) -> bool:
        if not self.shared.is_open:
            self.shared.open()
        try:
            if self.backlog:
                self._catch_up()
                if fingerprint in self._local:
                    self._back()
                    return False
            is_new = self.shared.add([fingerprint])[0]
        except GoneError:
            self._begin_anew()
            if fingerprint in self._local:  # it waits to be written
                return False
            is_new = self.shared.add([fingerprint])[0]
        self._back()
        was_known = not self._local.add(fingerprint)
        self._answers += 1
        if self._answers % _SETTLE_URLS == 0 and len(self._local) >= MAX_LOCAL:
            self._forget()
        if fingerprint in self._doubted:
            self._doubted.discard(fingerprint)
            return True
        return is_new or (is_doubtful and not was_known)

    def _ask_full(self, fingerprint: bytes, error: Exception, *, is_doubtful: bool) -> bool:
        """Look up what the server remembers, since it takes no more; what it does not know is let through."""
        if not self._has_warned_of_full_server:
            self._has_warned_of_full_server = True
            logger.warning(
                "The server at %s is full (%s), and several processes may fetch the same pages. %s Raise its "
                "maxmemory; noeviction is the right policy.",
                self.shared.where,
                error,
                self.backlog.promise,
            )
        is_known = fingerprint in self._local
        try:
            is_seen = self.shared.seen_many([fingerprint])[0]
        except (ServerError, GoneError) as error_:
            self._lose(error_)
            is_seen = False
        if not is_seen or fingerprint in self._doubted:
            return self._accept_alone(fingerprint, is_known=is_known)
        self._local.add(fingerprint)
        return is_doubtful and not is_known  # it may be our own first attempt that the server remembers

    def _accept_alone(self, fingerprint: bytes, *, is_known: bool) -> bool:
        """Answer without the server."""
        if is_known or fingerprint in self.backlog:
            return False
        if self.backlog.accept(fingerprint):
            self._local.add(fingerprint)
        if self.backlog.begins_to_overflow():
            logger.warning(
                "The server at %s has been away for %d new URLs. Further ones are crawled, but not written to the "
                "filter when it is back.",
                self.shared.where,
                len(self.backlog),
            )
        return True

    def _catch_up(self) -> None:
        """Write some of the waiting fingerprints to the server. They stay waiting until it has answered."""
        batch = self.backlog.batch()
        self.shared.add(batch)
        self.backlog.written(len(batch))

    def _begin_anew(self) -> None:
        """Begin the chain again, and the local filter with it; keep what waits to be written."""
        self.shared.open()
        logger.warning(
            "The filter on %s is gone: it was removed, has expired, or the server came back without its data. It "
            "begins anew, and URLs seen before are fetched again.",
            self.shared.where,
        )
        self._forget()

    def _forget_if_old(self) -> None:
        """Begin the local filter again before it can hold what the server has dropped for its age."""
        if time.monotonic() >= self._local_until and not self.outage.is_on:
            self._forget()

    def _forget(self) -> None:
        """Begin the local filter again, with what waits to be written, since only this process knows of that."""
        self._epoch += 1
        self._local = self._new_local()
        self._local_until = time.monotonic() + self._local_age
        self._last_new = None
        for fingerprint in self.backlog.waiting():
            self._local.add(fingerprint)

    def _doubt_the_last_push(self) -> None:
        """Accept the last fingerprint once more, if the push of its request may have failed as well."""
        if self._push_may_fail and self._last_new is not None:
            self._doubted.add(self._last_new)
            self._local.forget(self._last_new)
            self._epoch += 1
            self._last_new = None

    def _lose(self, error: Exception) -> None:
        """Note that the server is away."""
        self._doubt_the_last_push()
        begins = self.outage.note()
        self._trusted_until = self.outage.next_look
        if begins:
            logger.warning(
                "The server at %s is away (%s). %s %s",
                self.shared.where,
                error,
                "The crawl ends; it can be resumed."
                if self._on_error == CLOSE
                else "The crawl goes on with what this process knows; others may fetch the same pages.",
                self.backlog.promise,
            )
            if self._on_away is not None:
                self._on_away()

    def _back(self) -> None:
        self._trust()
        self.backlog.server_is_back()
        if self.outage.end():
            logger.info("The server at %s is back; %d URLs wait to be written", self.shared.where, len(self.backlog))

    def _trust(self) -> None:
        self._trusted_until = time.monotonic() + TRUST_SECONDS

    def _settle(self) -> None:
        """Add up the expected loss since the last time, at the present rates, which are the highest so far."""
        unsettled, self._unsettled = self._unsettled, 0
        if self.shared.is_open and not self.outage.is_on:
            try:
                self.figures = self.shared.figures()
            except ServerError as error:
                logger.debug("The filter on %s could not be described: %s", self.shared.where, error)
        rate = self._local.estimated_error_rate() + (self.figures.error_rate if self.figures is not None else 0.0)
        self.expected_lost += unsettled * rate
        if self._on_settled is not None:
            self._on_settled()
