"""Feed exports of many workers: which files they can share without losing or tearing a line.

Workers share a local file of JSON lines: each item is one appending write, which the kernel does not mix with other
writes, and which outlives the process. A JSON array, XML, CSV with its header, or a file that is
uploaded at the end belongs to one worker: its name must say which. Knows no process.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.misc import load_object

from scrapy_bloom.old.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapy import Spider
    from scrapy.settings import BaseSettings

WORKER = "%(worker)s"
"""Placeholder for the worker's name in a file name."""


class SharedFileStorage(FileFeedStorage):
    """A local file that processes append to, without a buffer in any of them."""

    def open(self, spider: Spider) -> IO[bytes]:  # noqa: ARG002 - Scrapy's argument
        """Open it for appending."""
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)


def check_feeds(settings: BaseSettings) -> None:
    """Check that several workers can write the feeds of *settings*.

    Raises:
        SettingsError: Some would overwrite or garble each other's; names all of them.

    """
    problems = [
        f"several workers cannot write {uri} together. Use JSON lines in a local file, which they share (items.jl); or "
        f"give each a file of its own: put {WORKER} into the name, as in items-{WORKER}.csv"
        for uri, options in _feeds(settings).items()
        if WORKER not in uri and not _is_shared(settings, uri, options)
    ]
    if problems:
        raise SettingsError(problems)


def remove_overwritten(settings: BaseSettings, spider: str, workers: Iterable[str]) -> None:
    """Remove the local files that are to be overwritten: the workers, and those that replace them, only append."""
    for uri, options in _feeds(settings).items():
        if options.get("overwrite") and _is_scrapys_file(settings, _scheme(uri)):
            for worker in workers:
                name = uri.replace(WORKER, worker).replace("%(name)s", spider)
                Path(FileFeedStorage(name).path).unlink(missing_ok=True)


def share_feeds(settings: BaseSettings, worker: str) -> None:
    """Change the feeds of *settings*, those of the process *worker*, so that all workers can write theirs."""
    feeds = {
        uri.replace(WORKER, worker): {**options, "overwrite": False}
        if _is_scrapys_file(settings, _scheme(uri))
        else options
        for uri, options in _feeds(settings).items()
    }
    if feeds:
        storages = {scheme: SharedFileStorage for scheme in ("", "file") if _is_scrapys_file(settings, scheme)}
        settings.set("FEEDS", feeds, "cmdline")
        settings.set("FEED_STORAGES", {**settings.getdict("FEED_STORAGES"), **storages}, "cmdline")


def _feeds(settings: BaseSettings) -> Mapping[str, dict[str, Any]]:
    return {str(uri): dict(options) for uri, options in settings.getdict("FEEDS").items()}


def _is_shared(settings: BaseSettings, uri: str, options: Mapping[str, Any]) -> bool:
    exporter = settings.getwithbase("FEED_EXPORTERS").get(options.get("format", ""))
    is_lines = exporter is not None and issubclass(load_object(exporter), JsonLinesItemExporter)
    return is_lines and not options.get("postprocessing") and _is_scrapys_file(settings, _scheme(uri))


def _scheme(uri: str) -> str:
    return "" if Path(uri).is_absolute() else urlsplit(uri).scheme


def _is_scrapys_file(settings: BaseSettings, scheme: str) -> bool:
    storage = settings.getwithbase("FEED_STORAGES").get(scheme)
    return storage is not None and load_object(storage) is FileFeedStorage
