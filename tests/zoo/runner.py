"""Runs spiders of the zoo: ``python -m tests.zoo.runner [NAMES] [--module M ...] [--modes plain,job,kill,fleet]``.

``Random7`` is the random spider of seed 7. For spiders in a file ``mine.py``: ``--module mine``, with its directory in
PYTHONPATH. A spider takes ``base``, the URL of the site. It may have the attributes

    feed, feeds          options as in FEEDS; by the name of the file
    more_settings        settings for the add-on alone
    may_repeat           why its items may come again after an interruption
    hits_vary            why two crawls may ask for different pages
    failed               how many pages fail for good, straight through
    new_session, moves   whether the site forgets its sessions, or the directory is moved, between two runs
    before(directory)    what has happened there before the first run
    between(directory)   what happens there while nothing runs
    extra(runs)          lines that the feed holds more than after one undisturbed crawl
    skip                 modes that do not apply
    check(mode, outcome), check_log(mode, log)    return further problems
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import scrapy

from tests.fleet.servers import RedisServer
from tests.zoo.cells import FLEET_MODES, MODES, compare
from tests.zoo.child import Species

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = [f"tests.zoo.spiders.{name}" for name in ("starts", "replaced", "pages", "links", "feeds", "jobs")]


def species_in(module: str) -> list[Species]:
    """Return the spiders that *module* defines."""
    own = vars(importlib.import_module(module)).items()
    return [
        Species(module, name)
        for name, kind in own
        if isinstance(kind, type) and issubclass(kind, scrapy.Spider) and kind.__module__ == module
        if not name.startswith("_")
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--module", action="append")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--jobs", type=int, default=6, help="spiders at a time; they wait most of the time")
    options = parser.parse_args(arguments)
    modes = options.modes.split(",")
    zoo = [species for module in options.module or OWN for species in species_in(module)]
    zoo = [species for species in zoo if not options.names or species.name in options.names]
    zoo += [Species("tests.zoo.random_spiders", name) for name in options.names if name.startswith("Random")]
    began, failing = time.monotonic(), 0
    with ExitStack() as stack:
        url = ""
        if set(modes) & set(FLEET_MODES):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(RedisServer(Path(directory) / "redis")).url
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        cells = pool.map(lambda species: compare([species], modes, url), zoo)
        for species, problems in zip(zoo, cells, strict=True):
            print("\n    ".join([species.name, *map(": ".join, problems.items())]), flush=True)  # noqa: T201
            failing += len(problems)
    print(f"{len(zoo)} spiders; {failing} cells fail; {time.monotonic() - began:.0f} s")  # noqa: T201
    return min(failing, 1)


if __name__ == "__main__":
    sys.exit(main())
