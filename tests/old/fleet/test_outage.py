from __future__ import annotations

import time

from scrapy_bloom.old.fleet.filter.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage


def pauses(outage: Outage, times: int) -> list[float]:
    """Return how long each of *times* failures puts off the next look, to the tenth of a second."""
    found = []
    for _ in range(times):
        outage.note()
        found.append(round(outage.next_look - time.monotonic(), 1))
    return found


def test_looks_become_rarer_up_to_a_bound() -> None:
    """The pause doubles with every failed look up to a bound, and is short again in the next outage."""
    outage = Outage()
    assert pauses(outage, 7) == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]
    outage.end()
    assert outage.next_look == 0
    assert pauses(outage, 1) == [FIRST_PAUSE]


def test_an_outage_begins_and_ends_once() -> None:
    """An outage is counted once and ends once, however often the server is found away."""
    outage = Outage(longest_pause=FIRST_PAUSE)
    assert not outage.end()
    assert [outage.note() for _ in range(3)] == [True, False, False]
    assert outage.is_on
    assert [outage.end(), outage.end()] == [True, False]
    assert outage.note()
    assert outage.times == 2
    assert pauses(outage, 5)[-1] == FIRST_PAUSE
