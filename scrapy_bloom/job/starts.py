"""Counts the start URLs that a job has taken in, so that a resumed run goes on after them.

This works for spiders that use Scrapy's own ``Spider.start()`` over ``start_urls``. All other start requests are made
again in each run.
"""

from __future__ import annotations

import json
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE = "start_urls"


class StartUrls:
    """The start URLs of one run.

    Args:
        spider: Its list is read when the first start request comes.
        noted: What the last commit of an unfinished job noted; None: the list is begun.

    """

    def __init__(self, spider: Spider | None, noted: bytes | None) -> None:
        self._spider, self._noted = spider, noted
        self._urls: Sequence[str] | None = None
        self._digest = ""
        self._next = 0  # place in the list of the next start request
        self._taken_in = 0  # how many an earlier run has taken in, or this one
        self._is_counting = True
        self._is_of_list = False  # whether the last request was of the list
        self._written = noted

    def skips(self, request: Request) -> bool:
        """Return whether an earlier run has taken in *request*, an unfiltered request of ``start()``."""
        if self._urls is None:
            self._read()
        assert self._urls is not None  # noqa: S101 - has been read
        # Only the next of the list counts: a middleware may have put in others, dropped some, or shuffled them.
        if self._next == len(self._urls) or Request(self._urls[self._next]).url != request.url:
            self._is_of_list = False
            return False
        self._is_of_list = True
        self._next += 1
        return self._next <= self._taken_in

    def pushed(self, *, is_durable: bool) -> None:
        """Note that the last request was pushed; unless it *is_durable*, the next run asks for it and later ones."""
        if not self._is_of_list:
            return
        self._is_counting &= is_durable
        if self._is_counting:
            self._taken_in = max(self._taken_in, self._next)

    def changed(self) -> dict[str, bytes]:
        """Return the note that a commit is to hold, if it has changed since the last."""
        if not self._next:
            return {}
        note = json.dumps([self._taken_in, self._digest]).encode()
        if note == self._written:
            return {}
        self._written = note
        return {NOTE: note}

    def _read(self) -> None:
        self._urls = _list_of(self._spider)
        self._digest = sha1("\n".join(self._urls).encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
        if self._noted is not None:
            taken_in, digest = json.loads(self._noted)
            self._taken_in = taken_in if digest == self._digest else 0


def _list_of(spider: Spider | None) -> Sequence[str]:
    """Return the start URLs of *spider*; none if it, or a subclass of Spider, has a ``start()`` of its own."""
    for name in ("start", "start_requests"):  # the second until Scrapy 2.18
        method: Any = getattr(spider, name, None)
        if getattr(method, "__func__", None) is not getattr(Spider, name, None):
            return []
    urls = getattr(spider, "start_urls", ())
    return list(urls) if isinstance(urls, (list, tuple)) and all(isinstance(url, str) for url in urls) else []
