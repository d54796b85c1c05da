"""A Redis or Valkey server, or a cluster of them: where it is, how it is reached, and how a script is called there."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from scrapy_bloom.errors import MissingPackageError, UnusableError

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:
    raise MissingPackageError("redis", "fleet", "A fleet") from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.settings import BaseSettings

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_KEY = "bloom:%(spider)s"
CONNECT_TIMEOUT = 1.0
"""Seconds to wait for a connection; a host that drops packets costs that much per attempt."""

READ_TIMEOUT = 5.0
"""Seconds to wait for an answer."""

SHARDS_PER_NODE = 8
"""Shards of a queue for each master of a cluster, so that the masters get about equal shares."""

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
# Decide how often a command is sent and how an answer is read, so they are not for the user to set.
_OURS = {
    "protocol": 2,
    "decode_responses": False,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "socket_timeout": READ_TIMEOUT,
}


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


@dataclass(frozen=True)
class Address:
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
            url = address.url and _without_ours(address.url)
            client: Any = redis.Redis.from_url(url, **options) if url else redis.Redis(**options)
            found = client.connection_pool.connection_kwargs
            self._name(found)
            try:
                self.info: Mapping[str, Any] = client.info()
            except exceptions.NoPermissionError:
                client.ping()
                self.info = {}
            self.is_cluster = bool(self.info.get("cluster_enabled"))
            if self.is_cluster:
                client.close()
                options.pop("db", None)
                cluster: Any = redis.RedisCluster
                client = cluster.from_url(url, **options) if url else cluster(**options)
        except (ValueError, TypeError):
            # The reason is not shown: it quotes pieces of the URL, which may be pieces of the password.
            raise UnusableError(
                self.where,
                "cannot be reached: its URL or REDIS_PARAMS cannot be read",
                advice="Write redis://[user:password@]host[:port][/database], with characters like / @ : # in the "
                f"password as {quote('/', safe='')}, {quote('@')}, {quote(':')}, {quote('#')}.",
            ) from None
        except (*AWAY, exceptions.RedisError) as error:
            raise UnusableError(
                self.where,
                f"cannot be used: {error}",
                advice="Start it, or put the right address and password into BLOOM_REDIS_URL.",
            ) from None
        self.client = client

    def _name(self, found: Mapping[str, Any]) -> None:
        self._host = None if "path" in found else str(found.get("host", "localhost"))
        self._has_password = bool(found.get("password") or found.get("ssl_certfile"))
        self.where = str(found["path"]) if "path" in found else f"{self._host}:{found.get('port', 6379)}"
        self.where += f"/{found['db']}" if found.get("db") else ""

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

    def risks(self) -> list[str]:
        """Return a sentence or two for each way in which this server may lose a queue, or let strangers write to it."""
        risks = []
        if self.info.get("aof_enabled") == 0:
            risks.append(
                "appendonly is off: if the server is killed, the pending requests of its last minutes, or all, are "
                "lost. Set appendonly yes in its configuration, or run CONFIG SET appendonly yes."
            )
        policy = str(self.info.get("maxmemory_policy", ""))
        if policy.startswith("allkeys") and self.info.get("maxmemory"):
            risks.append(
                f"maxmemory-policy is {policy}: a full server deletes pending requests. Set maxmemory-policy "
                "noeviction; a full server then makes the crawl wait."
            )
        if not self._has_password and self._host is not None and not _is_loopback(self._host):
            risks.append(
                f"it is reached at {self._host} without a password: whoever else can reach it can make pages disappear "
                "from the crawl. Set requirepass, or let it listen on 127.0.0.1 only."
            )
        return risks

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _without_ours(url: str) -> str:
    """Return *url* without the options that we set ourselves: redis-py would prefer those in the URL."""
    parts = urlsplit(url)
    ours = {*_OURS, "retry", "retry_on_timeout", "retry_on_error"}
    kept = [option for option in parts.query.split("&") if option.partition("=")[0] not in ours]
    return parts._replace(query="&".join(kept)).geturl()


def _is_loopback(host: str) -> bool:
    try:
        found = {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
        return bool(found) and all(ip_address(one.partition("%")[0]).is_loopback for one in found)
    except (OSError, ValueError):  # a name that cannot be resolved any more
        return False
