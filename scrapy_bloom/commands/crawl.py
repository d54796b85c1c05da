"""One machine, all its cores: ``scrapy bloom crawl SPIDER --workers N``.

Starts a server unless the settings name one, and workers that share its queue; starts again what dies; puts the items
of all into one file, each once; passes Ctrl-C on, and says how it ended.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings, inside_project

from scrapy_bloom.commands.crawl_worker import ORPHAN_SECONDS, STATS
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.errors import SettingsError, UnusableError
from scrapy_bloom.filter.lock import is_locked, lock_directory
from scrapy_bloom.fleet.journal import counted_ranges
from scrapy_bloom.fleet.own_server import OwnServer, server_executable
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import DEFAULT_URL, Address, Server, key_of
from scrapy_bloom.fleet.store import ITEMS
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import argparse

logger = logging.getLogger(__name__)

UNFINISHED = 3
"""Exit code of a crawl that was stopped, or stopped itself, before everything was fetched."""

SHORT_SECONDS, MOST_SHORT_LIVES = 15.0, 3
"""Whatever dies so many times in a row within so many seconds of its start is not started again: the crawl ends."""

_LOOK_SECONDS, _COLLECT_SECONDS = 0.1, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``crawl``: what ``scrapy crawl`` takes, and how many workers."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    many: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "as in Scrapy"}
    parser.add_argument("spider", metavar="SPIDER", help="name of a spider of the project")
    parser.add_argument("--workers", type=int, choices=range(1, 257), default=cores, metavar="N", help="processes")
    parser.add_argument("-a", dest="arguments", **many)
    parser.add_argument("-s", "--set", dest="set", **many)
    parser.add_argument("-o", "--output", metavar="FILE", help="append items to FILE, as JSON lines")
    parser.add_argument("-O", "--overwrite-output", metavar="FILE", help="the same after emptying FILE")
    parser.add_argument("-L", "--loglevel", metavar="LEVEL", help="as in Scrapy")
    parser.add_argument("--logfile", metavar="FILE", help="as in Scrapy, for all workers together")
    parser.add_argument("--nolog", action="store_true", help="as in Scrapy")


def run(options: argparse.Namespace) -> int:
    """Crawl, print how it ended, and return the exit code."""
    typed = _typed_settings(options)
    settings = _settings(options.spider, typed)
    with ExitStack() as stack:
        jobdir = settings["JOBDIR"] or stack.enter_context(TemporaryDirectory(prefix="scrapy-bloom-"))
        directory = Path(jobdir).absolute() / "fleet"
        stack.enter_context(lock_directory(directory))
        directory.chmod(0o700)  # the queue holds cookies and headers
        _wait_for_orphans(directory)
        crawl = _Crawl(options, typed, settings, directory)
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, crawl.want_stop))
        stack.callback(crawl.close)
        crawl.run()
        found = crawl.summary()
    show(found, options)
    return WRONG if crawl.problem else OK if crawl.has_finished else UNFINISHED


def _typed_settings(options: argparse.Namespace) -> dict[str, Any]:
    try:
        typed: dict[str, Any] = arglist_to_dict(options.set)
        arglist_to_dict(options.arguments)
    except ValueError:
        advice = "Write -s JOBDIR=jobs/books, for example."
        raise UnusableError("The command", "has a -s or -a that is no NAME=VALUE", advice=advice) from None
    typed["LOG_ENABLED"] = not options.nolog
    if options.logfile:
        typed["LOG_FILE"] = str(Path(options.logfile).absolute())
    return typed | ({"LOG_LEVEL": options.loglevel} if options.loglevel else {})


def _settings(spider_name: str, typed: dict[str, Any]) -> Any:
    """Return the settings that the spider will run under."""
    if not inside_project():
        raise UnusableError(Path.cwd(), "is not in a Scrapy project", advice="Go to the directory of its scrapy.cfg.")
    settings = get_project_settings()
    settings.setdict(typed, "cmdline")
    loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    if spider_name not in loader.list():
        known = ", ".join(sorted(loader.list())) or "none"
        raise UnusableError(f"The spider {spider_name!r}", "is not in this project", advice=f"There are: {known}.")
    loader.load(spider_name).update_settings(settings)
    if settings.getdict("FEEDS"):
        raise SettingsError(["FEEDS cannot be written by several workers; remove it, and give one file: -o items.jl"])
    return settings


def _wait_for_orphans(directory: Path) -> None:
    """Wait until the workers of a crawl that was killed have ended, which they do by themselves."""
    deadline = time.monotonic() + 2 * ORPHAN_SECONDS
    while time.monotonic() < deadline and any(map(is_locked, directory.glob("worker-*/requests.bloom"))):
        time.sleep(_LOOK_SECONDS)


class _Worker:
    """One worker, whatever process it is at the moment."""

    def __init__(self, name: str, order: dict[str, Any], directory: Path) -> None:
        self.name, self.items, self.stats_file = name, directory / "items.jl", directory / "stats.json"
        self.deaths = self.short_lives = 0
        self.stats: Counter[str] = Counter()
        self.reason = ""
        """Why it has ended for good; "" while it has not."""
        directory.mkdir(exist_ok=True)
        own = {
            **order["settings"],
            "JOBDIR": str(directory),
            "FEEDS": {str(self.items): {"format": "jsonlines"}},
            ITEMS: str(self.items),
            STATS: str(self.stats_file),
        }
        self._line = json.dumps({**order, "name": name, "settings": own}).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def start(self) -> None:
        if self._process is None and not self.reason and time.monotonic() > self._began + self.short_lives:
            self.stats_file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "scrapy_bloom.commands.crawl_worker"]
            # Its own session: Ctrl-C in a terminal reaches it through the pipe, and so once.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our module
            self._began = time.monotonic()
            self._say(self._line)

    def look(self) -> None:
        """Note how its process has ended, if it has."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr] # it has one
        self._process = None
        stats = json.loads(self.stats_file.read_text(encoding="utf-8")) if self.stats_file.exists() else {}
        self.stats.update({key: value for key, value in stats.items() if type(value) is int})
        self.reason = str(stats.get("finish_reason") or "")
        if not self.reason:
            self.deaths += 1
            self.short_lives = self.short_lives + 1 if time.monotonic() < self._began + SHORT_SECONDS else 0
            logger.warning("%s has died (exit code %d)", self.name, code)

    def give_up(self) -> None:
        """Do not start it again if it has died."""
        if self._process is None:
            self.reason = self.reason or "not started again"

    def stop(self) -> None:
        """Pass a Ctrl-C on."""
        self._say(b"stop\n")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.look()

    def _say(self, line: bytes) -> None:
        if self._process is not None:
            with suppress(OSError):  # it has died, which look() will find
                self._process.stdin.write(line)  # type: ignore[union-attr] # it has one
                self._process.stdin.flush()  # type: ignore[union-attr] # likewise


class _Crawl:
    """A crawl with its server and its workers."""

    def __init__(self, options: argparse.Namespace, typed: dict[str, Any], settings: Any, directory: Path) -> None:
        bloom = BloomSettings.from_settings(settings)
        self.problem = ""
        self._spider, self._began, self._stops, self._said = options.spider, time.monotonic(), 0, 0
        self._server = None
        if Address.of(bloom.redis_url, settings) == Address(DEFAULT_URL, {}):
            self._server = OwnServer(directory / "server", server_executable())
            self._server.start()
        self._server_began, self._server_lives = time.monotonic(), 0
        url = self._server.url if self._server else bloom.redis_url
        shared = {"SCHEDULER": "scrapy_bloom.fleet_scheduler.FleetScheduler"}
        shared |= {"DUPEFILTER_CLASS": "scrapy_bloom.dupefilter.BloomDupeFilter"}
        order = {
            "spider": options.spider,
            "arguments": options.arguments,
            "has_own_server": self._server is not None,
            "settings": {**typed, **shared, **({"BLOOM_REDIS_URL": url} if url else {})},
            "path": [str(Path(place).absolute()) for place in sys.path],
        }
        names = [f"worker-{number}" for number in range(1, options.workers + 1)]
        self._workers = [_Worker(name, order, directory / name) for name in names]
        client = Server(Address.of(url, settings))
        queue = Queue(client, key_of(bloom.redis_key, options.spider))
        self._items = _Items(directory, queue, options.overwrite_output or options.output)
        if options.overwrite_output:
            self._items.empty()

    def want_stop(self, *_: object) -> None:
        """Stop; called twice, at once; called three times, kill the workers."""
        self._stops += 1

    @property
    def has_finished(self) -> bool:
        return any(worker.reason == "finished" for worker in self._workers)

    def run(self) -> None:
        next_collection = 0.0
        while not all(worker.reason for worker in self._workers):
            self._look_after_server()
            for worker in self._workers:
                if not (self._stops or self.problem or self.has_finished):
                    worker.start()
                worker.look()
                if worker.short_lives >= MOST_SHORT_LIVES:
                    self._fail(f"{worker.name} dies again and again just after its start; the log says why")
            if self.has_finished or self._stops or self.problem:
                for worker in self._workers:
                    worker.give_up()
            while self._said < self._stops:
                self._said += 1
                for worker in self._workers:
                    worker.kill() if self._said > 2 else worker.stop()
            if time.monotonic() > next_collection:
                self._items.collect(self._workers, is_over=False)
                next_collection = time.monotonic() + _COLLECT_SECONDS
            time.sleep(_LOOK_SECONDS)
        self._look_after_server()
        self._items.collect(self._workers, is_over=True)

    def _look_after_server(self) -> None:
        if self._server is None or not self._server.has_ended():
            return
        is_short = time.monotonic() < self._server_began + SHORT_SECONDS
        self._server_lives = self._server_lives + 1 if is_short else 1
        if self._server_lives > MOST_SHORT_LIVES:
            self._fail(f"the server dies again and again just after its start; see {self._server.log}")
            return
        logger.warning("The server has died, and is started again; nothing is lost")
        self._server_began = time.monotonic()
        self._server.start()

    def _fail(self, problem: str) -> None:
        if not self.problem:
            self.problem = problem
            self._stops += 1

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        if self._server is not None:
            self._server.stop()

    def summary(self) -> dict[str, Any]:
        """Return how it ended, in plain types under stable names."""
        outcome = "failed" if self.problem else "finished" if self.has_finished else "stopped"
        rows = [
            {
                "worker": each.name,
                "pages": each.stats["response_received_count"],
                "items": each.stats["item_scraped_count"],
                "deaths": each.deaths,
                "ended": each.reason,
            }
            for each in self._workers
        ]
        return {
            "spider": self._spider,
            "outcome": outcome + (f": {self.problem}" if self.problem else ""),
            "seconds": round(time.monotonic() - self._began, 1),
            "items_in_file": self._items.count,
            "workers": rows,
        }


class _Items:
    """The one file of items, at *output*: made of the workers' files, of what the server says has counted.

    ``collected.json`` says how far each worker's file has been read, and how long the output was then; what was
    written after that is cut off at the next start, and written again.
    """

    def __init__(self, directory: Path, queue: Queue, output: str | None) -> None:
        self._state_file, self._queue = directory / "collected.json", queue
        self._output = Path(output).absolute() if output else None
        self.count = 0
        known = json.loads(self._state_file.read_text()) if self._state_file.exists() else {}
        self._positions: dict[str, list[int]] = known.get("positions", {})
        if self._output is not None and known.get("output") == str(self._output) and self._output.exists():
            os.truncate(self._output, min(known["length"], self._output.stat().st_size))

    def empty(self) -> None:
        """Begin the file anew, unless this crawl has written to it before."""
        if self._output is not None and not self._positions:
            self._output.unlink(missing_ok=True)

    def collect(self, workers: list[_Worker], *, is_over: bool) -> None:
        """Append what has counted since the last time."""
        if self._output is None:
            return
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            for worker in workers:
                journal, items = self._positions.get(worker.name, [0, 0])
                path = Path(f"{worker.items}.journal")
                try:
                    found = counted_ranges(
                        path, self._queue, journal_position=journal, items_position=items, is_over=is_over
                    )
                except OSError as error:  # the server is away
                    logger.warning("Items wait for the server: %s", error)
                    return
                self._copy(worker.items, found.ranges, output)
                self._positions[worker.name] = [found.journal_position, found.items_position]
            output.flush()
            os.fsync(output.fileno())
            state = {"output": str(self._output), "length": output.tell(), "positions": self._positions}
        temporary = self._state_file.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state_file)

    def _copy(self, path: Path, ranges: list[tuple[int, int]], output: Any) -> None:
        for begin, end in ranges:
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read(end - begin)
            self.count += data.count(b"\n")
            output.write(data)
