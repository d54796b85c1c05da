"""The states of a worker's session with the server, and the events that move it from one to another."""

from __future__ import annotations

import enum


class SessionState(enum.Enum):
    """How a worker stands to the server."""

    OUTSIDE = "outside"
    """It has no lease, and joins under a new token as soon as it can."""
    ACTIVE = "active"
    """It has a lease, takes requests and delivers."""
    AWAY = "away"
    """The server is away or full. The worker tries again and again, and takes no requests."""
    ENDED = "ended"
    """It has left, or the crawl must end."""


class SessionEvent(enum.Enum):
    """What happens to the session of a worker."""

    JOINED = "joined"
    ANSWERED = "answered"
    SILENT = "no answer"
    """Or the server is full."""
    LIFE_ENDED = "life ended"
    """The lease is over, or the server went back in time."""
    LEFT = "left"
    """The crawl ends, and all is delivered or given back, or that took too long."""
    LOST = "lost"
    """The queue is gone, or there is a bug."""


_S, _E = SessionState, SessionEvent
TRANSITIONS = {
    (_S.OUTSIDE, _E.JOINED): _S.ACTIVE,
    (_S.OUTSIDE, _E.SILENT): _S.OUTSIDE,
    (_S.ACTIVE, _E.ANSWERED): _S.ACTIVE,
    (_S.ACTIVE, _E.SILENT): _S.AWAY,
    (_S.AWAY, _E.ANSWERED): _S.ACTIVE,
    (_S.AWAY, _E.SILENT): _S.AWAY,
    (_S.ACTIVE, _E.LIFE_ENDED): _S.OUTSIDE,
    (_S.AWAY, _E.LIFE_ENDED): _S.OUTSIDE,
    **{(state, event): _S.ENDED for state in (_S.OUTSIDE, _S.ACTIVE, _S.AWAY) for event in (_E.LEFT, _E.LOST)},
}
"""The next state. A pair that is not here is a fault of ours."""


class Session:
    """The state of a worker's session with the server."""

    def __init__(self) -> None:
        self.state = SessionState.OUTSIDE
        self.deadline = 0.0
        """When the end of the crawl stops waiting for the server, in seconds of time.monotonic()."""

    @property
    def is_outside(self) -> bool:
        """Whether the worker has no lease."""
        return self.state is SessionState.OUTSIDE

    def move(self, event: SessionEvent) -> SessionState:
        """Go to the next state, and return the one before. KeyError if *event* cannot happen in that one."""
        before, self.state = self.state, TRANSITIONS[self.state, event]
        return before
