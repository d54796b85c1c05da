"""Prints whether a job has seen URLs, whether their requests are pending, and which limit would hold them back."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.info import pending_requests
from scrapy_bloom.commands.targets import fingerprints_in, of_url_in, settings_of
from scrapy_bloom.commands.terminal import OK, WRONG, show, tracked, write
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.directory import reading
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.loops.limits import objection_by
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.url.canonical import canonicalize_url
from scrapy_bloom.url.rules import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from scrapy.settings import Settings

    from scrapy_bloom.job.inspect import JobInfo

_URLS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s<>\"']+", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    parser.add_argument("directory", metavar="JOBDIR")
    parser.add_argument("urls", metavar="URL", nargs="*")
    parser.add_argument("--file", metavar="FILE", help="check every URL in this list or log, too; - for standard input")


def run(options: argparse.Namespace) -> int:
    """Print a row for each URL."""
    if not options.urls and not options.file:
        raise UnusableError("check", "was given no URL", advice="Name URLs after the JOBDIR, or a list with --file.")
    urls = [*options.urls, *(_urls_in(options.file) if options.file else ())]
    rows = check(options.directory, urls, settings_of(options))
    if options.json:
        show({"urls": rows}, options)
    else:
        write(_lines(rows))
    return OK if all(row["seen"] for row in rows) else WRONG


def _urls_in(name: str) -> list[str]:
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8", errors="replace")
    return _URLS.findall(text)


def check(directory: str, urls: Iterable[str], settings: Settings) -> list[dict[str, Any]]:
    """Return for each of *urls* whether the job in *directory* has seen its plain GET request, and more, as a row.

    Raises UnusableError if there is no job, its fingerprints are another project's, or one of *urls* is not a URL.
    """
    job = inspect_job(directory)
    space = job.state.key_space
    fingerprints = fingerprints_in(space, job.directory, urls, settings)
    bloom = BloomSettings.from_settings(settings)
    objection = objection_by(bloom.loop_guard) if bloom.loop_guard else lambda _: None
    waiting = set(fingerprints.values()).intersection(_waiting(job, of_url_in(space, directory, settings)))
    with reading(job.filter.directory, bloom.max_age) as chain:
        seen = waiting.union(filter(chain.contains, fingerprints.values()))
    rules = resolve(space["rules"] if space else "")
    first: dict[bytes, str] = {}
    rows = []
    for url, fingerprint in fingerprints.items():
        same_as = first.setdefault(fingerprint, url)
        limit = objection(url)
        rows.append(
            {
                "url": url,
                "canonical": rules.apply(canonicalize_url(url)),
                "fingerprint": fingerprint.hex(),
                "same_page_as": None if same_as == url else same_as,
                "seen": fingerprint in seen,
                "pending": fingerprint in waiting,
                "limit": None if limit is None else f"{limit.limit}: {limit.reason}",
            }
        )
    return rows


def _waiting(job: JobInfo, fingerprint_of: Callable[[str], bytes]) -> Iterator[bytes]:
    """Yield the fingerprints of the plain GET requests that are pending."""
    for request in tracked(pending_requests(job), "Reading the pending requests", total=job.state.pending):
        if request.get("method", "GET") == "GET" and not request.get("body"):
            yield fingerprint_of(request["url"])


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        pending = "  pending" if row["pending"] else ""
        same = f"  the same page as {row['same_page_as']}" if row["same_page_as"] else ""
        yield f"{'seen' if row['seen'] else 'new ':<5} {row['canonical']}{pending}{same}"
        if row["limit"]:
            yield f"      held back by the limit {row['limit']}"
