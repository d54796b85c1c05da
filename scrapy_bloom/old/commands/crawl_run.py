"""Server and workers of one ``scrapy bloom crawl``: starts them, keeps them running, and stops them.

Knows what the crawl is to do and in which directory. Does not know how a worker's process is started
(``crawl_workers``), what it does (``crawl_worker``), nor what a person typed (``crawl``).
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.crawl_feeds import remove_overwritten
from scrapy_bloom.old.commands.crawl_summary import FAILED, FINISHED, STOPPED
from scrapy_bloom.old.commands.crawl_worker import Order
from scrapy_bloom.old.commands.crawl_workers import MOST_FUTILE_LIVES, Worker
from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.fleet.address import is_named
from scrapy_bloom.old.fleet.own_server import OwnServer
from scrapy_bloom.old.fleet.server_executable import ADVICE, server_executable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.settings import BaseSettings

    from scrapy_bloom.old.commands.crawl_directory import CrawlDirectory

logger = logging.getLogger("scrapy_bloom.old.commands.crawl")

MOST_SERVER_DEATHS = 3
"""The crawl ends if its own server dies this many times in a row within :data:`SHORT_SECONDS` of a start."""

SHORT_SECONDS = 60.0

FAIL_SECONDS = 60.0
"""How long the workers may take to end when the crawl has failed."""

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Wanted:
    """What a person has asked for."""

    spider: str
    workers: int
    arguments: Mapping[str, str]
    """The spider's."""
    settings: Mapping[str, Any]
    """Those of the command line."""
    output: Sequence[str]
    overwrite_output: Sequence[str]


class CrawlRun:
    """One run.

    Args:
        wanted: What a person has asked for.
        settings: All that the spider will run under.
        directory: Where files go; open.

    """

    def __init__(
        self,
        wanted: Wanted,
        settings: BaseSettings,
        directory: CrawlDirectory,
    ) -> None:
        self.problem = ""
        """Why the crawl has failed, in a sentence."""
        self.workers: list[Worker] = []
        self._wanted = wanted
        self._settings = settings
        self._directory = directory
        self._server: OwnServer | None = None
        self._server_began = 0.0
        self._server_deaths = 0
        self._stops = 0  # how often somebody wanted it to stop
        self._stops_said = 0
        self._deadline = float("inf")
        self._random = secrets.token_hex(4)

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        reasons = {worker.reason for worker in self.workers if worker.has_ended}
        if self.problem:
            return FAILED
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
                spider = self._wanted.spider
                names = [f"worker-{number}" for number in range(1, self._wanted.workers + 1)]
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
            logger.info("Crawling with %d workers and the server that the settings name", self._wanted.workers)
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
        logger.info("Crawling with %d workers and a server of their own: %s", self._wanted.workers, executable)
        if not self._settings["JOBDIR"]:
            logger.info("Without JOBDIR, pending requests are lost if this ends before it has finished.")
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
            spider=self._wanted.spider,
            arguments=dict(self._wanted.arguments),
            settings={
                **self._wanted.settings,
                **server,
                "BLOOM_FLEET_WORKER": self._name_on_server(name, is_own=bool(url)),
                "JOBDIR": str(self._directory.worker(name).absolute()),
            },
            output=list(self._wanted.output),
            overwrite_output=list(self._wanted.overwrite_output),
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
                logger.warning("Killing the workers; the next start fetches what they had in hand again")
            for worker in self.workers:
                if self._stops_said > 2:
                    worker.kill()
                else:
                    worker.stop()

    def _note_members(self) -> None:
        server = {"server": self._server.pid} if self._server is not None else {}
        self._directory.note_members({**server, **{worker.name: worker.pid for worker in self.workers}})
