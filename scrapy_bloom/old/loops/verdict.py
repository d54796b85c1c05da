"""What a loop guard answers about a new request. Knows neither how it comes to that nor who asks."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """What the guard did with a request that the filter has just called new."""

    rule: str = ""
    """``"demoted"`` or ``"parked"``, counted in ``bloom/loop/<rule>``; empty if the guard had nothing to say."""
    reason: str = ""
    """Why, to be read after the URL in a log line."""
    is_parked: bool = False
    """Whether the guard has kept the request, which then does not go to the queue."""


PASSED = Verdict()
"""The request goes to the queue as it came."""
