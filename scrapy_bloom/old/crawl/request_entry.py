"""Turns Scrapy's requests into entries of a queue that others can write to, and back, running nobody's code.

Knows the spider, whose methods the callbacks are. Does not know where the entries are kept.

An entry may name a class of requests that this process has already imported, and methods of the spider. Nothing is
imported because an entry says so. A pickle is loaded only if it is signed with the secret of the workers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scrapy import Request

from scrapy_bloom.old.fleet.frontier.entry import (
    GarbledError,
    NotPlainError,
    decode,
    decode_signed,
    encode,
    encode_signed,
)

if TYPE_CHECKING:
    from scrapy import Spider

_DEFAULTS: dict[str, Any] = {
    "callback": None,
    "errback": None,
    "headers": {},
    "body": b"",
    "cookies": {},
    "meta": {},
    "encoding": "utf-8",
    "flags": [],
    "cb_kwargs": {},
    "dont_filter": False,
    "method": "GET",
    "priority": 0,
}


class RequestEntries:
    """Writes and reads the requests of one spider.

    Args:
        spider: The callbacks are its methods.
        secret: Signs the pickle of a request that needs one; without a secret, such a request is refused.

    """

    def __init__(self, spider: Spider, secret: str | None = None) -> None:
        self._spider = spider
        self._secret = None if secret is None else secret.encode()

    def write(self, request: Request) -> bytes:
        """Return the entry of *request*.

        Raises:
            NotPlainError: It holds something that is not a plain type, and there is no secret; or a callback that is
                no method of the spider.

        """
        try:
            fields = request.to_dict(spider=self._spider)
        except (ValueError, AttributeError, TypeError) as error:
            raise NotPlainError(str(error)) from None
        short = {name: value for name, value in fields.items() if name == "url" or value != _DEFAULTS.get(name, _OTHER)}
        try:
            return encode(short)
        except NotPlainError:
            if self._secret is None:
                raise
            return encode_signed(short, self._secret)

    def read(self, entry: bytes) -> Request:
        """Return the request of *entry*.

        Raises:
            GarbledError: It is no request, or one that may not be read here; the message says why.

        """
        return self.of_fields(decode(entry) if self._secret is None else decode_signed(entry, self._secret))

    def of_fields(self, fields: Any) -> Request:
        """Return the request that ``Request.to_dict()`` made *fields* of.

        Raises:
            GarbledError: They make none, or none that may be read here.

        """
        if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
            raise GarbledError("it has no URL")
        cls = _known_class(fields.pop("_class", None))
        kwargs = {name: value for name, value in fields.items() if name in cls.attributes}
        for name in ("callback", "errback"):
            if kwargs.get(name) is not None:
                kwargs[name] = self._method(kwargs[name])
        for name, default in _DEFAULTS.items():
            if name in kwargs and default is not None and not isinstance(kwargs[name], _allowed(name, default)):
                raise GarbledError(f"its {name} is of type {type(kwargs[name]).__name__}")
        try:
            return cls(**kwargs)
        except Exception as error:  # whatever the class makes of what it is given
            raise GarbledError(f"it makes no request ({type(error).__name__}: {error})") from None

    def _method(self, name: Any) -> Any:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
            raise GarbledError(f"it names {name!r} as a callback")
        method = getattr(self._spider, name, None)
        if getattr(method, "__self__", None) is not self._spider:
            raise GarbledError(f"it names the callback {name}(), which is no method of this spider")
        return method


_OTHER = object()


def _allowed(name: str, default: Any) -> tuple[type, ...]:
    return (dict, list) if name == "cookies" else (bytes, str) if name == "body" else (type(default),)


def _known_class(name: Any) -> type[Request]:
    if name is None:
        return Request
    module, _, attribute = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    cls = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    if not (isinstance(cls, type) and issubclass(cls, Request)):
        raise GarbledError(f"it names the class {name!r}, which is no class of requests that is imported here")
    return cls
