"""Reads URLs from lists and sitemaps of any length, in constant memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.error import URLError
from urllib.request import urlopen
from xml.etree.ElementTree import ParseError, iterparse

from scrapy_bloom.commands.terminal import tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Location = tuple[str, str]
    """A URL, and the place where it stands."""

_T = TypeVar("_T")

_PATIENCE_SECONDS = 60.0
_MOST_FINDINGS = 30
_MOST_DEEP = 5
"""Sitemap indexes below each other. The protocol allows one."""


def check_readable(sources: Iterable[str]) -> None:
    """Raise OSError unless all *sources* can be read, so that a command begins nothing that it cannot finish."""
    for source in sources:
        if source != "-":
            Path(source).open("rb").close()


def made_of_urls(source: str, make: Callable[[str], _T], findings: list[str]) -> Iterator[_T]:
    """Call *make* with each URL in *source*, and yield the results. A ValueError becomes a finding: it is not a URL."""
    for url, place in _locations_in(source, findings):
        try:
            made = make(url)
        except ValueError as error:
            _add_finding(findings, f"{place}: {error}")
        else:
            yield made


def _add_finding(findings: list[str], finding: str) -> None:
    """Add *finding* to *findings*, which keep the first 30: a long list without URLs would fill the memory."""
    findings[_MOST_FINDINGS:] = [finding if len(findings) < _MOST_FINDINGS else "and more"]


def _locations_in(source: str, findings: list[str], depth: int = 0) -> Iterator[Location]:
    """Yield the URLs in *source* with their places; add a finding for each part that cannot be read.

    *source* is a file, ``-`` for standard input, or the web address of a sitemap that an index names. It holds URLs,
    one a line, or a sitemap, also gzipped. A sitemap that an index names is read from the directory of the index if a
    file of that name is there, and from its URL otherwise. Raises OSError if *source* itself cannot be opened.
    """
    try:
        with _opened(source) as file:
            if file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
                for name, url in tracked(_sitemap(file), f"Reading {source}"):
                    if name == "url":
                        yield url, source
                    elif depth < _MOST_DEEP:
                        yield from _sitemap_of_index(url, source, findings, depth + 1)
            else:
                for number, line in enumerate(tracked(file, f"Reading {source}"), start=1):
                    url = line.decode("utf-8-sig", "replace").strip()
                    if url and not url.startswith("#"):
                        yield url, f"{source}, line {number}"
    except (EOFError, ParseError, ValueError, LookupError, gzip.BadGzipFile, zlib.error) as error:  # of encodings, too
        _add_finding(findings, f"{source}: {error}; what comes after that was not read")


def _sitemap_of_index(url: str, index: str, findings: list[str], depth: int) -> Iterator[Location]:
    beside = Path(index).parent / url.rpartition("/")[2]
    here = index != "-" and "://" not in index and beside.is_file()
    if not here and not url.startswith(("http://", "https://")):
        _add_finding(findings, f"{index}: it names {url}, which is neither a web address nor a file beside it")
        return
    try:
        yield from _locations_in(str(beside) if here else url, findings, depth)
    except (URLError, HTTPException, OSError, ValueError) as error:
        _add_finding(findings, f"{index}: {url} cannot be read: {error}")


@contextmanager
def _opened(source: str) -> Iterator[io.BufferedReader]:
    """Open *source*, and unzip it if need be."""
    with ExitStack() as stack:
        raw: Any
        if source == "-":
            raw = sys.stdin.buffer
        elif "://" in source:
            raw = stack.enter_context(urlopen(source, timeout=_PATIENCE_SECONDS))  # noqa: S310 - http or https
        else:
            raw = stack.enter_context(Path(source).open("rb"))
        file: Any = io.BufferedReader(raw)
        if file.peek(2).startswith(b"\x1f\x8b"):
            file = gzip.GzipFile(fileobj=file)
        yield file


def _sitemap(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the name of each entry of the sitemap in *file*, ``url`` or ``sitemap``, and its location."""
    events = iterparse(file, ("start", "end"))  # noqa: S314 - expat limits what entities expand to, and reads no other file
    _, root = next(events)
    for event, entry in events:
        namespace, brace, name = entry.tag.rpartition("}")
        if event == "end" and name in {"url", "sitemap"}:
            if url := (entry.findtext(f"{namespace}{brace}loc") or "").strip():
                yield name, url
            root.clear()  # what was read stays in the tree otherwise
