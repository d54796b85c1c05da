"""Runs spiders of the zoo: ``python -m tests.zoo.runner [NAMES] [--module M ...] [--modes plain,job,kill,fleet]``.

A module is a dotted name or a file of spiders. A spider takes ``base``, the URL of the site. It may have the attributes

    feed, feeds          options as in FEEDS; by the name of the file
    more_settings        settings for the add-on alone
    may_repeat           why its items may come again after an interruption
    hits_vary            why two crawls may ask for different pages
    failed               how many pages fail for good, straight through
    new_session, moves   whether the site forgets its sessions, or the directory is moved, between two runs
    before(directory)    what has happened there before the first run
    between(directory)   what happens there while nothing runs
    extra(runs)          lines that the feed holds more than after one undisturbed crawl
    with_others          further spiders of the same process, with the same feeds
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
from tests.zoo.cells import FLEET_MODES, MODES, Outcome, problems_of, run
from tests.zoo.child import Species

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = [f"tests.zoo.spiders.{name}" for name in ("starts", "replaced", "pages", "links", "feeds", "jobs")]


def species_in(module: str) -> list[Species]:
    """Return the spiders that *module*, a dotted name or a file, defines."""
    place = ""
    if module.endswith(".py"):
        path = Path(module).resolve()
        module, place = path.stem, str(path.parent)
        sys.path.insert(0, place)
    own = vars(importlib.import_module(module)).items()
    return [
        Species(module, name, place)
        for name, kind in own
        if isinstance(kind, type) and issubclass(kind, scrapy.Spider) and kind.__module__ == module
        if not name.startswith("_") and not getattr(kind, "is_extra", False)
    ]


def judge(species: Species, modes: Sequence[str], redis_url: str = "") -> tuple[Outcome, dict[str, list[str]]]:
    """Crawl with plain Scrapy, then in each of *modes*; return plain Scrapy's outcome, and the problems by mode."""
    plain = run([species], "plain")[species.name]
    cells = {}
    for mode in modes:
        if mode not in getattr(species.load(), "skip", ()):
            outcome = run([species], mode, plain.hits.total(), redis_url)[species.name]
            cells[mode] = problems_of(species, mode, outcome, plain)
            if cells[mode]:
                cells[mode].append(f"see {outcome.directory}")
            else:
                outcome.remove_files()
    plain.remove_files()
    return plain, cells


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
    began, bad = time.monotonic(), dict.fromkeys(modes, 0)
    with ExitStack() as stack:
        url = ""
        if set(modes) & set(FLEET_MODES):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(RedisServer(Path(directory) / "redis")).url
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        for species, (plain, cells) in zip(zoo, pool.map(lambda each: judge(each, modes, url), zoo), strict=True):
            print(f"{species.name:20} {plain.items.total():4} items {plain.hits.total():4} hits  ", end="")  # noqa: T201
            print(*[f"{mode} {'FAILS' if problems else 'ok'}" for mode, problems in cells.items()], sep="  ")  # noqa: T201
            for mode, problems in cells.items():
                bad[mode] += bool(problems)
                if problems:
                    print(f"    {mode}: {'; '.join(problems)}", flush=True)  # noqa: T201
    failing = ", ".join(f"{mode} {count}" for mode, count in bad.items())
    print(f"{len(zoo)} spiders; cells that fail: {failing}; {time.monotonic() - began:.0f} s")  # noqa: T201
    return min(sum(bad.values()), 1)


if __name__ == "__main__":
    sys.exit(main())
