"""Runs spiders in one mode and compares what came out with plain Scrapy's.

plain        Scrapy alone, once more: what differs here, differs by itself
addon, job   the add-on without and with a job directory
kill, stop   kill -9, or Ctrl-C, after half of the pages, in the next run after a third, then to the end
fleet        two workers that share a queue on Redis; in fleet-kill, one of them is killed after half of the pages

``python -m tests.zoo.cells Random7 Poller`` runs two spiders in each mode but those of fleets. A spider takes ``base``,
the URL of the site. It may have the attributes

    feed, feeds          options as in FEEDS; by the name of the file
    more_settings        settings for the add-on alone
    may_repeat           why its items may come again after an interruption
    hits_vary            why two crawls may ask for different pages
    failed               how many pages fail for good, straight through
    new_session          whether the site forgets its sessions between two runs
    between(directory)   what happens in its directory while nothing runs
    extra(runs)          lines that the feed holds more than after one undisturbed crawl
    skip                 modes that do not apply
"""

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scrapy

from scrapy_bloom.errors import BloomError
from scrapy_bloom.job.inspect import inspect_job
from tests.fleet.commands import Command, write_project
from tests.support.processes import PROCESSES
from tests.zoo.child import REFERENCE, Order, Species, crawl, feeds_of, has_ended, settings_of, stats_in
from tests.zoo.site import Site

MODES = ("plain", "addon", "job", "kill", "stop")
FLEET_MODES = ("fleet", "fleet-kill")
OWN = [f"tests.zoo.spiders.{name}" for name in ("starts", "pages")]
INTERRUPTIONS = 2
PATIENCE = 300.0
"""Seconds after which a run counts as hanging."""


@dataclass
class Outcome:
    """What the runs of a spider left behind."""

    items: Counter[str]
    """Lines of the feeds; of a JSON array, its items; of what cannot be read, the reason."""
    hits: Counter[str]
    stats: list[dict[str, Any]]
    """Final stats of each run that has ended by itself."""
    log: str
    runs: int
    hangs: bool
    directory: Path
    reference: Counter[str] = field(default_factory=Counter)
    """What plain Scrapy wrote as JSON lines."""

    def remove_files(self) -> None:
        shutil.rmtree(self.directory.parents[1], ignore_errors=True)


def run(zoo: Sequence[Species], mode: str, pages: int = 0, redis_url: str = "") -> dict[str, Outcome]:
    """Crawl with all spiders of *zoo* at a time. Interruptions come by the *pages* that all together need."""
    # Pages come slowly enough for a kill to find some committed, some done, some in work.
    delay = {"kill": 0.06, "fleet-kill": 0.5}.get(mode, 0.02)
    here = Path(tempfile.mkdtemp(prefix="scrapy-zoo-"), "here")
    here.mkdir()
    with ExitStack() as stack:
        sites = {species.name: stack.enter_context(Site(delay)) for species in zoo}
        orders = [Order(species, sites[species.name].url, mode) for species in zoo]
        for order in orders:
            (here / order.species.name).mkdir()
        runs, hangs = dict.fromkeys(sites, 0), False

        def total() -> int:
            return sum(site.total for site in sites.values())

        for at in [*([pages // 3] * INTERRUPTIONS if mode in {"kill", "stop"} else ()), 0]:
            if mode in FLEET_MODES:
                hangs = _fleet(orders[0], here, redis_url, pages // 2 if mode == "fleet-kill" else 0, total)
            else:
                process = PROCESSES.Process(target=crawl, args=(orders, here), daemon=True)
                process.start()
                hangs |= _watch(process, at, total, signal.SIGKILL if mode == "kill" else signal.SIGINT)
            for species in (order.species for order in orders):
                runs[species.name] += 1
                spider = species.load()
                if getattr(spider, "new_session", False):
                    sites[species.name].session += "1"
                if hasattr(spider, "between"):  # what happens while nothing runs
                    spider.between(here / species.name)
            orders = [order for order in orders if not _is_finished(order, here)]
            if not orders:
                break
        return {
            name: _outcome(species, sites[name], here, mode, hangs, runs[name])
            for name, species in zip(runs, zoo, strict=True)
        }


def _is_finished(order: Order, here: Path) -> bool:
    if has_ended(here / order.species.name):
        return True
    with suppress(BloomError):  # a kill may come between the end of a job and that of its process
        return inspect_job(here / order.species.name / "job").state.is_finished
    return False


def _watch(process: Any, at: int, total: Callable[[], int], number: signal.Signals) -> bool:
    """Wait until *process* has ended; interrupt it after *at* hits, unless 0. Return whether it hangs."""
    begun, end = total(), time.monotonic() + PATIENCE
    while process.exitcode is None and time.monotonic() < end:
        if at and total() - begun >= at:
            os.kill(process.pid, number)
            at = 0
        process.join(0.01)
    hangs = process.exitcode is None
    if hangs:
        process.kill()
        process.join()
    return hangs


def _outcome(species: Species, site: Site, here: Path, mode: str, hangs: bool, runs: int) -> Outcome:
    directory, spider = here / species.name, species.load()
    outcome = Outcome(
        Counter(),
        site.hits,
        stats_in(directory),
        (here / "log").read_text(errors="replace"),
        runs,
        hangs,
        directory,
    )
    if mode in FLEET_MODES:
        outcome.items.update(_as_json(lines_of(here / "items.jl", {"format": "jsonlines"})))
        return outcome
    own = feeds_of(spider)
    for name, options in own.items():
        mark = f"{name}: " if len(own) > 1 else ""
        outcome.items.update(mark + line for line in lines_of(directory / name, options))
    if mode == "plain":
        outcome.reference.update(_as_json(lines_of(directory / REFERENCE, {"format": "jsonlines"})))
    return outcome


def lines_of(path: Path, options: dict[str, Any]) -> list[str]:
    """Return the lines of the feed at *path*; of a JSON array, its items."""
    if not path.exists():
        return []
    try:
        text = path.read_bytes().decode()
        if options["format"] == "json":
            return [json.dumps(item) for item in json.loads(text or "[]")]
    except ValueError as error:
        return [f"unreadable: {error!r}"]
    return text.removesuffix("\n").split("\n") if text else []


def _as_json(lines: Iterable[str]) -> list[str]:
    return [json.dumps(json.loads(line), sort_keys=True) if line.endswith("}") else f"torn: {line}" for line in lines]


def problems_of(species: Species, mode: str, outcome: Outcome, plain: Outcome) -> list[str]:
    """Return in what *outcome* differs from *plain*, or else from what the spider's user expects."""
    spider = species.load()
    extra = getattr(spider, "extra", None)
    wanted = plain.reference if mode in FLEET_MODES else plain.items
    if extra is not None:
        wanted = wanted - Counter(extra(1)) + Counter(extra(outcome.runs))
    lost, more = wanted - outcome.items, outcome.items - wanted
    if mode in {"kill", "stop", "fleet-kill"} and getattr(spider, "may_repeat", ""):
        more = Counter({item: count for item, count in more.items() if item not in wanted})
    problems = [f"{sum(lost.values())} of {sum(wanted.values())} lost, e.g. {min(lost)!r}"] if lost else []
    problems += [f"{sum(more.values())} too many, e.g. {min(more)!r}"] if more else []
    problems += ["hangs"] if outcome.hangs else []
    if mode in {"plain", "addon", "job"} and not getattr(spider, "hits_vary", "") and outcome.hits != plain.hits:
        fewer, further = plain.hits - outcome.hits, outcome.hits - plain.hits
        problems.append(f"{sum(fewer.values())} hits fewer, {sum(further.values())} more, e.g. {min(fewer or further)}")
    if mode in {"addon", "job"} and getattr(spider, "failed", None) is not None:
        failed = sum(stats.get("bloom/failed", 0) for stats in outcome.stats)
        problems += [f"{failed} pages count as failed, not {spider.failed}"] if failed != spider.failed else []
    return problems


def species_in(*modules: str) -> list[Species]:
    """Return the spiders that *modules* define."""
    return [
        Species(module, name)
        for module in modules
        for name, kind in vars(importlib.import_module(module)).items()
        if isinstance(kind, type) and issubclass(kind, scrapy.Spider) and kind.__module__ == module
    ]


def applies(mode: str, species: Species) -> bool:
    return mode not in getattr(species.load(), "skip", ())


def compare(zoo: Sequence[Species], modes: Iterable[str], redis_url: str = "") -> dict[str, str]:
    """Crawl with all of *zoo* at a time in each of *modes*; return in what they differ from plain Scrapy, by cell."""
    plain, problems = run(zoo, "plain"), {}
    for mode in modes:
        team = [species for species in zoo if applies(mode, species)]
        pages = sum(plain[species.name].hits.total() for species in team)
        outcomes = run(team, mode, pages, redis_url) if team else {}
        for species in team:
            outcome = outcomes[species.name]
            if found := problems_of(species, mode, outcome, plain[species.name]):
                problems[f"{species.name}, {mode}"] = f"{'; '.join(found)}, see {outcome.directory}"
        if outcomes and not problems:
            outcomes[team[0].name].remove_files()
    plain[zoo[0].name].remove_files()
    return problems


# -- fleets ------------------------------------------------------------------------------------------------------------

PROJECT = """
import {module} as module
from scrapy_bloom.fleet import store
store.LONGEST_SECONDS = 3_600.0  # on a slow machine, pages take longer than 30 s
{name} = type("{name}", (module.{name},), {{"__module__": __name__}})
"""


def _fleet(order: Order, here: Path, redis_url: str, kill_at: int, total: Callable[[], int]) -> bool:
    """Crawl with two workers; kill one after *kill_at* hits, unless 0. Return whether they hang."""
    spider = order.species.load()
    settings = settings_of(order, spider)
    settings |= {"ZOO": str(here / order.species.name), "BLOOM_REDIS_URL": redis_url}
    settings["BLOOM_REDIS_KEY"] = here.parent.name  # a site may have the port of an earlier one
    for name in ("FEEDS", "JOBDIR", "ADDONS"):
        del settings[name]
    write_project(here, PROJECT.format(module=order.species.module, name=order.species.name), **settings)
    arguments = ["crawl", spider.name, "--workers", "2", "-o", "items.jl", "-a", f"base={order.url}"]
    command = Command(here, *arguments)
    end = time.monotonic() + PATIENCE
    while command.code is None and time.monotonic() < end:
        if kill_at and total() >= kill_at:
            os.kill(command.children(servers=False)[0], signal.SIGKILL)
            kill_at = 0
        time.sleep(0.01)
    hangs = command.code is None
    command.kill()
    return hangs


if __name__ == "__main__":
    own = {species.name: species for species in species_in(*OWN)}
    for name in sys.argv[1:]:
        print(compare([own.get(name, Species("tests.zoo.random_spiders", name))], MODES) or f"{name}: well")  # noqa: T201
