"""Delta crawls: the pages that gave an item in an earlier run, which are not fetched again. Lists are.

    item_scraped           the page of a request has given an item
    the request is done    its key waits: its items may not be safe yet
    a commit begins        the keys that wait go with it
    it has been made       they are added to the files

A kill in between loses keys, and their pages are fetched once more; it never loses an item. Where items are not part of
a commit, all keys wait until the crawl has ended and its feeds are stored.

Each of ``DIRECTORY/SPIDER/0``, ``1``, ... is a filter, locked by one process: it adds to the first that is free, and
reads all of them. So the workers of one machine share them.
"""

from __future__ import annotations

import dbm
import logging
import re
import shutil
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy import signals
from scrapy.utils.project import data_path
from scrapy.utils.python import to_bytes

from scrapy_bloom.errors import BloomError, InUseError, SettingsError, counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.filter.inspect import reading
from scrapy_bloom.filter.lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_bloom.filter.layer import Layer
    from scrapy_bloom.job.records import FeedLength
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.store import Store

logger = logging.getLogger(__name__)

_is_hex_sha1 = re.compile(rb"[0-9a-f]{40}").fullmatch


def open_delta(
    crawler: Crawler,
    own: BloomSettings,
    of_request: Callable[[Request], bytes],
    store: Callable[[], Store | None],
    *,
    scheduler: str,
) -> Delta | None:
    """Return what *crawler* knows of earlier runs; None if it is no delta crawl, or only scrapy-deltafetch says so.

    Raises:
        SettingsError: There is no *scheduler* of ours.
        BloomError: The files cannot be used.

    """
    settings = crawler.settings
    delta = settings.getbool("DELTAFETCH_ENABLED") and bool(scheduler) if own.delta is None else own.delta
    if not delta:
        return None
    if not scheduler:
        problem = (
            f"BLOOM_DELTA needs our scheduler, and SCHEDULER is {settings['SCHEDULER']}. Set ADDONS = "
            '{"scrapy_bloom.Addon": 300} and no SCHEDULER'
        )
        raise SettingsError([problem])
    return Delta(crawler, Path(data_path("delta") if delta is True else delta), own, of_request, store)


class Delta:
    """What one crawl knows of the pages that gave an item. It learns of commits as feeds do.

    Args:
        crawler: The crawl. Keep a reference to the delta, since signals do not.
        directory: Has a directory for each spider.
        own: Capacity, error rate and maximum age of the filters, and whether to begin anew.
        of_request: Makes the fingerprint of a request.
        store: Returns the store of the crawl, once it is open.

    """

    def __init__(
        self,
        crawler: Crawler,
        directory: Path,
        own: BloomSettings,
        of_request: Callable[[Request], bytes],
        store: Callable[[], Store | None],
    ) -> None:
        if crawler.stats is None or crawler.spider is None:
            raise TypeError("a delta crawl needs a spider and stats")
        self.waits_for_end = False
        """Whether the items of some feed are safe when the crawl has ended, and not with a commit."""
        self._signals, self._stats, self._of_request, self._store = crawler.signals, crawler.stats, of_request, store
        self._gave: dict[int, bool] = {}  # by id() of the request: whether its page gave items, and none that failed
        self._done: list[bytes] = []  # keys of pages that are done
        self._writing: list[bytes] = []  # and those of the commit under way
        self._commits = 0
        self._new = ScalableBloomFilter(10_000, 1e-3)  # what this run has added; a false positive costs a fetch
        spider, settings = crawler.spider, crawler.settings
        self._home = directory / quote(spider.name, safe="")
        self._taken_over = self._home / "deltafetch-taken-over"
        if own.delta_reset or settings.getbool("DELTAFETCH_RESET") or getattr(spider, "deltafetch_reset", False):
            self._forget_all()
        self._chain, its_directory = self._first_that_is_free(own)
        self._files = ExitStack()
        self._files.callback(self._chain.close)
        self._others: list[Callable[[bytes], bool]] = []
        self._layers: list[Layer] = []  # of the others
        for each in self._home.glob("[0-9]*"):
            if each != its_directory:
                self._read(each, own.max_age)
        if settings.getbool("DELTAFETCH_ENABLED"):
            self._take_over(Path(data_path(settings.get("DELTAFETCH_DIR", "deltafetch")), spider.name), own.max_age)
        self._signals.connect(self._gave_item, signal=signals.item_scraped)
        self._signals.connect(self._failed, signal=signals.item_error)
        self._signals.connect(self._failed, signal=signals.spider_error)
        pages = self._set_pages()
        logger.info("Delta crawl: %s in %s gave an item in earlier runs", counted(pages, "page"), self._home)

    def _forget_all(self) -> None:
        for each in self._home.glob("[0-9]*"):
            if not is_locked(each):
                gone = self._home / f"reset-{each.name}"
                shutil.rmtree(gone, ignore_errors=True)
                each.rename(gone)  # a kill must not leave a filter without some of its layers
                shutil.rmtree(gone)
        self._home.mkdir(parents=True, exist_ok=True)
        self._taken_over.touch()

    def _first_that_is_free(self, own: BloomSettings) -> tuple[ScalableBloomFilter, Path]:
        for number in count():
            directory = self._home / str(number)
            try:
                return open_filter(directory, own.capacity, own.error_rate, max_age=own.max_age), directory
            except InUseError:
                continue
        raise AssertionError

    def _read(self, directory: Path, max_age: float | None) -> None:
        try:
            contains, layers = self._files.enter_context(reading(directory, max_age))
        except BloomError as error:
            logger.warning("%s Its pages are fetched again.", error)
        else:
            self._others.append(contains)
            self._layers += layers

    def _take_over(self, database: Path, max_age: float | None) -> None:
        """Add the keys that scrapy-deltafetch has kept, once: Scrapy's fingerprints, or the user's own."""
        path = f"{database}.db"
        if self._taken_over.exists() or dbm.whichdb(path) is None:
            return
        since = 0 if max_age is None else time.time() - max_age
        try:
            with dbm.open(path, "r") as found:
                keys: list[Any] = [key for key in found.keys() if float(found[key]) >= since]  # noqa: SIM118 - no mapping
        except (*dbm.error, ImportError, OSError, ValueError) as error:  # one of Berkeley DB, from before deltafetch 2
            logger.warning("%s cannot be read (%s): the first delta crawl fetches all pages", path, error)
            return
        for key in keys:
            self._chain.add(key)
            if _is_hex_sha1(key):  # a fingerprint as older versions wrote it
                self._chain.add(bytes.fromhex(key.decode()))
        self._taken_over.touch()
        logger.info("Took over %s from scrapy-deltafetch's %s", counted(len(keys), "page"), path)

    # -- requests ------------------------------------------------------------------------------------------------------

    def skips(self, request: Request) -> bool:
        """Return whether *request* is not fetched again, and count it. An unfiltered start request always is."""
        meta = request.meta
        is_wanted = meta.get("delta_skip") or not meta.get("deltafetch_enabled", True)
        if is_wanted or (request.dont_filter and meta.get("is_start_request")):
            return False
        key = self._key(request)
        if key is None or not self._is_known(key):
            return False
        self._count(1, request)
        return True

    def or_known(self, seen: Sequence[bool], fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each link whether it was *seen*, or its page gave an item; count the latter."""
        known = [not is_seen and self._is_known(each) for is_seen, each in zip(seen, fingerprints, strict=True)]
        if any(known):
            self._count(sum(known), "a link")
        return [either or is_known for either, is_known in zip(seen, known, strict=True)]

    def _is_known(self, key: bytes) -> bool:
        is_kept = self._chain.contains(key) or any(contains(key) for contains in self._others)
        return is_kept and key not in self._new

    def _count(self, number: int, first: object) -> None:
        if not self._stats.get_value("bloom/delta/skipped"):
            logger.info(
                "Not fetched again, since its page gave an item in an earlier run: %s. No more are shown; the stat "
                "bloom/delta/skipped counts them",
                first,
            )
        self._stats.inc_value("bloom/delta/skipped", number)

    def _key(self, request: Request) -> bytes | None:
        own = request.meta.get("delta_key") or request.meta.get("deltafetch_key")
        try:
            return to_bytes(own) if own else self._of_request(request)
        except Exception:  # no text, or a fingerprinter of the user's fails
            logger.warning("%s has no key, and is fetched in each run", request, exc_info=True)
            return None

    @property
    def drops(self) -> int:
        """How often pages have become too old to be known."""
        return self._chain.drops

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        rate = sum(layer.estimated_error_rate for layer in [*self._chain.layers, *self._layers])
        return rate * int(self._stats.get_value("scheduler/enqueued", 0))

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _gave_item(self, response: Response | None) -> None:
        self._note(response, is_whole=True)

    def _failed(self, response: Response | None) -> None:
        self._note(response, is_whole=False)

    def _note(self, response: Response | None, *, is_whole: bool) -> None:
        request, store = getattr(response, "request", None), self._store()
        if request is not None and store is not None and store.is_handling(request):
            self._gave[id(request)] = is_whole and self._gave.get(id(request), True)

    def done(self, request: Request) -> None:
        """Note that the engine is done with *request*, and its items are in the feeds."""
        if self._gave.pop(id(request), False) and (key := self._key(request)) is not None:
            self._done.append(key)

    def export(self, item: Any) -> None:
        """Do nothing: it is no feed."""

    def flush(self) -> None:
        """Add what commits have made safe; note that the next one holds the items of all pages done so far."""
        self._add_committed()
        if not self._is_safe_at_end:
            self._writing += self._done
            self._done.clear()

    def lengths(self) -> list[FeedLength]:
        """Do as :meth:`flush`."""
        self.flush()
        return []

    @property
    def _is_safe_at_end(self) -> bool:
        store = self._store()
        return self.waits_for_end or store is None or store.commits is None

    def _add_committed(self) -> None:
        store = self._store()
        if store is not None and store.commits is not None and store.commits > self._commits:
            self._commits = store.commits
            self._add(self._writing)

    def _add(self, keys: list[bytes]) -> None:
        for key in keys:
            self._chain.add(key)
            self._new.add(key)
        keys.clear()
        self._set_pages()

    def _set_pages(self) -> int:
        pages = len(self._chain) + sum(layer.count for layer in self._layers) + len(self._done) + len(self._writing)
        self._stats.set_value("bloom/delta/pages", pages)
        return pages

    # -- the end -------------------------------------------------------------------------------------------------------

    def crawl_closes(self) -> None:
        """Add what is safe, and close the files; if need be, when the feeds are stored."""
        self._add_committed()
        self._set_pages()
        if self._is_safe_at_end:
            self._signals.connect(self._engine_stopped, signal=signals.engine_stopped)
        else:
            self.close()

    def _engine_stopped(self) -> None:
        if any(name.startswith("feedexport/failed_count/") for name in self._stats.get_stats()):
            logger.warning("A feed could not be stored: the next run fetches again what gave an item in this one")
        else:
            self._add(self._done)
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._files.close()
