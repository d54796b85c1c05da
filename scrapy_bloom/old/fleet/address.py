"""Which server a crawl's settings mean, and which Redis keys. Connects to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_DEFAULT_URL = "redis://localhost:6379"
_DEFAULT_PORT = 6379
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_DEFAULT_PREFIX = "bloom:%(spider)s"
_SCRAPY_REDIS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}


class Address(NamedTuple):
    """What :func:`scrapy_bloom.old.fleet.client.connect` takes."""

    url: str | None
    """May hold a password. None: :attr:`parameters` name the host."""
    parameters: dict[str, Any]
    """More arguments for redis-py."""


def server_of(url: str | None, settings: BaseSettings) -> Address:
    """Return the server at *url*; if that is None, the one of scrapy-redis' *settings*, or else the local one."""
    if url is not None:
        return Address(url, {})
    parameters = settings.getdict("REDIS_PARAMS")
    for name, parameter in _SCRAPY_REDIS.items():
        if settings.get(name):
            parameters[parameter] = settings.get(name)
    url = parameters.pop("url", None)
    return Address(url, parameters) if url or parameters else Address(_DEFAULT_URL, {})


def is_named(settings: BaseSettings) -> bool:
    """Return whether *settings* name a server, by our names or by scrapy-redis'."""
    return bool(settings.get("BLOOM_REDIS_URL")) or server_of(None, settings) != Address(_DEFAULT_URL, {})


def is_named_by_scrapy_redis(settings: BaseSettings) -> bool:
    """Return whether scrapy-redis' *settings* name a server."""
    return any(settings.get(name) for name in (*_SCRAPY_REDIS, "REDIS_PARAMS"))


def is_same_server(one: Address, other: Address) -> bool:
    """Return whether *one* and *other* name the same server, whatever the database, user and options.

    Two names of one server count as two servers, except for the names of this machine.
    """
    return _host_and_port(one) == _host_and_port(other)


def _host_and_port(address: Address) -> tuple[str, str]:
    if address.url is None:
        found = address.parameters
        path, host, port = found.get("unix_socket_path"), found.get("host"), found.get("port")
    else:
        url = urlsplit(address.url)
        try:
            port = url.port
        except ValueError:  # connecting will say so
            port = None
        path, host = (url.path, None) if url.scheme == "unix" else (None, url.hostname)
    if path:
        return str(path), ""
    host = str(host or "localhost").lower()
    return "localhost" if host in _LOCAL else host, str(port or _DEFAULT_PORT)


def prefix_of(prefix: str | None, settings: BaseSettings, spider: str) -> str:
    """Return *prefix*, scrapy-redis' name for it, or our default, with the name of the *spider* put in."""
    chosen = prefix or settings.get("SCHEDULER_DUPEFILTER_KEY") or _DEFAULT_PREFIX
    return str(chosen % {"spider": spider})
