"""Translates between the requests of a worker's spider and what a fleet's queue holds of them."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from hashlib import sha1
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import FormRequest, Request
from scrapy.utils.request import request_from_dict

from scrapy_bloom.components.requests import Requests, lane_in
from scrapy_bloom.components.serialize import attributes_of, check_values, without_defaults
from scrapy_bloom.fleet.entry import FIELDS, PUSHED, RETRIED, SIGNED, Entries
from scrapy_bloom.fleet.messages import QueueLane
from scrapy_bloom.frontier.order import OF_THE_LAST_TRY
from scrapy_bloom.frontier.page import Pending

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.loops.share import Mark
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

_ACTING_KEYS = ("ftp_", "playwright", "splash", "selenium", "puppeteer", "nodriver", "camoufox", "zyte_api")
"""Keys of ``meta`` begin so if they make a download handler, Scrapy's or a known one, write files or run scripts."""
_ARGUMENTS = {*FIELDS[:-1]}


class FleetRequests(Requests):
    """The requests of *spider*, in this *order*; with *secret*, they are signed, and may need a pickle.

    Entries are not trusted: one that is damaged or odd raises ValueError. Without a signature, a request has an http or
    https URL, and no key in ``meta`` that makes a download handler touch files or run scripts.
    """

    def __init__(self, spider: Spider | None, secret: str | None, order: Order, fingerprints: Fingerprints) -> None:
        super().__init__(order)
        self._spider, self._fingerprints = spider, fingerprints
        self._has_warned = False
        self._entries = Entries(secret)
        self._starts: Counter[bytes] = Counter()

    def begin_start(self) -> None:
        """Count start requests from zero: start() is about to run."""
        self._starts.clear()

    def start_fingerprint(self, request: Request) -> bytes | None:
        """Return a fingerprint for an unfiltered start request, so that the fleet fetches it once; None for others.

        start() is run again after a crash, and in each run. The n-th of several equal requests has the same fingerprint
        in every worker.
        """
        if not request.meta.get("is_start_request"):
            return None
        fingerprint = self._fingerprints.of_request(request)
        self._starts[fingerprint] += 1
        return sha1(b"start %d " % self._starts[fingerprint] + fingerprint, usedforsecurity=False).digest()

    def pending(self, request: Request, fingerprint: bytes | None, mark: Mark | None = None) -> Pending:
        """Return *request*, which is about to be queued, as plain data."""
        try:
            lane, entry = self.write(request)
        except ValueError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.error(  # noqa: TRY400 - the error is part of it
                    "%s cannot be written to the queue without a pickle: %s. It stays in this worker; if that is "
                    "killed or stopped, the page that led to it is fetched again. bloom/fleet/in_memory counts such "
                    "requests. Put plain types into meta and cb_kwargs, and methods of the spider into callback and "
                    "errback; or set BLOOM_FLEET_SECRET to the same long random text in all workers.",
                    request,
                    error,
                )
            return Pending(None, fingerprint, None, request, mark)
        return Pending(lane, fingerprint, entry)

    def write(self, request: Request) -> tuple[QueueLane, bytes]:
        """Return the lane and the entry of *request*. Raises ValueError if it cannot be written to the server."""
        entry, key = self._entry(request), lane_in(self._order, request)
        push = "RPUSH" if self._order.is_lifo[key.is_start] else "LPUSH"
        return QueueLane(key.slot, str(-2 * key.priority + key.is_start), push), entry  # start requests come last

    def _entry(self, request: Request) -> bytes:
        try:
            fields = without_defaults(attributes_of(request, self._spider))
            if not self._entries.are_signed:
                check_address(request)
            entry = self._entries.write(fields)
            if entry[:1] == SIGNED:  # a pickle
                check_values(fields)
        except Exception as error:  # whatever an object of the user's raises
            raise ValueError(str(error)) from None
        return entry

    def read(self, entry: bytes) -> Request:
        """Return the request of *entry*. Raises ValueError if it is not an entry, or one that may not be read."""
        try:
            is_retried = entry[:1] == RETRIED
            fields = self._entries.read(entry[is_retried:])
            for name in OF_THE_LAST_TRY if is_retried else ():
                fields.get("meta", {}).pop(name, None)
            request = self._made(fields)
            if not self._entries.are_signed:
                check_address(request)
        except Exception as error:  # msgpack, requests and callbacks raise many
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return request

    def rewritten(self, fields: dict[str, Any]) -> tuple[QueueLane, bytes]:
        """Return lane and entry of a request with these *fields*, which nobody has signed. Raises any exception."""
        request = self._made(fields)
        check_address(request)
        return self.write(request)

    def _made(self, fields: dict[str, Any]) -> Request:
        _check_class(fields.get("_class"))
        return request_from_dict(fields, spider=self._spider)

    def restored(self, body: bytes) -> tuple[Request, None] | list[tuple[Request, bytes | None]]:
        """Return the request of the entry *body*, without a mark; or those that a pushed start URL leads to."""
        return self.pushed(body[1:]) if body[:1] == PUSHED else (self.read(body), None)

    def pushed(self, data: bytes) -> list[tuple[Request, bytes | None]]:
        """Return the requests that a pushed start URL leads to, with fingerprints.

        A fingerprint of None: that request is not filtered. A spider of scrapy-redis makes the requests itself.
        Otherwise *data* is a URL, or JSON with ``url`` and other arguments of ``Request``; further fields are form
        data, as for scrapy-redis. Raises ValueError if it is neither.
        """
        try:
            if (make := getattr(self._spider, "make_request_from_data", None)) is not None:
                made = make(data)
                requests = [] if made is None else [made] if isinstance(made, Request) else list(made)
            else:
                requests = [_request_of(data)]
        except Exception as error:  # a spider's method raises anything
            raise ValueError(f"{type(error).__name__}: {error}") from None
        fingerprint_of = self._fingerprints.of_request
        return [(request, None if request.dont_filter else fingerprint_of(request)) for request in requests]


def _request_of(pushed: bytes) -> Request:
    text = pushed.decode().strip()
    fields = json.loads(text) if text.startswith("{") else {"url": text}
    form = {name: value for name, value in fields.items() if name not in _ARGUMENTS}
    known = {name: value for name, value in fields.items() if name in _ARGUMENTS}
    arguments: dict[str, Any] = {"dont_filter": True, "method": "GET", **known}
    request = FormRequest(**arguments, formdata=form) if form else Request(**arguments)
    check_address(request)
    return request


def check_address(request: Request) -> None:
    """Raise ValueError if *request* does more than to ask a web server for a page."""
    scheme = urlsplit(request.url).scheme
    if scheme not in ("http", "https"):
        raise ValueError(f"{request.url:.200} is not an http or https URL, and not signed; set BLOOM_FLEET_SECRET")
    for key in request.meta:
        if isinstance(key, str) and key.startswith(_ACTING_KEYS):
            raise ValueError(f"its meta has {key!r}, by which a download handler acts, and is not signed")


def _check_class(path: Any) -> None:
    """Refuse a class of requests that this process has not imported by itself."""
    if path is None:
        return
    module, _, name = str(path).rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if not (isinstance(cls, type) and issubclass(cls, Request)):
        raise TypeError(f"{path!r:.200} is not a class of requests that this worker has imported")
