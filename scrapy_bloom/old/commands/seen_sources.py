"""Reads what another crawl has seen: lists of URLs or of fingerprints, ``requests.seen``, a set of scrapy-redis.

Tells the formats apart and yields fingerprints. Does not know how the fingerprint of a URL is made, nor where the
fingerprints go.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files.scrapy_seen import read_fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

URLS, FINGERPRINTS, REDIS_SET = "URLs", "fingerprints", "Redis set"

SCRAPY_BYTES = 20
"""Length of the fingerprints that Scrapy makes, a SHA1."""

_HEAD = 1 << 16
_LOOKED_AT = 100  # lines
_GZIP = b"\x1f\x8b"
_MEMBERS = 1000  # of a Redis set per round trip
_hexadecimal = re.compile(rb"(?:[0-9a-fA-F]{2}){8,}").fullmatch


@dataclass
class Source:
    """One list, and what was found in it so far."""

    name: str
    """A path, ``-`` for standard input, or ``redis://...#key``."""
    kind: str = ""
    """URLS, FINGERPRINTS or REDIS_SET, once reading has begun."""
    read: int = 0
    """Fingerprints, or URLs, that were read and can be used."""
    unreadable: int = 0
    """Lines that are no URL, fingerprints of another length, or bytes that belong to none."""
    example: str = ""
    """The first of these, with the reason."""

    @property
    def shown(self) -> str:
        """The name without what may be a password."""
        return _without_password(self.name) if "://" in self.name else self.name

    def refuse(self, what: str, count: int = 1) -> None:
        """Count what cannot be used."""
        self.unreadable += count
        self.example = self.example or what


def fingerprints_in(
    source: Source, of_url: Callable[[], Callable[[str], bytes]], length: int | None
) -> Iterator[bytes]:
    """Yield the fingerprints that *source* stands for, and count what cannot be used.

    Args:
        source: Told what is found while it is read.
        of_url: Called if there are URLs; returns what makes the fingerprint of one, and raises ValueError for no URL.
        length: Of a fingerprint, in bytes; None: any.

    Raises:
        UnusableError: It cannot be reached, or nobody can tell what it is.
        OSError: It cannot be read.

    """
    found = _in_redis(source) if "://" in source.name else _in_file(source, of_url)
    for fingerprint in found:
        if length is None or len(fingerprint) == length:
            source.read += 1
            yield fingerprint
        else:
            source.refuse(f"{fingerprint.hex()} has {len(fingerprint)} bytes, a fingerprint of this filter {length}")


def _in_file(source: Source, of_url: Callable[[], Callable[[str], bytes]]) -> Iterator[bytes]:
    with _opened(source.name) as file:
        head = file.read(_HEAD)
        source.kind = _kind(head, source.name)
        if source.kind == URLS:
            yield from _of_urls(source, _lines(head, file), of_url())
        elif head:
            with _on_disk(head, file, source.name) as path:
                yield from read_fingerprints(
                    path, unreadable=lambda count, size: source.refuse(f"{count:,} of {size:,} bytes are torn", count)
                )


def _of_urls(source: Source, lines: Iterator[bytes], of_url: Callable[[str], bytes]) -> Iterator[bytes]:
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            fingerprint = of_url(line.decode())
        except ValueError as error:
            source.refuse(f"line {number} is no URL: {error}")
        else:
            yield fingerprint


def check_readable(names: Iterable[str]) -> None:
    """Raise UnusableError if one of *names* is a file that cannot be read."""
    for name in names:
        if name != "-" and "://" not in name and (Path(name).is_dir() or not os.access(name, os.R_OK)):
            found = "is a directory" if Path(name).is_dir() else "is not there, or cannot be read"
            raise UnusableError(name, found, advice="Nothing was imported.")


@contextmanager
def _opened(name: str) -> Iterator[io.BufferedReader[Any]]:
    """Open the file, or standard input, and undo gzip."""
    with open(0, "rb", closefd=False) if name == "-" else Path(name).open("rb") as raw:
        if raw.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
            yield raw
            return
        try:
            with io.BufferedReader(gzip.GzipFile(fileobj=raw)) as unpacked:
                yield unpacked
        except (EOFError, zlib.error) as error:
            advice = "What could be read is imported. Get the file again, and repeat the command."
            raise UnusableError(name, "cannot be unpacked: it is cut off or damaged", advice=advice) from error


def _lines(head: bytes, rest: io.BufferedReader[Any]) -> Iterator[bytes]:
    whole, newline, torn = head.rpartition(b"\n")  # a pipe may keep us waiting for the end of a line
    yield from io.BytesIO(whole + newline)
    yield torn + rest.readline()
    yield from rest


def _kind(head: bytes, name: str) -> str:
    begins = [line.strip() for line in islice(io.BytesIO(head.removeprefix(b"\xef\xbb\xbf")), _LOOKED_AT)]
    lines = [line for line in begins if line and not line.startswith(b"#")]
    if not head or b"\0" in head[:4] or any(map(_hexadecimal, lines)):
        return FINGERPRINTS
    if any(b"://" in line for line in lines):
        return URLS
    raise UnusableError(
        "Standard input" if name == "-" else name,
        f"begins with {head[:40]!r}",
        expected="URLs or fingerprints in hexadecimal, one a line; or a requests.seen of Scrapy's",
        advice="Nothing was imported from it.",
    )


@contextmanager
def _on_disk(head: bytes, rest: io.BufferedReader[Any], name: str) -> Iterator[Path]:
    """Give the path of a file with what was read and the *rest*: the file itself, unless it was unpacked or piped."""
    if isinstance(rest.raw, io.FileIO) and name != "-" and Path(name).is_file():
        yield Path(name)
        return
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-") as directory:
        path = Path(directory, "requests.seen")
        with path.open("wb") as copy:
            copy.write(head)
            shutil.copyfileobj(rest, copy)
        yield path


def _in_redis(source: Source) -> Iterator[bytes]:
    from scrapy_bloom.old.fleet.client import Command, ServerError, connect

    url, _, key = source.name.partition("#")
    source.name = f"{_without_password(url)}#{key}"
    source.kind = REDIS_SET
    if not key:
        advice = "Name the set behind a #, such as redis://localhost:6379#books:dupefilter."
        raise UnusableError(source.name, "names no Redis key", advice=advice)
    try:
        server = connect(url, {}, given_as="the address")
    except UnusableError as error:
        raise UnusableError(source.name, error.found, advice="Start the server, or correct the address.") from None
    try:
        kind = server.call(Command(("TYPE", key), key))
        if kind != b"set":
            raise UnusableError(
                source.name,
                "is not there" if kind == b"none" else f"is a {kind.decode()}",
                expected="a set, as scrapy-redis keeps at SCHEDULER_DUPEFILTER_KEY",
                advice="Correct the Redis key.",
            )
        cursor: Any = 0
        while True:
            cursor, members = server.call(Command(("SSCAN", key, cursor, "COUNT", _MEMBERS), key))
            for member in members:
                if _hexadecimal(member):
                    yield bytes.fromhex(member.decode())
                else:
                    source.refuse(f"{member!r} is no fingerprint in hexadecimal")
            if not int(cursor):
                return
    except ServerError as error:
        raise UnusableError(source.name, f"cannot be read: {error}", advice="Repeat the command.") from None
    finally:
        server.close()


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
