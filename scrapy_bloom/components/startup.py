"""Starting and ending a crawl: the job directory, one CRITICAL line for what is wrong, timers, an end from within."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions.spiderstate import SpiderState
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.reactor import CallLaterOnce

from scrapy_bloom.errors import BloomError, UnusableError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

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
        if isinstance(extension, SpiderState):
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
