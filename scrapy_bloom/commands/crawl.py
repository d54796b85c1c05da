"""One machine, all its cores: ``scrapy bloom crawl SPIDER --workers N``.

Runs a spider in several processes that share the queue on a server, one that it starts itself unless the settings name
one. It knows what a person asked for, keeps server and workers running, and says how it ended. What a worker does is in
``crawl_worker``, how processes live and die in ``crawl_workers``, where the files are in ``crawl_directory``.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict, feed_process_params_from_cli
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings, inside_project

from scrapy_bloom.commands.crawl_directory import CrawlDirectory
from scrapy_bloom.commands.crawl_feeds import check_feeds, remove_overwritten
from scrapy_bloom.commands.crawl_summary import FINISHED, STOPPED, summary, summary_lines
from scrapy_bloom.commands.crawl_worker import SCHEDULER, Order, is_fleet_scheduler
from scrapy_bloom.commands.crawl_workers import MOST_FUTILE_LIVES, Worker
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.address import is_named
from scrapy_bloom.fleet.own_server import OwnServer
from scrapy_bloom.fleet.server_executable import ADVICE, server_executable
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

MAX_WORKERS = 256
"""More processes than any one machine crawls with."""

UNFINISHED = 3
"""Exit code of a crawl that was stopped, or stopped itself, before everything was fetched."""

MOST_SERVER_DEATHS = 3
"""The crawl ends if its own server dies so many times within :data:`SHORT_SECONDS` of its start, in a row."""

SHORT_SECONDS = 60.0

FAIL_SECONDS = 60.0
"""How long the other workers may take to end when the crawl has failed."""

_SCRAPYS_SCHEDULER = "scrapy.core.scheduler.Scheduler"
_LOOK_SECONDS = 0.05
_OWN_NAME = "worker-{}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``crawl`` takes: what ``scrapy crawl`` takes, and how many workers."""
    parser.add_argument("spider", metavar="SPIDER", help="name of a spider of the project")
    parser.add_argument(
        "--workers", type=_workers, default=None, metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("-a", dest="arguments", action="append", default=[], metavar="NAME=VALUE", help="as of Scrapy")
    parser.add_argument(
        "-s", "--set", dest="setting_arguments", action="append", default=[], metavar="NAME=VALUE", help="as of Scrapy"
    )
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE", help="append items to FILE, of JSON lines"
    )
    parser.add_argument(
        "-O", "--overwrite-output", action="append", default=[], metavar="FILE", help="the same after emptying FILE"
    )
    parser.add_argument("-L", "--loglevel", metavar="LEVEL", help="as of Scrapy")
    parser.add_argument("--logfile", metavar="FILE", help="as of Scrapy; of all workers together")
    parser.add_argument("--nolog", action="store_true", help="as of Scrapy")


def run(options: argparse.Namespace) -> int:
    """Crawl, print how it ended, and return the exit code."""
    typed = _typed_settings(options)
    settings, spider_settings = _settings(options, typed)
    check_feeds(spider_settings)
    BloomSettings.from_settings(spider_settings)  # raises here, once, what would end each worker
    count = options.workers or _cores()
    began = time.monotonic()
    jobdir = Path(spider_settings["JOBDIR"]) if spider_settings["JOBDIR"] else None
    with ExitStack() as stack:
        stack.enter_context(_log(settings))
        _say_what_is_replaced(spider_settings)
        try:
            directory = stack.enter_context(CrawlDirectory(jobdir, options.spider, logger.warning))
        except KeyboardInterrupt:  # while it waits for what is left of a killed crawl
            return UNFINISHED
        crawl = _Crawl(options, typed, spider_settings, directory, count)
        stack.enter_context(crawl.listening())
        crawl.run()
    found = summary(options.spider, crawl.outcome, crawl.problem, time.monotonic() - began, crawl.workers)
    found["job"] = str(jobdir) if jobdir else None
    show(found, options, summary_lines)
    return {FINISHED: OK, STOPPED: UNFINISHED}.get(crawl.outcome, WRONG)


class _Crawl:
    """Server and workers of one run."""

    def __init__(
        self,
        options: argparse.Namespace,
        typed: dict[str, Any],
        settings: BaseSettings,
        directory: CrawlDirectory,
        count: int,
    ) -> None:
        self.problem = ""
        """Why the crawl has failed, in a sentence."""
        self.workers: list[Worker] = []
        self._options = options
        self._typed = typed
        self._settings = settings
        self._directory = directory
        self._count = count
        self._server: OwnServer | None = None
        self._server_began = 0.0
        self._server_deaths = 0
        self._stops = 0  # how often somebody wanted it to stop
        self._stops_said = 0
        self._deadline = float("inf")

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        reasons = {worker.reason for worker in self.workers if worker.has_ended}
        if self.problem:
            return "failed"
        # A worker ends as finished when nothing is pending or in hand anywhere, whatever became of the others.
        return FINISHED if "finished" in reasons else STOPPED

    def listening(self) -> Any:
        """Return a context in which Ctrl-C and SIGTERM stop the crawl."""
        stack = ExitStack()
        names = [name for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
        if threading.current_thread() is threading.main_thread():
            for name in names:
                number = getattr(signal, name)
                stack.callback(signal.signal, number, signal.signal(number, self._want_stop))
        return stack

    def run(self) -> None:
        """Start all, keep them running until the crawl is over, and end all."""
        try:
            url = self._start_server()
            if not self._stops:
                spider = self._options.spider
                names = [_OWN_NAME.format(number) for number in range(1, self._count + 1)]
                remove_overwritten(self._settings, spider, names)
                self.workers = [self._worker(name, url) for name in names]
                self._watch()
        finally:
            for worker in self.workers:
                worker.kill()
            if self._server is not None:
                self._server.stop()

    # -- server ------------------------------------------------------------------------------------------------------

    def _start_server(self) -> str:
        """Start a server unless the settings name one; return the URL of the own one, or ""."""
        if is_named(self._settings):
            logger.info("Crawling with %d workers and the server that the settings name", self._count)
            return ""
        executable = server_executable()
        if executable is None:
            raise UnusableError(
                "scrapy bloom crawl", "needs a Redis or Valkey server, and found none on this machine", advice=ADVICE
            )
        self._server = OwnServer(self._directory.server, executable, self._directory.inherited)
        self._server_began = time.monotonic()
        self._server.start(lambda: self._stops > 0)
        self._note_members()
        logger.info("Crawling with %d workers and a server of their own: %s", self._count, executable)
        if self._settings["JOBDIR"] is None:
            logger.info("Without JOBDIR, what is pending is gone if this ends before it has finished.")
        return self._server.url

    def _look_after_server(self) -> bool:
        """Start the server again if it has died; return whether there is one."""
        server = self._server
        if server is None or not server.has_ended():
            return True
        is_short = time.monotonic() - self._server_began < SHORT_SECONDS
        self._server_deaths = self._server_deaths + 1 if is_short else 1
        if self._server_deaths >= MOST_SERVER_DEATHS:
            self._fail(
                f"the server has died {self._server_deaths} times within a minute of its start; see {server.log}"
            )
            return False
        logger.warning("The server has died (%s), and is started again; nothing is lost", server.exit_code)
        self._server_began = time.monotonic()
        try:
            server.start(lambda: self._stops > 2)
        except UnusableError as error:
            self._fail(f"the server has died, and does not start again: {error}")
            return False
        self._note_members()
        return True

    # -- workers -----------------------------------------------------------------------------------------------------

    def _worker(self, name: str, url: str) -> Worker:
        server = {"BLOOM_REDIS_URL": url} if url else {}
        order = Order(
            name=name,
            spider=self._options.spider,
            arguments=arglist_to_dict(self._options.arguments),
            settings={
                **self._typed,
                **server,
                "BLOOM_FLEET_WORKER": self._name_on_server(name, is_own=bool(url)),
                "JOBDIR": str(self._directory.worker(name).absolute()),
            },
            output=self._options.output,
            overwrite_output=self._options.overwrite_output,
            stats=str(self._directory.stats_of(name).absolute()),
            own_server=url,
            path=[str(Path(place).absolute()) if place else str(Path.cwd()) for place in sys.path],
        )
        return Worker(order, self._directory.stats_of(name), self._directory.inherited)

    def _name_on_server(self, name: str, *, is_own: bool) -> str:
        """Return a name under which nobody else works on the server, the same after each start of this job."""
        prefix = self._settings["BLOOM_FLEET_WORKER"]
        if prefix:
            return f"{prefix}-{name}"
        if is_own:
            return name
        jobdir = self._settings["JOBDIR"]
        crawl = sha1(str(Path(jobdir).absolute()).encode(), usedforsecurity=False).hexdigest() if jobdir else ""
        return f"{socket.gethostname()}-{(crawl or self._random)[:8]}-{name}"

    _random = secrets.token_hex(4)

    def _watch(self) -> None:
        while True:
            has_server = self._look_after_server()
            changed = [worker for worker in self.workers if worker.look(is_stopping=self._is_stopping)]
            for worker in changed:
                self._say_how_it_ended(worker)
            self._pass_stops_on()
            if any(worker.reason == FINISHED for worker in self.workers):
                for worker in self.workers:
                    worker.give_up()
            elif has_server and not self._is_stopping:
                self._start_workers()
            if all(worker.has_ended for worker in self.workers):
                return
            if time.monotonic() > self._deadline:
                logger.error("The workers have not ended within %g s, and are killed", FAIL_SECONDS)
                return
            time.sleep(_LOOK_SECONDS)

    def _start_workers(self) -> None:
        before = [worker.pid for worker in self.workers]
        for worker in self.workers:
            worker.start()
        if before != [worker.pid for worker in self.workers]:
            self._note_members()

    @property
    def _is_stopping(self) -> bool:
        return bool(self._stops or self.problem)

    def _say_how_it_ended(self, worker: Worker) -> None:
        if worker.lives and worker.reason and worker.has_ended:
            logger.info("%s has ended: %s", worker.name, worker.reason)
        elif worker.is_hopeless:
            self._fail(
                f"{worker.name} has died {MOST_FUTILE_LIVES} times in a row before it had fetched a page "
                f"({worker.deaths[-1]}). The log says why, if it could"
            )
        elif worker.deaths and not worker.has_ended:
            logger.warning("%s has died (%s), and is started again", worker.name, worker.deaths[-1])

    def _fail(self, problem: str) -> None:
        if not self.problem:
            self.problem = problem
            self._deadline = time.monotonic() + FAIL_SECONDS
            logger.error("%s%s. The crawl ends.", problem[0].upper(), problem[1:])
            for worker in self.workers:
                worker.stop()

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _want_stop(self, *_: object) -> None:
        self._stops += 1

    def _pass_stops_on(self) -> None:
        while self._stops_said < self._stops:
            self._stops_said += 1
            if self._stops_said == 1:
                logger.info("Stopping: pages in hand are finished. Once more: at once.")
            elif self._stops_said > 2:
                logger.warning("Killing the workers; the next start fetches again what they had in hand")
            for worker in self.workers:
                if self._stops_said > 2:
                    worker.kill()
                else:
                    worker.stop()

    def _note_members(self) -> None:
        server = {"server": self._server.pid} if self._server is not None else {}
        self._directory.note_members({**server, **{worker.name: worker.pid for worker in self.workers}})


def _typed_settings(options: argparse.Namespace) -> dict[str, Any]:
    try:
        typed: dict[str, Any] = arglist_to_dict(options.setting_arguments)
        arglist_to_dict(options.arguments)
    except ValueError:
        raise UnusableError(
            "The command", "has a -s or -a that is no NAME=VALUE", advice="Write -s JOBDIR=jobs/books, for example."
        ) from None
    if options.logfile:
        typed |= {"LOG_ENABLED": True, "LOG_FILE": str(Path(options.logfile).absolute())}
    if options.loglevel:
        typed |= {"LOG_ENABLED": True, "LOG_LEVEL": options.loglevel}
    if options.nolog:
        typed["LOG_ENABLED"] = False
    return typed


def _settings(options: argparse.Namespace, typed: dict[str, Any]) -> tuple[BaseSettings, BaseSettings]:
    """Return the settings of the project, and those that the spider will run under."""
    if not inside_project():
        raise UnusableError(
            Path.cwd(), "is not in a Scrapy project", advice="Change to the directory of the project's scrapy.cfg."
        )
    settings = get_project_settings()
    settings.setdict(typed, "cmdline")
    loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    try:
        spider = loader.load(options.spider)
    except KeyError:
        raise UnusableError(
            f"The spider {options.spider!r}",
            "is not in this project",
            advice=f"There are: {', '.join(sorted(loader.list())) or 'none'}.",
        ) from None
    if options.output or options.overwrite_output:
        try:
            feeds = feed_process_params_from_cli(
                settings, options.output, overwrite_output=options.overwrite_output or None
            )
        except UsageError as error:
            raise UnusableError("The output", f"cannot be written: {error}", advice="Write -o items.jl.") from None
        settings.set("FEEDS", feeds, "cmdline")
    own = settings.copy()
    spider.update_settings(own)
    return settings, own


def _log(settings: BaseSettings) -> Any:
    """Return a context in which what this process has to say is written where the log of the workers goes."""
    stack = ExitStack()
    if settings.getbool("LOG_ENABLED"):
        path = settings["LOG_FILE"]
        mode = "a" if settings.getbool("LOG_FILE_APPEND") else "w"  # workers append in any case
        handler = logging.FileHandler(path, mode, encoding="utf-8") if path else logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter("[fleet] %(asctime)s %(levelname)s: %(message)s", settings["LOG_DATEFORMAT"])
        )
        stack.callback(handler.close)
        stack.callback(logger.removeHandler, handler)
        stack.callback(setattr, logger, "propagate", logger.propagate)
        stack.callback(logger.setLevel, logger.level)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return stack


def _say_what_is_replaced(settings: BaseSettings) -> None:
    if settings["SCHEDULER"] != _SCRAPYS_SCHEDULER and not is_fleet_scheduler(settings):
        logger.info(
            "SCHEDULER = %r is not used here: the workers share their requests by %s", settings["SCHEDULER"], SCHEDULER
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _workers(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_WORKERS:
        import argparse

        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MAX_WORKERS}, not {text!r}")
    return number
