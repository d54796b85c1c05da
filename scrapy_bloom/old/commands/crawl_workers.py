"""The processes of ``scrapy bloom crawl``: starts workers, starts them again when they die, and stops them.

Knows what a worker is told (``crawl_worker``) and how it ended, and no settings. A worker that dies again and again
before it has fetched a page would do so for ever: then the crawl ends.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.crawl_worker import STOP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scrapy_bloom.old.commands.crawl_worker import Order

logger = logging.getLogger("scrapy_bloom.old.commands.crawl")

MOST_FUTILE_LIVES = 3
"""A worker that dies this many times in a row without having fetched a page is not started again."""

_FETCHED = "response_received_count"


class Worker:
    """One worker, whatever process it is at the moment.

    Args:
        order: What it has to do.
        stats: Where it keeps its stats.
        inherited: File descriptors that its process inherits.

    """

    def __init__(self, order: Order, stats: Path, inherited: Sequence[int]) -> None:
        self.name = order.name
        self.deaths: list[str] = []
        """How its processes died, in words, one for each."""
        self.lives: list[Mapping[str, Any]] = []
        """The stats of its processes, one for each that has ended."""
        self.has_ended = False
        """Whether it has ended in an orderly way, or was given up."""
        self._line = order.line()
        self._stats = stats
        self._inherited = inherited
        self._process: subprocess.Popen[bytes] | None = None
        self._futile = 0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """Its process, while it has one."""
        return None if self._process is None else self._process.pid

    @property
    def is_hopeless(self) -> bool:
        """Whether it would die again."""
        return self._futile >= MOST_FUTILE_LIVES

    @property
    def reason(self) -> str:
        """Why its last process ended, as Scrapy says; "" if it does not say."""
        return str(self.lives[-1].get("finish_reason") or "") if self.lives else ""

    def start(self) -> None:
        """Start a process, unless there is one, it has ended, or died just now."""
        if self._process is not None or self.has_ended or time.monotonic() < self._not_before:
            return
        self._stats.unlink(missing_ok=True)
        options: dict[str, Any] = {}
        if os.name == "posix":
            # Its own session: Ctrl-C in a terminal reaches it through the pipe alone, and so once, not twice.
            options = {"start_new_session": True, "pass_fds": tuple(self._inherited)}
        command = [sys.executable, "-m", "scrapy_bloom.old.commands.crawl_worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, **options)  # noqa: S603 - our own module
        self._say(self._line)

    def give_up(self) -> None:
        """Do not start it again: it has nothing left to do."""
        self.has_ended = self.has_ended or self._process is None

    def stop(self) -> None:
        """Tell it to stop; told twice, it stops at once, as after two Ctrl-C."""
        self.give_up()
        self._say(STOP)

    def kill(self) -> None:
        """End its process now."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def look(self, *, is_stopping: bool) -> bool:
        """Check whether its process has ended, and return that."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process = None
        stats = self._read_stats()
        self.lives.append(stats)
        if code == 0 and self.reason:
            self.has_ended = True
            return True
        self.deaths.append(_in_words(code))
        self._futile = 0 if stats.get(_FETCHED) else self._futile + 1
        self._not_before = time.monotonic() + self._futile
        self.has_ended = is_stopping or self.is_hopeless
        return True

    def _say(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has died, which look() will find
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _read_stats(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self._stats.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
