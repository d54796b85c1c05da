"""The messages of a worker that wait to be delivered."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from scrapy_bloom.fleet.messages import Done, Link, Message, Note

if TYPE_CHECKING:
    from collections.abc import Iterable

# In one call: a server answers nobody else for some 3 ms, and may be told to take no more than a megabyte.
MOST_MESSAGES, MOST_BYTES = 300, 500_000
MOST_ROOTS = 100_000  # messages that no page would send again, some 400 bytes each


class Outbox:
    """Messages in their order, so the links of a page come before its acknowledgement.

    A *root* belongs to no page in hand. It is kept, because no page would send it again after the server went back.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._roots: deque[Message] = deque(maxlen=MOST_ROOTS)

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message, *, is_root: bool) -> None:
        """Add *message*."""
        if is_root:
            self._roots.append(message)
        self._messages.append(message)

    def take(self) -> list[Message]:
        """Remove and return the first messages, as many as one call may have."""
        batch, size = list[Message](), 0
        while self._messages and len(batch) < MOST_MESSAGES:
            size += _size(self._messages[0])
            if batch and size > MOST_BYTES:
                break
            batch.append(self._messages.popleft())
        return batch

    def begin_anew(self, undelivered: Iterable[Message]) -> None:
        """Send the roots again, then *undelivered* and what waits, without the acknowledgement of any page."""
        waiting, roots = [*undelivered, *self._messages], set(map(id, self._roots))
        kept = [each for each in waiting if not isinstance(each, Done) or each.ticket is None]
        self._messages = deque([*self._roots, *[each for each in kept if id(each) not in roots]])


def _size(message: Message) -> int:
    """Return about how many bytes *message* takes in a call."""
    if isinstance(message, Link):
        return len(message.entry) + 100
    if isinstance(message, Note):
        return len(message.estimate) + 100
    return 100 + len(message.items) if isinstance(message, Done) else 100
