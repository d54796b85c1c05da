"""The thread that talks to the queue on the server, so that the crawl never waits for it.

It delivers links and acknowledgements, and fetches leased requests. Links handed over before an acknowledgement reach
the server before it, or in the same script; that is why no page is lost with a process. While a call is on its way,
new work gathers for the next, so a slower server gets fewer calls.

Knows no request of Scrapy's, and decides nothing about a crawl: it tells its owner what has arrived, and when nothing
is left anywhere.

While the server is away, the thread keeps everything and retries; pages stay leased, and it leases no more. A full
server refuses links; the pages they came from stay leased until there is room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import BloomError, counted
from scrapy_bloom.old.fleet.client import FullError, ServerError
from scrapy_bloom.old.fleet.filter.shared_chain import GoneError
from scrapy_bloom.old.fleet.frontier.aside import urls_of
from scrapy_bloom.old.fleet.frontier.queue import CRASH_LIMIT, MAX_LINKS, NameTakenError, StaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_bloom.old.fleet.frontier.queue import Finished, Lease, Leased, Link, Queue

logger = logging.getLogger(__name__)

FIRST_IDLE, LONGEST_IDLE = 0.02, 0.5
"""Seconds between two looks for requests while there are none; doubles from the first to the longest."""

LINGER = 0.05
"""Seconds that a link waits for the acknowledgement of its page, or for more links, to share a round trip with them."""

EXPECTING = 0.02
"""Seconds that a look for requests waits, while pages are in hand, to share the round trip of the next acknowledgement.
A worker that fetches one page at a time made 2.1 round trips per page without it, and 1.1 with it."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries at a server that is away or full; doubles from the first to the longest."""

_SHOWN, _SHOWN_URL = 20, 300
"""Requests named in one log line, and characters of the URL of each."""


class Courier:
    """One worker's thread.

    Args:
        queue: The queue to serve; :meth:`join` joins it.
        low: Fetch more when this many leased requests are left, even if there is nothing else to send.
        news: Called in the thread when there is something to :meth:`collect`, or the crawl is over.
        on_away: Called in the thread each time the server goes away.
        on_begun_anew: Called in the thread when the filter or the queue was gone from the server and had to begin anew;
            ``is_queue`` says whether it was the queue.

    """

    def __init__(
        self,
        queue: Queue,
        *,
        low: int,
        news: Callable[[], None],
        on_away: Callable[[], None],
        on_begun_anew: Callable[..., None],
    ) -> None:
        self.queue = queue
        self.is_over = False
        """Whether the last look found nothing pending and nothing leased anywhere."""
        self.confirmed_at = 0.0
        """When the server last confirmed that the filter is still the same, on the clock of ``time.monotonic()``."""
        self.has_begun = False
        """Whether there was no queue yet when this worker started."""
        self.is_away = False
        self.has_failed = False
        """Whether the thread has ended because of a bug."""
        self.times_away = 0
        self.taken_back = 0
        """Requests of lost workers that this one made pending again."""
        self.stale = 0
        """Requests acknowledged after their lease had ended; others fetch them again."""
        self.aside = 0
        """Requests set aside, as far as this worker was told."""
        self._news = news
        self._on_away = on_away
        self._on_begun_anew = on_begun_anew
        self._changed = threading.Condition()
        self._room = 0
        self._low = low
        self._wanted_at: float | None = None  # since when requests are wanted
        self._outbox: deque[Link] = deque()
        self._done: deque[Leased] = deque()
        self._garbled: deque[Leased] = deque()
        self._arrived: deque[Leased] = deque()
        self._answered: deque[tuple[Link, bool]] = deque()
        self._linger_until = 0.0
        self._sending: deque[Link] = deque()
        self._sending_done: list[Leased] = []
        self._parts: dict[int, tuple[int, list[Link]]] = {}  # by shard, what is on its way, and under which number
        self._leased: list[set[bytes]] = [set() for _ in range(queue.shards)]
        self._is_in_doubt = False  # about what the server has leased to this worker
        self._is_closing = False
        self._deadline = float("inf")
        self._next_look = self._next_beat = self._next_try = 0.0
        self._idle, self._pause = FIRST_IDLE, FIRST_PAUSE
        self._is_full = self._has_logged_no_list = False
        self._next_shard = 0
        self._looked: list[tuple[int, int] | None] = [None] * queue.shards
        self._before: list[tuple[int, int]] | None = None
        self._subject = queue.where.rstrip(",")
        self._thread = threading.Thread(target=self._run, name="scrapy-bloom fleet", daemon=True)

    # -- called by the owner -----------------------------------------------------------------------------------------

    def join(self) -> None:
        """Become a worker of the queue, which is begun if there is none.

        Raises:
            BloomError: The queue cannot be used.
            ServerError: The server does not answer, or refuses.

        """
        for shard in range(self.queue.shards):
            joined = self.queue.join(shard)
            self._log_crash(shard, self.queue.worker, joined.returned, joined.aside)
            self.has_begun = self.has_begun or joined.created

    def start(self) -> None:
        """Begin. The queue was joined."""
        self._thread.start()

    def send(self, link: Link) -> None:
        """Send a link."""
        with self._changed:
            self.is_over = False
            self._outbox.append(link)
            if len(self._outbox) == 1:
                self._linger_until = time.monotonic() + LINGER
                self._changed.notify()
            elif len(self._outbox) == MAX_LINKS:
                self._changed.notify()

    def acknowledge(self, leased: Leased, room: int) -> None:
        """Acknowledge the page, once everything sent before it is on the server.

        *room* is as in :meth:`take`.
        """
        with self._changed:
            self._room = room
            self._done.append(leased)
            self._changed.notify()

    def set_aside(self, leased: Leased) -> None:
        """Set aside a request whose entry cannot be read."""
        with self._changed:
            self._garbled.append(leased)
            self._changed.notify()

    def take(self, room: int) -> Leased | None:
        """Return a leased request, or None if none has arrived.

        *room* is how many requests there is room for, counting this one and those that have arrived.
        """
        with self._changed:
            taken = self._arrived.popleft() if self._arrived else None
            self._room = room - (taken is not None)
            if not (len(self._arrived) <= self._low and self._wanted()):
                self._wanted_at = None
            else:
                self._wanted_at = self._wanted_at or time.monotonic()
                self._changed.notify()
            return taken

    def collect(self) -> list[tuple[Link, bool]]:
        """Return the links that the server has answered since the last call, and whether each was seen."""
        with self._changed:
            found = list(self._answered)
            self._answered.clear()
            return found

    @property
    def arrived(self) -> int:
        """Leased requests that wait to be taken."""
        return len(self._arrived)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is on its way, in either direction."""
        with self._changed:
            return not (self._outbox or self._done or self._arrived or self._sending or self._sending_done)

    def close(self, seconds: float) -> tuple[int, int]:
        """Deliver what is left, within *seconds*, and give back what was not begun.

        Return how many links and how many acknowledgements could not be delivered.
        """
        with self._changed:
            self._is_closing = True
            self._deadline = time.monotonic() + seconds
            self._next_try = 0.0
            self._changed.notify()
        self._thread.join(2 * seconds + 10)
        links = len(self._outbox) + len(self._sending)
        done = len(self._done) + len(self._sending_done)
        return links, done

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        except Exception:
            logger.exception(
                "The thread that talks to %s has failed. Nothing is lost; the crawl ends", self.queue.where
            )
            self._lose_for_good()

    def _lose_for_good(self) -> None:
        self.is_away = True
        self._on_away()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do. Return False at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                is_urgent = bool(self._done or self._garbled or self._sending or self._sending_done)
                if self._is_closing and (not (is_urgent or self._outbox) or now >= self._deadline):
                    break
                due = self._next_beat
                if self._outbox:
                    due = min(due, self._linger_until)
                if is_urgent or len(self._outbox) >= MAX_LINKS or (self._outbox and self._is_closing):
                    due = now
                elif len(self._arrived) <= self._low and self._wanted():
                    due = min(due, max(self._next_look, self._expecting_until()))
                due = max(due, self._next_try)
                if self._is_closing:
                    due = min(due, self._deadline)
                if due <= now:
                    self._load()
                    return True
                self._changed.wait(due - now)
        self._leave()
        return False

    def _expecting_until(self) -> float:
        """Return until when an acknowledgement is likely to come that can carry a look."""
        in_hand = sum(map(len, self._leased)) - len(self._arrived)
        return 0.0 if self._wanted_at is None or not in_hand else self._wanted_at + EXPECTING

    def _wanted(self) -> int:
        return 0 if self._is_full or self._is_closing else max(0, self._room - len(self._arrived))

    def _load(self) -> None:
        """Take all there is in one go, so that what came before an acknowledgement is sent before it."""
        self._sending.extend(self._outbox)
        self._outbox.clear()
        self._sending_done.extend(self._done)
        self._done.clear()

    def _step(self) -> None:
        try:
            self._exchange()
        except _AgainError:
            pass
        except FullError as error:
            self._warn_of_full_server(error)
        except GoneError:
            self._begin_filter_anew()
        except (ServerError, BloomError) as error:
            self._lose(error)
        else:
            self._back()

    def _exchange(self) -> None:
        if self._is_in_doubt:
            # An answer got lost. If it was that of a lease, this worker holds requests it does not know of, and would
            # keep them for ever.
            for at, ids in enumerate(self._leased):
                self.queue.keep(at, sorted(ids))
            self._is_in_doubt = False
        while self._garbled:
            garbled = self._garbled[0]
            self.queue.set_aside(garbled, "garbled")
            self._leased[garbled.shard].discard(garbled.id)
            self._garbled.popleft()
            self.aside += 1
        shards = {link.shard for link in self._sending} | {leased.shard for leased in self._sending_done}
        if len(shards) == 1:
            (shard,) = shards
            if len(self._part(shard)[1]) == len(self._sending):
                self._exchange_in_one(shard)
                return
        while self._sending:
            self._deliver_parts()
        for shard in {leased.shard for leased in self._sending_done}:
            self._exchange_in_one(shard, looking=False)
        self._exchange_in_one(None)

    def _exchange_in_one(self, shard: int | None, *, looking: bool = True) -> None:
        """Deliver what goes to *shard*, acknowledge what is done there, and look for requests, in one round trip."""
        commands = []
        links: list[Link] = []
        done: list[Leased] = []
        ids: list[bytes] = []
        if shard is not None:
            number, links = self._part(shard)
            done = [leased for leased in self._sending_done if leased.shard == shard]
            ids = [leased.id for leased in done if leased.token == self.queue.token(shard)]
            commands.append(self.queue.finish(shard, number, links, ids))
        looks = self._looks() if looking else []
        most = dict(looks).get(0, 0) if self.queue.start_urls else 0
        if most:  # in front of the lease, which then finds what was taken
            commands.append(self.queue.take_start_urls(most))
        commands += [self.queue.lease(at, wanted) for at, wanted in looks]
        if not commands:
            return
        replies = self.queue.server.calls(commands)
        # Read the leases first: what was leased is held, whatever became of the links.
        stale = self._read_looks(looks, replies[len(replies) - len(looks) :])
        if most:
            self._read_taken(replies[len(replies) - len(looks) - 1])
        if shard is None:
            # Only after a look that carried nothing. A script the server does not know yet is sent again in full; the
            # look behind it has then run before it.
            if len(looks) == self.queue.shards and not stale:
                self._see_whether_over()
        else:
            finished = self._finished(shard, replies[0])
            if finished is None:
                raise _AgainError
            self._delivered(shard, links, finished)
            gone = {id(leased) for leased in done}
            self._sending_done = [leased for leased in self._sending_done if id(leased) not in gone]
            self._leased[shard].difference_update(ids)
            self.stale += len(done) - finished.acknowledged
            if not finished.is_alive:
                stale.add(shard)
        for at in stale:
            self._join_anew(at)

    def _deliver_parts(self) -> None:
        """Deliver links to all shards that have some, in one round trip per node."""
        parts = {shard: self._part(shard) for shard in {link.shard for link in self._sending}}
        commands = [self.queue.finish(shard, number, links, []) for shard, (number, links) in parts.items()]
        replies = self.queue.server.calls(commands)
        failed: Exception | None = None
        for (shard, (_, links)), reply in zip(parts.items(), replies, strict=True):
            try:
                finished = self._finished(shard, reply)
                if finished is not None:
                    self._delivered(shard, links, finished)
            except (ServerError, GoneError) as error:
                failed = error
        if failed is not None:
            raise failed

    def _finished(self, shard: int, reply: Any) -> Finished | None:
        """Read an answer. None: nothing was done, call again."""
        try:
            return self.queue.finished(shard, reply)
        except StaleError:
            self._join_anew(shard)
            return None

    def _part(self, shard: int) -> tuple[int, list[Link]]:
        """Return the number and the links of the call that is on its way to *shard*, or comes next.

        Both stay the same until it is answered: the server takes a second call of the same number for a repeated one.
        """
        if shard not in self._parts:
            links = [link for link in self._sending if link.shard == shard][:MAX_LINKS]
            self._parts[shard] = (self.queue.next_number(), links)
        return self._parts[shard]

    def _delivered(self, shard: int, links: Sequence[Link], finished: Finished) -> None:
        del self._parts[shard]
        self.confirmed_at = time.monotonic()
        arrived = links[: len(finished.seen)]
        gone = {id(link) for link in arrived}
        self._sending = deque(link for link in self._sending if id(link) not in gone)
        if arrived:
            with self._changed:
                self._answered.extend(zip(arrived, finished.seen, strict=True))
            self._news()
        if not all(finished.seen):
            self._idle = FIRST_IDLE
        if len(arrived) < len(links):
            raise _AgainError

    def _looks(self) -> list[tuple[int, int]]:
        """Return which shards to look at, and how many requests to lease in each."""
        now = time.monotonic()
        shards = self.queue.shards
        wanted = self._wanted()
        everywhere = now >= self._next_beat or (wanted and now >= self._next_look)
        if now >= self._next_beat:
            self._next_beat = now + self.queue.lease_seconds / 3
        order = [(self._next_shard + i) % shards for i in range(shards)]
        promising = [shard for shard in order if (look := self._looked[shard]) is None or look[0]]
        shares = {shard: wanted // len(promising) for shard in promising}
        for shard in promising[: wanted % len(promising) if promising else 0]:
            shares[shard] += 1
        self._next_shard = (self._next_shard + 1) % shards
        if everywhere:
            return [(shard, shares.get(shard, min(1, wanted))) for shard in order]
        return [(shard, share) for shard, share in shares.items() if share]

    def _read_looks(self, looks: list[tuple[int, int]], replies: list[Any]) -> set[int]:
        """Take in what was leased, and return the shards that do not know this worker."""
        stale: set[int] = set()
        leased: list[Leased] = []
        for (shard, _), reply in zip(looks, replies, strict=True):
            try:
                lease = self.queue.leased(shard, reply)
            except StaleError:
                stale.add(shard)
                self._looked[shard] = None
                continue
            leased += lease.leased
            self._leased[shard].update(one.id for one in lease.leased)
            self._looked[shard] = (lease.outstanding, lease.seq)
            self._log_lease(shard, lease)
        wanted = sum(share for _, share in looks)
        if leased:
            self._idle = FIRST_IDLE
            self._before = None
            with self._changed:
                self.is_over = False
                self._arrived.extend(leased)
            self._news()
        if len(leased) < wanted:
            self._next_look = time.monotonic() + self._idle
            if not leased:
                self._idle = min(2 * self._idle, LONGEST_IDLE)
        return stale

    def _read_taken(self, reply: Any) -> None:
        taken = self.queue.taken(reply)
        if taken > 0:
            self._idle, self._next_look = FIRST_IDLE, 0.0
        elif taken < 0 and not self._has_logged_no_list:
            self._has_logged_no_list = True
            logger.error(
                "%s: %s is neither a list nor a set of start URLs. Push them to that key with RPUSH, after removing "
                "what it holds; or put another into BLOOM_FLEET_START_URLS.",
                self._subject,
                self.queue.start_urls,
            )

    def _see_whether_over(self) -> None:
        """Find out whether nothing is pending or leased anywhere.

        A look at one shard is atomic. Several shards have to be empty at two looks in a row, with nothing enqueued in
        between: then all of them were empty at once, between the looks.
        """
        looked = [look for look in self._looked if look is not None]
        is_empty = len(looked) == self.queue.shards and all(outstanding == 0 for outstanding, _ in looked)
        with self._changed:
            is_over = is_empty and (self.queue.shards == 1 or looked == self._before) and not self._outbox
            is_news = is_over and not self.is_over
            self.is_over = is_over
        self._before = looked if is_empty else None
        if is_empty and not is_over:
            self._next_look = 0.0  # the second look
        if is_news:
            self._news()

    # -- when things go wrong ----------------------------------------------------------------------------------------

    def _join_anew(self, shard: int) -> None:
        """Join *shard* again. What was leased and not begun belongs to others now."""
        self._leased[shard].clear()
        with self._changed:
            kept = [leased for leased in self._arrived if leased.shard != shard]
            lost = len(self._arrived) - len(kept)
            self._arrived.clear()
            self._arrived.extend(kept)
        is_gone = self.queue.is_gone(shard)
        if is_gone:
            # Do this before the queue exists again: if this process dies here, the next one finds no queue and does it.
            self.queue.begin_filter_anew(shard)
        try:
            self.queue.join(shard, polite=True)
        except NameTakenError:
            name, self.queue.worker = self.queue.worker, f"{self.queue.worker}~{self.queue.token(0)[:4]}"
            logger.warning(
                "Another worker runs under the name %s, and has taken over what this one held. This one goes on as %s. "
                "Give each worker a BLOOM_FLEET_WORKER of its own.",
                name,
                self.queue.worker,
            )
            self.queue.join(shard)
        if is_gone:
            self._on_begun_anew(is_queue=True)
            logger.critical(
                "%s is gone, with all that was pending: it was removed, or the server came back without its data. The "
                "crawl begins again with its start requests. Let the server persist: appendonly yes.",
                self._subject,
            )
        else:
            logger.warning(
                "The leases of this worker had ended: it was silent for %g s, or another took its name. What it held "
                "is pending again, and so is what it had not begun: %s.",
                self.queue.lease_seconds,
                counted(lost, "request"),
            )

    def _begin_filter_anew(self) -> None:
        try:
            self.queue.shared.open()
        except (ServerError, BloomError) as error:
            self._lose(error)
            return
        self._on_begun_anew(is_queue=False)
        logger.warning(
            "%s: the filter beside it is gone: it was removed, has expired, or the server came back without its data. "
            "It begins anew, and URLs seen before are fetched again.",
            self._subject,
        )

    def _warn_of_full_server(self, error: Exception) -> None:
        self._pause_for_a_while()
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "%s is full (%s). New links wait here, the pages they came from stay leased, and no further pages are "
                "begun. Raise the server's maxmemory; noeviction is the right policy.",
                self._subject,
                error,
            )

    def _lose(self, error: Exception) -> None:
        self._is_in_doubt = True
        self._pause_for_a_while()
        if self.is_away:
            return
        self.is_away = True
        self.times_away += 1
        logger.warning(
            "%s is away (%s). Pages in hand stay leased, nothing new is begun, and nothing is lost.",
            self._subject,
            error,
        )
        self._on_away()

    def _pause_for_a_while(self) -> None:
        self._next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next_beat = 0.0

    def _back(self) -> None:
        self._pause = FIRST_PAUSE
        self._next_try = 0.0
        self._is_full = False
        if self.is_away:
            self.is_away = False
            logger.info("%s is back", self._subject)

    def _log_lease(self, shard: int, lease: Lease) -> None:
        self._log_crash(shard, lease.expired, lease.returned, lease.crashed)
        if lease.large:
            self.aside += len(lease.large)
            logger.error(
                "%s: entries %s are too large to be read, and set aside", self._subject, _listed(shard, lease.large)
            )
        if lease.missing:
            logger.error(
                "%s: the server does not have %s any more. Look at its maxmemory-policy (noeviction is right), and at "
                "who else deletes keys there.",
                self._subject,
                counted(lease.missing, "pending request"),
            )

    def _log_crash(self, shard: int, worker: str, returned: int, aside: Sequence[bytes]) -> None:
        if returned:
            self.taken_back += returned
            logger.warning("Worker %s was lost with %s in hand: pending again", worker, counted(returned, "request"))
        if aside:
            self.aside += len(aside)
            logger.error(
                "%s: requests %s were in hand at %d crashes each, and are set aside. `scrapy bloom requeue "
                "redis://... --list` shows them, and without --list puts them back.",
                self._subject,
                _listed(shard, aside, self._urls_of(shard, aside)),
                CRASH_LIMIT,
            )

    def _urls_of(self, shard: int, ids: Sequence[bytes]) -> Sequence[str | None]:
        try:
            return urls_of(self.queue.server, self.queue.key(shard, "requests"), ids[:_SHOWN])
        except ServerError as error:  # a log line is not worth more
            logger.debug("The requests that were set aside could not be read: %s", error)
            return []

    def _leave(self) -> None:
        try:
            self.queue.leave()
        except (ServerError, BloomError) as error:
            logger.warning(
                "%s could not be told that this worker ends (%s). What it held is pending again within %g s.",
                self._subject,
                error,
                self.queue.lease_seconds,
            )


class _AgainError(ServerError):
    """A call was carried out in part or not at all, as when the filter grew. Make it again at once."""


def _listed(shard: int, ids: Sequence[bytes], urls: Sequence[str | None] = ()) -> str:
    """Return the first of *ids* as ``requeue`` takes them, with what is known of their URLs."""
    shown = [f"{shard}:{id_.decode(errors='replace')}" for id_ in ids[:_SHOWN]]
    shown = [f"{one} {url[:_SHOWN_URL]!r}" if url else one for one, url in zip_longest(shown, urls)]
    return ", ".join(shown) + (", ..." if len(ids) > _SHOWN else "")
