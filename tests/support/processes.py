"""Processes of tests, forked from one that has imported what they need: that takes a tenth of the time of a new one."""

import multiprocessing

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
