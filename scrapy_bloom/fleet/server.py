"""A Redis or Valkey server, or a cluster of them: where it is, how it is reached, and how a script is called there."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.settings import BaseSettings

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_KEY = "bloom:%(spider)s"
CONNECT_TIMEOUT, READ_TIMEOUT = 1.0, 5.0  # seconds; a host that drops packets costs the first at each attempt
SHARDS_PER_NODE = 8  # of a queue, for each master of a cluster, so that the masters get about equal shares
AWAY = (
    exceptions.ConnectionError,  # refused, broken, loading its data, or the password is not accepted
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.RedisClusterException,
    exceptions.ReadOnlyError,
    OSError,
)
"""A server that cannot be reached, does not answer in time, or is not ready. A command may have been carried out."""

_SCRAPY_REDIS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}
_TIMES = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_timeout": READ_TIMEOUT}
# They decide how an answer is read, so they are not for REDIS_PARAMS to set.
_OURS = {"protocol": 2, "decode_responses": False, **_TIMES}
_NO_ROOM = ("OOM", "MISCONF", "NOREPLICAS", "command not allowed when used memory")


def is_full(error: Exception) -> bool:
    """Return whether the server answered, but takes no data: no memory or disk is left, or too few replicas."""
    return isinstance(error, exceptions.ResponseError) and any(reason in str(error) for reason in _NO_ROOM)


class Script:
    """A Lua script, made of one or more files of this package. Sent once, then called by its SHA1."""

    def __init__(self, *names: str) -> None:
        here = files(__package__)
        self.text = "\n".join((here / f"{name}.lua").read_text(encoding="utf-8") for name in names)
        # A name, not a seal: servers know scripts by their SHA1.
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Address(NamedTuple):
    """Where a server is. May hold a password."""

    url: str | None
    options: Mapping[str, Any]

    @classmethod
    def of(cls, url: str | None, settings: BaseSettings) -> Address:
        """Return the server at *url*; if that is None, the one of scrapy-redis' *settings*, or else the local one."""
        if url:
            return cls(url, {})
        options = dict(settings.getdict("REDIS_PARAMS"))
        options |= {option: settings.get(name) for name, option in _SCRAPY_REDIS.items() if settings.get(name)}
        url = options.pop("url", None)
        return cls(url or (None if options else DEFAULT_URL), options)


def key_of(key: str | None, spider: str) -> str:
    """Return the prefix of the Redis keys of *spider*, ``BLOOM_REDIS_KEY`` being *key*."""
    return (key or DEFAULT_KEY) % {"spider": spider, "name": spider}


class Server:
    """A connection. Use it in one thread at a time.

    Raises:
        UnusableError: The server cannot be reached, or refuses.

    """

    def __init__(self, address: Address) -> None:
        options = {**address.options, **_OURS, "retry": Retry(NoBackoff(), 0)}
        self.where = "The server of the settings"
        """Host, port and database, for messages."""
        try:
            client: Any = redis.Redis.from_url(address.url, **options) if address.url else redis.Redis(**options)
            self.where = _name_of(client.connection_pool.connection_kwargs)
            self.info: Mapping[str, Any] = client.info()
            self.is_cluster = bool(self.info.get("cluster_enabled"))
            if self.is_cluster:
                client.close()
                options.pop("db", None)
                cluster: Any = redis.RedisCluster
                client = cluster.from_url(address.url, **options) if address.url else cluster(**options)
        except (ValueError, TypeError):
            # The reason is not shown: it quotes pieces of the URL, which may be pieces of the password.
            advice = (
                "Write redis://[user:password@]host[:port][/database], with / @ : # in the password as %2F %40 %3A %23."
            )
            raise UnusableError(self.where, "has a URL or REDIS_PARAMS that cannot be read", advice=advice) from None
        except (*AWAY, exceptions.RedisError) as error:
            advice = "Start it, or put the right address and password into BLOOM_REDIS_URL."
            raise UnusableError(self.where, f"cannot be used: {error}", advice=advice) from None
        self.client = client

    def shards_for_new(self) -> int:
        """Return into how many shards a queue is split that begins here: more than one on a cluster only."""
        return SHARDS_PER_NODE * len(self.client.get_primaries()) if self.is_cluster else 1

    def call(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """Call *script*, once: it is sent again only if the server did not know it, and so has not carried it out.

        Raises:
            redis.RedisError: It failed; with one of :data:`AWAY` it may have been carried out.

        """
        try:
            return self.client.execute_command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except exceptions.NoScriptError:
            return self.client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

    def may_lose(self) -> bool:
        """Return whether this server may lose a queue when it is killed or full."""
        return self.info.get("aof_enabled") == 0 or str(self.info.get("maxmemory_policy")).startswith("allkeys")

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _name_of(found: Mapping[str, Any]) -> str:
    place = found.get("path") or f"{found.get('host', 'localhost')}:{found.get('port', 6379)}"
    return f"{place}/{found['db']}" if found.get("db") else str(place)
