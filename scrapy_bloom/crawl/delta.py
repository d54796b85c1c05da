"""Delta crawls do not fetch a page again that gave an item in an earlier run. Pages without items (lists) are fetched.

    an item is scraped     the page of a request has given an item
    the page is committed  the key of the page waits: its items may not be safe yet
    a commit begins        the keys that wait belong to this commit
    the commit has ended   these keys are added to the files

A kill in between costs fetches, never an item. Where no commit has the items, all keys wait until the crawl has ended.

Each of ``DIRECTORY/SPIDER/0``, ``1``, ... is a filter of keys: a process locks the first that is free, adds to that,
and reads all, so the workers of one machine share them. ``crawl-0`` is a filter of what the last crawl has added to
``0``, and ``crawl-0.id`` names that crawl, which other processes may take part in and later ones may resume.
"""

from __future__ import annotations

import dbm
import logging
import re
import shutil
import time
from contextlib import ExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy_bloom.errors import BloomError, InUseError, counted
from scrapy_bloom.filter.directory import open_filter, reading
from scrapy_bloom.filter.lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

_is_hex_sha1 = re.compile(rb"[0-9a-f]{40}").fullmatch


_TAKEN_OVER = "deltafetch-taken-over"
"""Name of an empty file: the keys of scrapy-deltafetch are taken over, and are not once more."""


class NoDelta:
    """What a crawl without ``BLOOM_DELTA`` knows of earlier runs: nothing."""

    is_on = False

    def known(self, keys: Sequence[bytes], request: object = "a link") -> list[bool]:  # noqa: ARG002 - nothing is known
        """Return for each of *keys* whether its page gave an item in an earlier run; count those, and log the first.

        They are of *request*, or of links.
        """
        return [False] * len(keys)

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        return 0.0

    def wait_for_end(self) -> None:
        """Add no key before the crawl has ended: the items of a feed are not part of the commits."""

    def done(self, key: bytes) -> None:
        """Note that the page with this *key*, which is committed next, gave whole items."""

    def commit_begins(self) -> None:
        """Note that the next commit holds the items of all pages done so far."""

    def crawl_closes(self) -> None:
        """Log what is odd about the run."""

    def ended(self) -> None:
        """Add what is safe, now that the feeds are stored, and close the files."""


def home_of(directory: Path, spider: str) -> Path:
    """Return where in *directory* the files of *spider* are."""
    return directory / quote(spider, safe="")


def forget_pages(home: Path) -> None:
    """Forget the pages in *home* that gave an item, except those that a running process keeps."""
    for directory in home.glob("[0-9]*"):
        if not is_locked(directory):
            shutil.rmtree(directory)
    home.mkdir(parents=True, exist_ok=True)
    (home / _TAKEN_OVER).touch()


class DeltaFiles:
    """What earlier runs of *spider* left in *directory*; with *forgets*, nothing.

    Raises BloomError if the files cannot be used.
    """

    def __init__(self, directory: Path, spider: str, bloom: BloomSettings, *, forgets: bool) -> None:
        self.home = home_of(directory, spider)
        self._taken_over = self.home / _TAKEN_OVER
        self._max_age = bloom.max_age
        if forgets:
            forget_pages(self.home)
        self._open_files = ExitStack()
        self._readers: dict[Path, tuple[list[Path], ScalableBloomFilter]] = {}
        self._others: list[ScalableBloomFilter] = []
        self._chain = self._open(bloom)

    def _open(self, bloom: BloomSettings) -> ScalableBloomFilter:
        for mine in (self.home / str(number) for number in count()):
            with suppress(InUseError):
                chain = open_filter(mine, bloom.capacity, bloom.error_rate, max_age=bloom.max_age)
                break
        self._open_files.callback(chain.close)
        self._mine = self.home / f"crawl-{mine.name}"
        for other in set(self.home.glob("[0-9]*")) - {mine}:
            try:
                self._others.append(self._open_files.enter_context(reading(other, bloom.max_age)))
            except BloomError as error:
                logger.warning("%s Its pages are fetched again.", error)
        return chain

    def begin(self, crawl: str) -> None:
        """Begin or resume *crawl*: the keys that it has added are not of an earlier run."""
        self._crawl, note = crawl.encode(), self._mine.with_suffix(".id")
        if not self._is_of_this_crawl(self._mine):
            note.unlink(missing_ok=True)
            shutil.rmtree(self._mine, ignore_errors=True)
        self._new = open_filter(self._mine, 10_000, 1e-3)  # a false positive costs a fetch
        self._open_files.callback(self._new.close)
        note.write_bytes(self._crawl)

    def _is_of_this_crawl(self, directory: Path) -> bool:
        with suppress(FileNotFoundError):
            return directory.with_suffix(".id").read_bytes() == self._crawl
        return False

    def _is_of_another_process(self, key: bytes) -> bool:
        """Return whether another process of this crawl, at work or ended, has added *key*."""
        others = (path for path in self.home.glob("crawl-*") if path.is_dir() and path != self._mine)
        return any(self._is_of_this_crawl(other) and key in self._reader(other) for other in others)

    def _reader(self, directory: Path) -> ScalableBloomFilter:
        """Return the filter in *directory*, with the files that it has now."""
        files = list(directory.iterdir())
        if directory not in self._readers or self._readers[directory][0] != files:
            self._readers[directory] = files, self._open_files.enter_context(reading(directory))
        return self._readers[directory][1]

    def take_over(self, path: Path) -> None:
        """Add the keys that scrapy-deltafetch has kept at *path*, once: Scrapy's fingerprints, or the user's own."""
        if self._taken_over.exists() or dbm.whichdb(str(path)) is None:
            return
        since = time.time() - (self._max_age or time.time())
        try:
            with dbm.open(str(path), "r") as database:
                keys: list[Any] = [key for key in database.keys() if float(database[key]) >= since]  # noqa: SIM118 - no mapping
        except (*dbm.error, ImportError, OSError, ValueError) as error:  # one of Berkeley DB, from before deltafetch 2
            logger.warning("%s cannot be read (%s): the first delta crawl fetches all pages", path, error)
            return
        for key in keys:
            self._chain.add(key)
            if _is_hex_sha1(key):  # a fingerprint as older versions wrote it
                self._chain.add(bytes.fromhex(key.decode()))
        self._taken_over.touch()
        logger.info("Took over %s from scrapy-deltafetch's %s", counted(len(keys), "page"), path)

    def __len__(self) -> int:
        """Return how many pages are known."""
        return sum(map(len, (self._chain, *self._others)))

    def is_of_earlier_run(self, key: bytes) -> bool:
        """Return whether *key* was added before this crawl."""
        is_known = any(key in chain for chain in (self._chain, *self._others))
        return is_known and key not in self._new and not self._is_of_another_process(key)

    def add(self, key: bytes) -> None:
        """Add *key*: its page gave an item in this crawl."""
        self._new.add(key)  # first: others may read at any moment
        self._chain.add(key)

    def error_rate(self) -> float:
        """Return the chance that a key which nobody added is taken for known."""
        return sum(chain.estimated_error_rate() for chain in (self._chain, *self._others))

    def close(self) -> None:
        """Close the files."""
        self._open_files.close()


class Delta(NoDelta):
    """What one crawl knows of the pages that gave an item. *files* are what earlier runs left, and *store* is open.

    *waits_for_end*: items are safe only when the crawl has ended, because they are not part of the commits.
    """

    is_on = True

    def __init__(self, files: DeltaFiles, store: Store, stats: Any, *, waits_for_end: bool) -> None:
        self._files, self._store, self._stats, self._waits_for_end = files, store, stats, waits_for_end
        self._done: list[bytes] = []  # keys of pages that are committed next
        self._writing: list[bytes] = []  # and those of the commit under way
        self._commits = 0
        files.begin(store.crawl_id)
        self._set_pages()
        pages = counted(stats.get_value("bloom/delta/pages", 0), "page")
        logger.info("Delta crawl: %s in %s gave an item in earlier runs", pages, files.home)

    def known(self, keys: Sequence[bytes], request: object = "a link") -> list[bool]:
        """Return for each of *keys* whether its page gave an item in an earlier run; count those, and log the first."""
        known = [self._files.is_of_earlier_run(key) for key in keys]
        if any(known):
            if not self._stats.get_value("bloom/delta/skipped"):
                logger.info("Not fetched again, as its page gave an item before: %s. No more are shown", request)
            self._stats.inc_value("bloom/delta/skipped", sum(known))
        return known

    def expected_lost(self) -> float:
        """Return how many new pages of this run have probably been taken for known."""
        return self._files.error_rate() * int(self._stats.get_value("scheduler/enqueued", 0))

    def wait_for_end(self) -> None:
        """Add no key before the crawl has ended: the items of a feed are not part of the commits."""
        self._waits_for_end = True

    def done(self, key: bytes) -> None:
        """Note that the page with this *key*, which is committed next, gave whole items."""
        self._done.append(key)

    def commit_begins(self) -> None:
        """Note that the next commit holds the items of all pages done so far."""
        self._add_committed()
        if not self._waits_for_end:
            self._writing += self._done
            self._done.clear()

    def _add_committed(self) -> None:
        if (commits := self._store.commits or 0) > self._commits:
            self._commits = commits
            self._add(self._writing)

    def _add(self, keys: list[bytes]) -> None:
        for key in keys:
            self._files.add(key)
        keys.clear()
        self._set_pages()

    def _set_pages(self) -> None:
        pages = len(self._files) + len(self._done) + len(self._writing)
        self._stats.set_value("bloom/delta/pages", pages)

    def crawl_closes(self) -> None:
        """Log what is odd about the run."""
        self._add_committed()
        self._set_pages()
        value_of = self._stats.get_value
        has_queued = value_of("scheduler/enqueued", 0) + value_of("scheduler/dequeued", 0) > 0
        if value_of("bloom/delta/skipped", 0) and not has_queued:
            logger.warning(
                "Nothing was fetched: the start pages have given items before. If they are lists, too, set "
                'dont_filter=True or meta["bloom_refetch"] = True on their requests.'
            )

    def ended(self) -> None:
        """Add what is safe, now that the feeds are stored, and close the files."""
        self._add_committed()
        if self._waits_for_end:
            if any(name.startswith("feedexport/failed_count/") for name in self._stats.get_stats()):
                logger.warning("A feed could not be stored: the next run fetches again what gave an item in this one")
            else:
                self._add(self._done)
        self._files.close()
