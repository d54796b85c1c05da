"""Feeds of a crawl in this process: items go to real exporters, pages to a real job, and a kill is a copy of files."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.utils.test import get_crawler

from benchmarks.engine import NOTHING_ELSE
from tests.support.engine import Engine, PlainSpider

OURS, SCRAPYS = "scrapy_bloom.components.feeds.FeedExporter", "scrapy.extensions.feedexport.FeedExporter"
LINES: dict[str, Any] = {"format": "jsonlines"}
FEED = {"items.jl": LINES}
_numbers = itertools.count()


def numbered(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


Step = str | Callable[[Path], object]


def play(
    directory: Path,
    feeds: Mapping[str, Mapping[str, Any]],
    *steps: Step,
    item: Callable[[int], Any] = lambda number: {"n": number},
    **settings: Any,
) -> None:
    """Play runs of a job in ``directory/job``, as in ``play(tmp_path, FEED, "0-4 commit 5 kill", damage, "5 stop")``.

    A number is an item of a page of its own, ``note`` a commit without the append, and ``kill``, ``stop`` and ``end``
    end a run; the next word begins another. The last run is ended. Functions do something to files in the directory.
    """
    run = None
    for step in itertools.chain(*(each.split() if isinstance(each, str) else [each] for each in steps)):
        if callable(step):
            step(directory)
            continue
        run = run or FeedRun(directory, feeds, **settings)
        if step[0].isdecimal():
            first, _, last = step.partition("-")
            run.give(*map(item, range(int(first), int(last or first) + 1)))
        elif step in {"commit", "note"}:
            run.commit(whole=step == "commit")
        else:
            {"kill": run.drop, "stop": partial(run.end, "shutdown"), "end": run.end}[step]()
            run = None
    if run is not None:
        run.end()


class FeedRun:
    """One run of a job in ``directory/job`` whose *feeds* are files below *directory*."""

    def __init__(self, directory: Path, feeds: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
        self.directory, self._feeds, self._settings = directory, feeds, settings
        directory.mkdir(parents=True, exist_ok=True)
        paths = {str(directory / name): dict(options) for name, options in feeds.items()}
        self.engine = Engine(directory / "job", {"FEEDS": paths, "EXTENSIONS": {OURS: 0}, **settings})
        _send(self.engine.crawler, signals.spider_opened)

    @property
    def stats(self) -> dict[str, Any]:
        assert self.engine.crawler.stats is not None
        return self.engine.crawler.stats.get_stats()

    @contextmanager
    def page(self) -> Iterator[Callable[[Any], None]]:
        """Fetch a page; yield the function that gives an item of it."""
        request = self.engine.fetch(Request(f"http://site.test/{next(_numbers)}"))
        with self.engine.within(request):
            yield self.scrape
        self.engine.end(request)

    def scrape(self, item: Any) -> None:
        """Give an item of the page in whose context this is called."""
        self.engine.crawler.signals.send_catch_log(signals.item_scraped, item=item, spider=self.engine.spider)

    def give(self, *items: Any) -> None:
        """Give *items*, each of a page of its own that is done after it."""
        for item in items:
            with self.page() as give:
                give(item)

    def commit(self, *, whole: bool = True) -> None:
        """Commit all up to now; unless *whole*, stop when the transaction is written, before the feeds are."""
        _in_loop(partial(self.engine.commit, whole=whole))

    def items(self, name: str = "items.jl") -> list[Any]:
        """Return the items in the feeds *name*, a pattern, in JSON lines."""
        paths = sorted(self.directory.glob(name))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def next_run(self, **settings: Any) -> FeedRun:
        """Return the next run; nothing of this one is running."""
        return FeedRun(self.directory, self._feeds, **{**self._settings, **settings})

    def kill(self) -> FeedRun:
        """Leave the files as a kill at this moment does, and return the next run."""
        self.drop()
        return self.next_run()

    def drop(self) -> None:
        """Leave the files as a kill at this moment does."""
        self.engine.store.abandon()
        self.engine.crawl.core.finish_reason = "killed"  # links of other crawls are not asked of this one

    def close(self, reason: str = "finished") -> None:
        """Close the spider as the engine does, up to the handlers of ``spider_closed``."""
        _in_loop(partial(self.engine.close, reason))
        _close(self.engine.crawler)

    def end(self, reason: str = "finished") -> FeedRun:
        """End the crawl."""
        self.close(reason)
        self.stop()
        return self

    def stop(self) -> None:
        """Stop the engine, after the spider was closed."""
        self.engine.closed()


def write_plainly(directory: Path, feeds: Mapping[str, Mapping[str, Any]], items: list[Any], **settings: Any) -> None:
    """Write *items* to *feeds* below *directory* with Scrapy's own exporter."""
    paths = {str(directory / name): dict(options) for name, options in feeds.items()}
    crawler = get_crawler(PlainSpider, {**NOTHING_ELSE, "FEEDS": paths, "EXTENSIONS": {SCRAPYS: 0}, **settings})
    crawler.spider = crawler._create_spider()
    _send(crawler, signals.spider_opened)
    for item in items:
        give = partial(crawler.signals.send_catch_log, signals.item_scraped, item=item, spider=crawler.spider)
        _in_loop(give)
    _close(crawler)


def _send(crawler: Crawler, signal: object) -> None:
    signals_of: Any = crawler.signals
    send = getattr(signals_of, "send_catch_log_async", signals_of.send_catch_log_deferred)  # of Scrapy 2.14
    _in_loop(lambda: send(signal, spider=crawler.spider))


def _close(crawler: Crawler) -> None:
    (exporter,) = crawler.extensions.middlewares  # type: ignore[union-attr] # there is this extension alone
    _in_loop(lambda: exporter.close_spider(crawler.spider))


def _in_loop(call: Callable[[], Any]) -> None:
    """Call *call*, and wait for what it starts."""

    async def run() -> None:
        result = call()
        if inspect.iscoroutine(result):
            await result
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)

    loop = asyncio.new_event_loop()  # asyncio.run() would take the one of Twisted's reactor away
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
