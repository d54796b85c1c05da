"""Whether the server is away, and when to look for it again: :class:`Outage`.

Knows no filter and no connection, and does not decide what becomes of a URL meanwhile.
"""

from __future__ import annotations

import time

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two looks at a server that is away: the pause doubles from the first to the longest."""


class Outage:
    """Whether one server is away, and when to look for it again. At first it is there.

    Args:
        longest_pause: Seconds between two looks at most; None for :data:`LONGEST_PAUSE`.

    """

    def __init__(self, longest_pause: float | None = None) -> None:
        self.is_on = False
        """Whether the server did not answer when it was last asked."""
        self.times = 0
        """Times that it has gone away."""
        self.next_look = 0.0
        """When it may be asked again, by ``time.monotonic()``."""
        self._longest_pause = LONGEST_PAUSE if longest_pause is None else longest_pause
        self._pause = 0.0

    def note(self) -> bool:
        """Note that the server has not answered. Return whether it had answered until now."""
        begins = not self.is_on
        self._pause = FIRST_PAUSE if begins else min(2 * self._pause, self._longest_pause)
        self.next_look = time.monotonic() + self._pause
        self.is_on = True
        self.times += begins
        return begins

    def end(self) -> bool:
        """Note that the server has answered. Return whether it had been away."""
        was_on, self.is_on = self.is_on, False
        self.next_look = 0.0
        return was_on
