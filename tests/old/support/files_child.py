"""Processes to be killed. Run as ``python files_child.py JOB DIRECTORY NUMBER...``; each job says what its numbers are.

What a job has done is counted in the file ``done`` beside the directory, through a mapping: like the bits of the
filter, a number written there is kept by the system when the process dies, and writing it costs no system call.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import secrets
import signal
import struct
import sys
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom import open_filter

if TYPE_CHECKING:
    from types import FrameType


class Done:
    """A counter that outlives the process."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def count(self) -> int:
        return struct.unpack("<Q", self._map)[0]

    @count.setter
    def count(self, number: int) -> None:
        self._map[:] = struct.pack("<Q", number)


def wait_to_be_killed() -> None:
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(3)


def hold(directory: Path) -> None:
    """Open the filter and wait."""
    chain = open_filter(directory, 10)
    chain.add(b"held")
    wait_to_be_killed()


def add(directory: Path, capacity: int, inverse_rate: int, sync_milliseconds: int) -> None:
    """Add fingerprints, from the first that is not done yet, for ever."""
    done = Done(directory.with_name("done"))
    chain = open_filter(directory, capacity, 1 / inverse_rate, sync_interval=sync_milliseconds / 1000)
    number = done.count
    while True:
        chain.add(sha1(b"%d" % number).digest())
        number += 1
        done.count = number


def import_some(directory: Path, checkpoints: int) -> None:
    """Import the ``requests.seen`` beside the directory, and wait in the middle."""
    left = checkpoints

    def count_down() -> None:
        nonlocal left
        left -= 1
        if not left:
            wait_to_be_killed()

    open_filter(directory, 10, import_from=directory.with_name("requests.seen"), on_checkpoint=count_down)


def step(directory: Path, count: int) -> None:
    """Open, add and close in a fork that dies at its first line within the store, its second, until one survives.

    The filter of the n-th fork is in ``directory/n``.
    """
    deadline = 0
    while True:
        deadline += 1
        home = directory / str(deadline)
        home.mkdir(parents=True)
        pid = os.fork()
        if pid == 0:
            _die_at(deadline)
            _open_add_close(home, count)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            sys.stdout.write(f"{deadline if os.WEXITSTATUS(status) == 0 else -1}\n")
            return


def _open_add_close(home: Path, count: int) -> None:
    done = Done(home / "done")
    chain = open_filter(home / "filter", 2)
    for number in range(count):
        chain.add(sha1(b"%d" % number).digest())
        done.count = number + 1
    chain.close()


def _die_at(deadline: int) -> None:
    store = str(Path("scrapy_bloom", "files"))
    lines = 0

    def line(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == deadline:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, event: str, _: object) -> object:
        return line if store in frame.f_code.co_filename else None

    sys.settrace(call)


JOBS = {"hold": hold, "add": add, "import_some": import_some, "step": step}

if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    _, job, where, *numbers = sys.argv
    secrets.randbits = random.Random(f"{job} {numbers}").getrandbits  # as in conftest.py, for tests that count exactly
    JOBS[job](Path(where), *map(int, numbers))  # type: ignore[operator]  # each job takes its own numbers
