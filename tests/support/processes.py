"""Processes of tests, forked from one that has imported what they need: that takes a tenth of the time of a new one."""

import multiprocessing
import traceback
from multiprocessing.connection import Connection

PATIENCE = 180.0
"""Seconds after which a wait is given up as failed."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "tests.support.clock",
        "pytest",
        "hypothesis",
        "tests.support.preloaded",
        "tests.support.crawls",
        "tests.zoo.child",
        "tests.fleet.site",
        "tests.fleet.commands",
    ]
)


def run_script(script: str) -> None:
    """Run *script* in a process of its own; its error is that of an assertion here."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_run, args=(script, there), daemon=True)
    process.start()
    there.close()
    assert here.poll(PATIENCE), "the script hangs"
    error = here.recv()
    process.join()
    here.close()
    assert error is None, error


def _run(script: str, answer: Connection) -> None:
    try:
        exec(script, {"__name__": "script"})
    except BaseException:
        answer.send(traceback.format_exc())
    else:
        answer.send(None)
