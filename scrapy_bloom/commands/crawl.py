"""One machine, all its cores: ``scrapy bloom crawl SPIDER --workers N``.

The command starts a server, unless the settings name one, and workers that share its queue. It restarts processes that
die, writes the items of all workers into one file, each item once, and passes Ctrl-C on. At the end it prints how the
crawl ended.
"""

from __future__ import annotations

import os
import shutil
import signal
from argparse import ArgumentTypeError
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from scrapy.crawler import CrawlerRunner
from scrapy.settings import SETTINGS_PRIORITIES

from scrapy_bloom.commands.targets import named_values, settings_of, spider_class
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.filter.lock import lock_directory

if TYPE_CHECKING:
    import argparse

_MOST_WORKERS = 256
_JSON_LINES = ("jl", "jsonl", "jsonlines")
UNFINISHED = 3  # exit code of a crawl that was stopped, or stopped itself, before everything was fetched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``crawl``: the arguments of ``scrapy crawl``, and the number of workers."""
    many: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "as in Scrapy"}
    parser.add_argument("spider", metavar="SPIDER", help="name of a spider of the project")
    workers = f"processes, from 1 to {_MOST_WORKERS}; by default one for each core"
    parser.add_argument("--workers", type=_worker_count, default=os.cpu_count(), metavar="N", help=workers)
    parser.add_argument("-a", dest="arguments", **many)
    parser.add_argument("-s", "--set", dest="set", **many)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("-o", "--output", type=_items_file, metavar="FILE", help="append items to FILE, as JSON lines")
    overwrite = "write items to FILE, as JSON lines; a crawl that does not go on with a job empties FILE first"
    output.add_argument("-O", "--overwrite-output", type=_items_file, dest="overwrite", metavar="FILE", help=overwrite)
    parser.add_argument("-L", "--loglevel", metavar="LEVEL", help="as in Scrapy")
    parser.add_argument("--logfile", metavar="FILE", help="as in Scrapy, for all workers together")
    parser.add_argument("--nolog", action="store_true", help="as in Scrapy")


def _worker_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST_WORKERS}")
    return int(text)


def _items_file(text: str) -> str:
    """Return the path in *text*, which may end with a format as in Scrapy, such as ``:jsonlines``."""
    path, _, suffix = text.rpartition(":")
    if not path or "/" in suffix or os.sep in suffix:
        path, suffix = text, Path(text).suffix.removeprefix(".")
    if "://" in path or suffix not in _JSON_LINES:
        raise ArgumentTypeError(
            f"workers write JSON lines to a local file: {text!r} must end in .{' or .'.join(_JSON_LINES)}"
        )
    return path


def run(options: argparse.Namespace) -> int:
    """Crawl, print how it ended, and return the exit code."""
    from scrapy_bloom.commands.local_fleet import LocalFleet  # imports redis, which is optional

    settings, arguments = settings_of(options).copy(), named_values(options.arguments)
    log = {"LOG_LEVEL": options.loglevel, "LOG_FILE": options.logfile, "LOG_ENABLED": False if options.nolog else None}
    given = {**named_values(options.set), **{name: value for name, value in log.items() if value is not None}}
    settings.setdict(given, "cmdline")
    typed = {name: settings[name] for name in settings if settings.getpriority(name) == SETTINGS_PRIORITIES["cmdline"]}
    spider_class(CrawlerRunner(settings), options.spider).update_settings(settings)
    if settings.getdict("FEEDS"):
        raise SettingsError(["FEEDS cannot be written by several workers; remove it, and give one file: -o items.jl"])
    with ExitStack() as stack:
        jobdir = settings["JOBDIR"] or mkdtemp(prefix="scrapy-bloom-")
        directory = Path(jobdir).absolute() / "fleet"
        crawl: LocalFleet | None = None

        def remove_temporary() -> None:
            if not settings["JOBDIR"] and not (crawl and crawl.keeps_items):
                shutil.rmtree(jobdir, ignore_errors=True)

        stack.callback(remove_temporary)
        stack.enter_context(lock_directory(directory))
        directory.chmod(0o700)  # the queue holds cookies and headers
        order = {"spider": options.spider, "arguments": arguments, "settings": {"LOG_ENABLED": True, **typed}}
        crawl = LocalFleet(settings, directory, options, order)
        stack.callback(crawl.close)
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, crawl.want_stop))
        crawl.run()
        show(crawl.summary(), options)
    return {"failed": WRONG, "finished": OK, "stopped": UNFINISHED}[crawl.outcome]
