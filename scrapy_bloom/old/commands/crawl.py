"""One machine, all its cores: ``scrapy bloom crawl SPIDER --workers N``.

Runs a spider in several processes that share the queue on a server, one of their own unless the settings name one.
Reads the arguments and prints the summary. Does not know how the crawl is run (``crawl_run``), nor where its files are
(``crawl_directory``).
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict, feed_process_params_from_cli
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings, inside_project

from scrapy_bloom.old.commands.crawl_directory import CrawlDirectory
from scrapy_bloom.old.commands.crawl_feeds import check_feeds
from scrapy_bloom.old.commands.crawl_run import CrawlRun, Wanted
from scrapy_bloom.old.commands.crawl_summary import FINISHED, STOPPED, summary, summary_lines
from scrapy_bloom.old.commands.crawl_worker import SCHEDULER, is_fleet_scheduler
from scrapy_bloom.old.commands.terminal import OK, WRONG, show
from scrapy_bloom.old.errors import BloomError, UnusableError, counted
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdicts import parked_requests
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

MAX_WORKERS = 256
"""More processes than any machine needs."""

UNFINISHED = 3
"""Exit code of a crawl that was stopped, or stopped itself, before everything was fetched."""

_SCRAPYS_SCHEDULER = "scrapy.core.scheduler.Scheduler"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``crawl``: what ``scrapy crawl`` takes, and how many workers."""
    parser.add_argument("spider", metavar="SPIDER", help="name of a spider of the project")
    parser.add_argument(
        "--workers", type=_workers, default=None, metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("-a", dest="arguments", action="append", default=[], metavar="NAME=VALUE", help="as in Scrapy")
    parser.add_argument(
        "-s", "--set", dest="setting_arguments", action="append", default=[], metavar="NAME=VALUE", help="as in Scrapy"
    )
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE", help="append items to FILE, as JSON lines"
    )
    parser.add_argument(
        "-O", "--overwrite-output", action="append", default=[], metavar="FILE", help="the same after emptying FILE"
    )
    parser.add_argument("-L", "--loglevel", metavar="LEVEL", help="as in Scrapy")
    parser.add_argument("--logfile", metavar="FILE", help="as in Scrapy, for all workers together")
    parser.add_argument("--nolog", action="store_true", help="as in Scrapy")


def run(options: argparse.Namespace) -> int:
    """Crawl, print how it ended, and return the exit code."""
    typed = _typed_settings(options)
    settings, spider_settings = _settings(options, typed)
    check_feeds(spider_settings)
    BloomSettings.from_settings(spider_settings)  # raise here, once, what would end each worker
    wanted = Wanted(
        options.spider,
        options.workers or _cores(),
        arglist_to_dict(options.arguments),
        typed,
        options.output,
        options.overwrite_output,
    )
    began = time.monotonic()
    jobdir = Path(spider_settings["JOBDIR"]) if spider_settings["JOBDIR"] else None
    with ExitStack() as stack:
        stack.enter_context(_log(settings))
        _say_what_is_replaced(spider_settings)
        try:
            directory = stack.enter_context(CrawlDirectory(jobdir, options.spider, logger.warning))
        except KeyboardInterrupt:  # while it waits for what is left of a killed crawl
            return UNFINISHED
        _say_who_is_absent(directory, wanted.workers)
        crawl = CrawlRun(wanted, spider_settings, directory)
        stack.enter_context(crawl.listening())
        crawl.run()
    found = summary(options.spider, crawl.outcome, crawl.problem, time.monotonic() - began, crawl.workers)
    found["job"] = str(jobdir) if jobdir else None
    show(found, options, summary_lines)
    return {FINISHED: OK, STOPPED: UNFINISHED}.get(crawl.outcome, WRONG)


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
    """Return a context in which this process logs to where its workers log."""
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


def _say_who_is_absent(directory: CrawlDirectory, workers: int) -> None:
    """Warn of requests that the loop guard has parked with workers of an earlier start, which this one does without."""
    for number in directory.numbers():
        jobdir = directory.worker(f"worker-{number}")
        if number <= workers or not guard_file(jobdir).exists():
            continue
        try:
            waiting = parked_requests(jobdir)
        except BloomError as error:
            logger.warning("What the loop guard has parked with an absent worker is not known: %s", error)
            continue
        if waiting:
            logger.warning(
                "The loop guard has parked %s in %s, and with --workers %d nobody looks there: their pages count as "
                "seen and are not fetched. Go on with them by --workers %d or more. See them with: scrapy bloom info "
                "%s. To have them fetched then: scrapy bloom requeue %s",
                counted(waiting, "request"),
                jobdir,
                workers,
                number,
                jobdir,
                jobdir,
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
