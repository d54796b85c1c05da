"""Says whether a job has seen a URL, whether its request is pending, and what would hold it back.

Only reads, also while the crawl runs. Does not know how a fingerprint is made.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.fingerprinting import of_url_under, rules_in, settings_of
from scrapy_bloom.old.commands.job import filter_directory
from scrapy_bloom.old.commands.terminal import OK, WRONG, show
from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files.frontier_check import pending_urls, plain_urls
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.layout import FILTER_NAME
from scrapy_bloom.old.files.lookup import layers_of
from scrapy_bloom.old.files.sqlite_copy import reading
from scrapy_bloom.old.loops.limits import objection_by
from scrapy_bloom.old.loops.opinion import objections_in
from scrapy_bloom.old.loops.options import LoopOptions
from scrapy_bloom.old.loops.parked import TAKEN_BACK, guard_file
from scrapy_bloom.old.settings import BloomSettings
from scrapy_bloom.old.url.canonical import canonicalize_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from scrapy.settings import Settings

_NOT_KNOWN = "not known: the file of the guard is in use, and too large to copy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR")
    parser.add_argument("urls", metavar="URL", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Print what is known of each URL."""
    found = check(options.directory, options.urls, lambda: settings_of(options))
    show(found, options, _lines)
    return OK if all(each["seen"] for each in found) else WRONG


def check(directory: str, urls: Sequence[str], settings: Callable[[], Settings]) -> list[dict[str, Any]]:
    """Return what the job in *directory* knows of the plain GET request of each of *urls*.

    Raises:
        UnusableError: There is no filter, its fingerprints were made by another project, or a URL is none.
        SettingsError: The rules of the filter or the options of the loop guard cannot be used.

    """
    path = filter_directory(directory)
    key_space = inspect(path).key_space
    rules = rules_in(key_space)
    fingerprint_of = of_url_under(key_space, path, settings)
    fingerprints = []
    for url in urls:
        try:
            fingerprints.append(fingerprint_of(url))
        except ValueError as error:
            advice = "Give whole URLs, such as https://example.com/."
            raise UnusableError(repr(url), f"is no URL: {error}", advice=advice) from None
    jobdir = path.parent if path.name == FILTER_NAME else None
    waiting = None if jobdir is None else _waiting(jobdir, fingerprint_of, set(fingerprints))
    limit, guard = _objections(jobdir, settings)
    parked = None if jobdir is None else _parked(jobdir, fingerprint_of, set(fingerprints))
    return [
        {
            "url": url,
            "canonical": rules.apply_to_canonical(canonicalize_url(url)),
            "fingerprint": fingerprint.hex(),
            "seen": layer is not None,
            "layer": layer,
            "pending": None if waiting is None else fingerprint in waiting,
            "limit": limit(url),
            "guard": guard(url),
            "parked": None if parked is None else fingerprint in parked,
        }
        for url, fingerprint, layer in zip(urls, fingerprints, layers_of(path, fingerprints), strict=True)
    ]


def _waiting(jobdir: Path, fingerprint_of: Callable[[str], bytes], wanted: set[bytes]) -> set[bytes] | None:
    """Return which of the *wanted* fingerprints belong to requests pending in *jobdir*; None if that is not known."""
    return _found(jobdir / FRONTIER_NAME, pending_urls, fingerprint_of, wanted)


def _parked(jobdir: Path, fingerprint_of: Callable[[str], bytes], wanted: set[bytes]) -> set[bytes] | None:
    """Return the same of requests that the loop guard has parked, and that nobody has put back."""

    def urls(connection: sqlite3.Connection) -> Iterator[str]:
        query = "SELECT body FROM parked WHERE released = 0 AND account <> ?"
        return plain_urls(connection.execute(query, (TAKEN_BACK,)))

    return _found(guard_file(jobdir), urls, fingerprint_of, wanted)


def _found(
    path: Path,
    urls: Callable[[sqlite3.Connection], Iterator[str]],
    fingerprint_of: Callable[[str], bytes],
    wanted: set[bytes],
) -> set[bytes] | None:
    if not path.exists():
        return set()
    found = set()
    try:
        with reading(path) as connection:
            if connection is None:
                return None
            for url in urls(connection):
                try:
                    fingerprint = fingerprint_of(url)
                except ValueError:
                    continue
                if fingerprint in wanted:
                    found.add(fingerprint)
    except (sqlite3.Error, OSError):  # `verify` says what is wrong
        return None
    return found


def _objections(
    jobdir: Path | None, settings: Callable[[], Settings]
) -> tuple[Callable[[str], str | None], Callable[[str], str | None]]:
    """Return a function that says why a limit or the loop guard would hold a URL back; without a guard nothing does."""
    path = None if jobdir is None else guard_file(jobdir)
    has_guard = path is not None and path.exists()
    options = BloomSettings.from_settings(settings()).loop_guard or (LoopOptions() if has_guard else None)
    if options is None:
        return (lambda _: None), (lambda _: None)
    of_limits = objection_by(options)
    is_allowed = _allowed(options)

    def limit(url: str) -> str | None:
        found = of_limits(url)
        return None if found is None else f"{found.limit}: {found.reason}"

    if path is None or not has_guard:
        return limit, lambda _: None
    with reading(path) as connection:
        if connection is None:
            return limit, lambda _: _NOT_KNOWN
        of_guard = objections_in(path, connection)
    return limit, lambda url: None if is_allowed(url) else of_guard(url)


def _allowed(options: LoopOptions) -> Callable[[str], bool]:
    patterns = [re.compile(pattern).search for pattern in options.allow]
    return lambda url: any(search(url) for search in patterns)


def _lines(found: list[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        yield (
            f"{'seen' if each['seen'] else 'new ':<5} {each['canonical']}"
            + (f"  (layer {each['layer']})" if each["seen"] else "")
            + ("  pending" if each["pending"] else "")
        )
        if each["limit"]:
            yield f"      held back by the limit {each['limit']}"
        if each["guard"] == _NOT_KNOWN:
            yield f"      parked by the loop guard or not: {_NOT_KNOWN}"
        elif each["parked"]:
            yield "      parked by the loop guard" + (f": {each['guard']}" if each["guard"] else "")
        elif each["guard"]:
            yield f"      would be parked by the loop guard: {each['guard']}"
