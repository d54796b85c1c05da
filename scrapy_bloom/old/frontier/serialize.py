"""Turns a request into bytes and back: a pickle of ``Request.to_dict()``, as in Scrapy's disk queues.

Leaves out attributes of a plain request that have their default value, which halves the size; Scrapy's own reader fills
them in. Does not know where the bytes go.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import request_from_dict

if TYPE_CHECKING:
    from scrapy import Spider

PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: every supported Python reads it, whichever wrote it."""

_DEFAULTS = {name: value for name, value in Request("data:,").to_dict().items() if name != "url"}


class Serializer:
    """Serializes the requests of one spider, whose methods are their callbacks."""

    def __init__(self, spider: Spider) -> None:
        self._spider = spider

    def dumps(self, request: Request) -> bytes:
        """Return *request* as bytes; ValueError if it cannot be serialized."""
        try:
            attributes = request.to_dict(spider=self._spider)
            if "_class" not in attributes:  # another class may have other defaults
                attributes = {
                    name: value
                    for name, value in attributes.items()
                    if name not in _DEFAULTS or value != _DEFAULTS[name] or type(value) is not type(_DEFAULTS[name])
                }
            return pickle.dumps(attributes, protocol=PICKLE_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error

    def loads(self, body: bytes) -> Request:
        """Return the request in *body*. May raise anything: unpickling runs other people's code."""
        # The job directory is as trusted as with Scrapy's own queues, which are pickles too.
        attributes: dict[str, Any] = pickle.loads(body)  # noqa: S301
        return request_from_dict(attributes, spider=self._spider)
