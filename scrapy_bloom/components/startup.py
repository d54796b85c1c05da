"""Starting and ending a crawl: the job directory, one CRITICAL line for what is wrong, timers, an end from within.

Also what a job notes with each commit beside requests: ``spider.state``, and the start URLs that it has taken in.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from bisect import bisect
from collections import deque
from contextlib import contextmanager, suppress
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider, signals
from scrapy.extensions import spiderstate
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.reactor import CallLaterOnce

from scrapy_bloom.errors import BloomError, UnusableError
from scrapy_bloom.frontier.order import PICKLE_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapy_bloom.job.store import JobStore

# Set by the shell in Scrapy 2.13 or 2.19, and by no other command.
_SETTINGS_OF_THE_SHELL = ("KEEP_ALIVE", "LOGSTATS_INTERVAL", "REMOTE_CONTROL_ENABLED")


def engine_of(crawler: Crawler) -> Any:
    """Return the engine of *crawler*; None if a filter or a scheduler is used without a crawl."""
    try:
        return crawler.engine
    except RuntimeError:  # Scrapy 2.19 and newer
        return None


@contextmanager
def log_start_errors(logger: logging.Logger) -> Iterator[None]:
    """Log once, on one CRITICAL line, why the crawl cannot start, and raise the exception again.

    Scrapy alone would bury the reason between two tracebacks.
    """
    try:
        yield
    except Exception as error:
        marked: Any = error
        if not getattr(marked, "is_logged", False):
            marked.is_logged = True
            reason = str(error) if isinstance(error, BloomError) else f"{type(error).__name__}: {error}"
            logger.critical("The crawl has not started. %s", reason)
        raise


def job_directory(settings: BaseSettings) -> Path | None:
    """Create the directory that ``JOBDIR`` names and return it; None without ``JOBDIR``.

    Raises UnusableError if it is not a directory, or cannot be created or written to.
    """
    name = settings["JOBDIR"]
    if not name:
        return None
    path, problem = Path(name), "cannot be written to"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return path
    except OSError as error:
        problem = f"cannot be a directory: {error.strerror}"
    advice = "Set JOBDIR to a directory that this user may create or write to, one for each spider."
    raise UnusableError(f"JOBDIR={name}", problem, advice=advice)


def keep_spider_state(crawler: Crawler) -> None:
    """Let Scrapy leave ``JOBDIR/spider.state`` as it is, since the crawl does not start.

    Scrapy's extension would empty the file when the spider is closed, because it has not read the state.
    """
    for extension in getattr(crawler.extensions, "middlewares", ()):
        if isinstance(extension, spiderstate.SpiderState):
            extension.jobdir = None


def looks_only(crawler: Crawler) -> bool:
    """Return whether *crawler* belongs to a command of Scrapy's that looks at a page instead of crawling.

    With ``JOBDIR`` or a fleet in the project's settings, these would fetch the pending requests of a crawl. ``parse``,
    ``fetch`` and ``check`` put their own ``start()`` into the spider. The shell opens an engine without starting a
    crawl, under settings of its own.
    """
    if str(getattr(crawler.spidercls.start, "__module__", "")).startswith("scrapy.commands."):
        return True
    command = SETTINGS_PRIORITIES["command"]
    return not crawler.crawling and any(
        crawler.settings.getpriority(name) == command for name in _SETTINGS_OF_THE_SHELL
    )


def repeat(call: Callable[[], None], seconds: float) -> CallLaterOnce[None]:
    """Call *call* every so many *seconds*, and return a timer with ``cancel()``."""

    def again() -> None:
        timer.schedule(seconds)
        call()

    timer = CallLaterOnce(again)
    with suppress(RuntimeError):  # there is no event loop: a scheduler used on its own, as in tests
        timer.schedule(seconds)
    return timer


def end_crawl(crawler: Crawler, reason: str) -> None:
    """Close the spider of *crawler*, as soon as the present call into Scrapy has returned, with *reason*.

    *reason* is the ``finish_reason``, one word such as ``job_damaged``. Does nothing if no spider is open.
    """
    engine = engine_of(crawler)
    if engine is None or getattr(engine, "spider", None) is None:
        return

    def end() -> Any:
        if engine.spider is None:  # the crawl has ended meanwhile
            return None
        if hasattr(engine, "close_spider_async"):  # Scrapy 2.14 and newer
            return deferred_from_coro(engine.close_spider_async(reason=reason))
        return engine.close_spider(engine.spider, reason)

    CallLaterOnce(end).schedule()


logger = logging.getLogger(__name__)

_STATE, _START_URLS = "spider.state", "start_urls"
LOOK_AHEAD = 1_000
"""Start URLs behind the last one among which the next is looked for: so many in a row a middleware may leave out."""


class SpiderState:
    """The state of *crawler*'s spider, as the job in *store* has it. Scrapy alone writes it at a clean stop only."""

    def __init__(self, crawler: Crawler, store: JobStore) -> None:
        self._spider: Any = crawler.spider
        self._noted, self._was_clean = store.database.notes("state").get(_STATE), store.before.clean
        self._is_unwritable = False
        if getattr(self._spider, "state", None):
            logger.warning("spider.state is replaced by the state that the job keeps: give -a state another name")
        crawler.signals.connect(self._restore, signal=signals.spider_opened)

    def _restore(self) -> None:
        """Give the spider the state of the last commit, unless Scrapy has read one that it wrote at a clean stop."""
        if self._noted is not None and not (self._was_clean and hasattr(self._spider, "state")):
            self._spider.state = pickle.loads(self._noted)  # noqa: S301 - as Scrapy does both
        elif not hasattr(self._spider, "state"):  # a crawl that was refused has left an empty file
            self._spider.state = {}

    def note(self) -> dict[str, bytes]:
        """Return what a commit notes of the state."""
        state = getattr(self._spider, "state", None)
        if state is None or self._is_unwritable:
            return {}
        try:
            return {_STATE: pickle.dumps(state, PICKLE_PROTOCOL)}
        except Exception as error:  # whatever the spider keeps there; Scrapy will fail on it, too
            logger.warning("spider.state cannot be written (%r): a kill loses it", error)
            self._is_unwritable = True
            return {}


class StartUrls:
    """The start URLs of one run, so that a resumed run does not ask again for those that the job has taken in.

    This works for spiders that use Scrapy's own ``Spider.start()`` over ``start_urls``. All other start requests are
    made again in each run. URLs have places in their list, counted from 0. The list of *spider* is read when the first
    start request comes. *store* is None if there is no job.
    """

    def __init__(self, spider: Spider | None, store: JobStore | None) -> None:
        is_resumed = store is not None and store.is_resumed
        noted = store.database.notes("state").get(_START_URLS) if store is not None and is_resumed else None
        self._spider, self._noted = spider, noted
        self._urls: Sequence[str] | None = None
        self._digest = ""
        self._next = 0  # the first place that no start request of this run has had
        self._ahead: deque[str] = deque()  # URLs from there on, as a Request has them
        self._taken_in: list[list[int]] = []  # ranges of places: first, and the one behind the last

    def place_of(self, request: Request) -> int | None:
        """Return the place of *request*, an unfiltered request of ``start()``; None if it is not of the list.

        A middleware may add requests, change them or leave some out. If it changes the order, some are asked for again.
        """
        if self._urls is None:
            self._read()
        if request.url not in self._look_ahead(1) and request.url not in self._look_ahead(LOOK_AHEAD):
            return None
        while self._ahead.popleft() != request.url:
            self._next += 1
        self._next += 1
        return self._next - 1

    def _look_ahead(self, count: int) -> deque[str]:
        urls, ahead = self._urls or (), self._ahead
        for url in urls[self._next + len(ahead) : self._next + count]:
            ahead.append(Request(url).url)
        return ahead

    def is_taken_in(self, place: int) -> bool:
        """Return whether the job has the request at *place*: it is pending, or was."""
        at = bisect(self._taken_in, [place, len(self._urls or ())])
        return at > 0 and place < self._taken_in[at - 1][1]

    def take_in(self, place: int) -> None:
        """Note that the request at *place* is part of the next commit."""
        ranges = self._taken_in
        at = bisect(ranges, [place, place])
        if at and ranges[at - 1][1] == place:
            ranges[at - 1][1] += 1
        else:
            ranges.insert(at, [place, place + 1])

    def note(self) -> dict[str, bytes]:
        """Return what a commit notes of the places."""
        return {} if self._urls is None else {_START_URLS: json.dumps([self._taken_in, self._digest]).encode()}

    def _read(self) -> None:
        self._urls = _list_of(self._spider)
        self._digest = sha1("\n".join(self._urls).encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
        if self._noted is not None:
            taken_in, digest = json.loads(self._noted)
            self._taken_in = taken_in if digest == self._digest else []


def _list_of(spider: Spider | None) -> Sequence[str]:
    """Return the start URLs of *spider*; none if it, or a subclass of Spider, has a ``start()`` of its own."""
    for name in ("start", "start_requests"):  # the second until Scrapy 2.18
        method: Any = getattr(spider, name, None)
        if getattr(method, "__func__", None) is not getattr(Spider, name, None):
            return []
    urls = getattr(spider, "start_urls", ())
    return list(urls) if isinstance(urls, (list, tuple)) and all(isinstance(url, str) for url in urls) else []
