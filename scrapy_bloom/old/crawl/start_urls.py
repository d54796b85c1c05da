"""Start URLs that others push to a list on the server: from what was pushed to requests. Knows no server.

What may be pushed is what scrapy-redis takes: a URL, or a JSON object with ``url`` and, if need be, ``method`` and
``meta``; its other members become fields of a form. A spider with a method ``make_request_from_data(data)``, as those
of scrapy-redis have, makes the requests itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request

from scrapy_bloom.old.fleet.frontier.entry import GarbledError

if TYPE_CHECKING:
    from scrapy import Spider

MAX_BYTES = 1 << 20
"""Longest that may be pushed at once."""


def requests_of(pushed: bytes, spider: Spider) -> list[Request]:
    """Return the requests of *spider* for what was *pushed*; as those of ``start_urls``, they are not filtered.

    Raises:
        GarbledError: It cannot be made sense of; the message says why.

    """
    if len(pushed) > MAX_BYTES:
        raise GarbledError(f"it has {len(pushed):,} bytes, and {MAX_BYTES:,} is the limit")
    own = getattr(spider, "make_request_from_data", None)
    try:
        made = _request_of(pushed) if own is None else own(pushed)
        requests = [made] if isinstance(made, Request) else list(made or [])
    except GarbledError:
        raise
    except Exception as error:  # whatever a method of the spider raises, or a request of its arguments
        raise GarbledError(f"it makes no request ({type(error).__name__}: {error})") from None
    if not requests or not all(isinstance(request, Request) for request in requests):
        raise GarbledError("it makes no request")
    return requests


def _request_of(pushed: bytes) -> Request:
    text = pushed.decode().strip()
    if not text.startswith("{"):
        return Request(text, dont_filter=True)
    fields: dict[str, Any] = json.loads(text)
    url, method, meta = fields.pop("url", None), fields.pop("method", "GET"), fields.pop("meta", None) or {}
    if not isinstance(url, str) or not isinstance(method, str) or not isinstance(meta, dict):
        raise GarbledError("it has no url, or a method or meta of the wrong type")
    if fields:
        form = {name: str(value) for name, value in fields.items()}
        return FormRequest(url, method=method.upper(), meta=meta, formdata=form, dont_filter=True)
    return Request(url, method=method.upper(), meta=meta, dont_filter=True)
