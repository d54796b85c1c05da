"""Slots of which no request is handed out for a while, because their host has asked for that."""

from __future__ import annotations

import json
import time

LONGEST_PAUSE = 86_400.0
"""Seconds. A host that asks for more is asked again after these."""
_NOTE = "paused"


class Paused(dict[str, float]):
    """Paused slots, and until when, in seconds since 1970. A job keeps them."""

    def end(self) -> list[str]:
        """Remove the slots whose pause is over, and return them."""
        now = time.time()
        # A clock that went back must not prolong a pause.
        over = [slot for slot, until in self.copy().items() if not now < until <= now + LONGEST_PAUSE]
        for slot in over:
            del self[slot]
        return over

    def restore(self, notes: dict[str, bytes]) -> None:
        """Take in what the last commit noted."""
        if _NOTE in notes:
            self.update(json.loads(notes[_NOTE]))

    def note(self) -> dict[str, bytes]:
        """Return the note of a commit."""
        return {_NOTE: json.dumps(self).encode() if self else b""}
