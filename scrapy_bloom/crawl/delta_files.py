"""The files of delta crawls: the keys of the pages that gave an item, of all runs of a spider on this machine.

Each of ``DIRECTORY/SPIDER/0``, ``1``, ... is a filter: a process locks the first that is free, adds to that, and reads
all, so the workers of one machine share them. ``crawl-0`` is a filter of what the last crawl has added to ``0``, and
``crawl-0.id`` names that crawl, which other processes may take part in and later ones may resume.
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
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.filter.inspect import reading
from scrapy_bloom.filter.lock import is_locked

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

_is_hex_sha1 = re.compile(rb"[0-9a-f]{40}").fullmatch


_TAKEN_OVER = "deltafetch-taken-over"
"""Name of an empty file: the keys of scrapy-deltafetch are taken over, and are not once more."""


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

    Raises:
        BloomError: The files cannot be used.

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
