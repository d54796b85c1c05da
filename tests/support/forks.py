"""Calls in processes that are forked from one which has imported what crawls use: a tenth of the time of a new process.

One call at a time. Run as ``python -m tests.support.forks``, this module is the process that forks.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any

from scrapy.utils.misc import load_object

_running: list[int] = []


def begin(function: str, argument: Any) -> int:
    """Call *function*, named by its path, with *argument* as JSON has it, and return the id of the process."""
    if _running:  # left by a test that failed
        with suppress(ProcessLookupError):  # it has ended
            os.kill(_running[0], signal.SIGKILL)
        end()
    server = _server()
    assert server.stdin is not None
    server.stdin.write(json.dumps([function, argument]) + "\n")
    server.stdin.flush()
    _running.append(_answer())
    return _running[0]


def end() -> int:
    """Wait for the process, and return its exit status, or minus the number of the signal that ended it."""
    code = _answer()
    _running.clear()
    return code


@functools.cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.forks"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def _answer() -> int:
    server = _server()
    assert server.stdout is not None
    return int(server.stdout.readline())


# -- in the process that forks, and in those that it forks -------------------------------------------------------------


class Clock:
    """Stands for ``time.time`` before anything is imported that keeps that."""

    days_later = 0
    real = time.time

    def __call__(self) -> float:
        return Clock.real() + self.days_later * 86_400


def scrapy_command(arguments: list[str]) -> None:
    """Run the command ``scrapy`` with *arguments*."""
    import_module("scrapy.cmdline").execute(["scrapy", *arguments])


def main() -> None:
    time.time = Clock()
    for module in ("pytest", "hypothesis", "tests.support.preloaded", "tests.support.killed_crawls"):
        import_module(module)
    for line in sys.stdin:
        function, argument = json.loads(line)
        pid = os.fork()
        if not pid:
            code = 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the pipe is for answers
            try:
                load_object(function)(argument)
                code = 0
            except SystemExit as error:
                code = int(error.code or 0)
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        print(pid, flush=True)  # noqa: T201 - it tells its parent
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - likewise


if __name__ == "__main__":
    main()
