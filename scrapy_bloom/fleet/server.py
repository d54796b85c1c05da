"""A Redis or Valkey server, or a cluster of them: where it is, how it is reached, and how a script is called there."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

logger = logging.getLogger(__name__)

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_KEY = "bloom:%(spider)s"
AWAY = (
    exceptions.ConnectionError,  # refused, broken, loading its data, or the password is not accepted
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    OSError,
)
"""A server that cannot be reached, or does not answer in time. A command may have been carried out."""
FAILURES = (exceptions.RedisError, *AWAY)


class ServerAwayError(UnusableError):
    """A server does not answer, or is not ready. It may be there again soon."""


# REDIS_PARAMS cannot change these options: how an answer is read, how long we wait for a connection and for an answer,
# and that nothing is sent twice without our knowledge. A host that drops packets costs the first wait at each attempt.
_OURS = {
    "protocol": 2,
    "decode_responses": False,
    "socket_connect_timeout": 1.0,
    "socket_timeout": 5.0,
    "retry": Retry(NoBackoff(), 0),
}
_NO_ROOM = ("OOM", "MISCONF", "NOREPLICAS", "command not allowed when used memory")
_NOT_READY = (
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    exceptions.BusyLoadingError,
)
# Looked for anywhere: Redis 6.2 puts the error of a command that a script calls into a text of its own.
_NOT_READY_TEXTS = ("BUSY ", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "non local key")


def excuse_in(error: Exception) -> str:
    """Return what keeps a server from its work, to be read after its name; raise *error* if it is another fault."""
    if isinstance(error, exceptions.ResponseError) and any(reason in str(error) for reason in _NO_ROOM):
        return "is full: no memory or disk is left, or too few replicas"
    is_told = isinstance(error, exceptions.ResponseError) and any(text in str(error) for text in _NOT_READY_TEXTS)
    if is_told or isinstance(error, _NOT_READY):
        return "is not ready: it runs another script, follows another server, or is being moved"
    if isinstance(error, AWAY):
        return "does not answer"
    raise error


@contextmanager
def usable(what: str, advice: str) -> Iterator[None]:
    """Raise UnusableError with *advice* if a server fails inside, ServerAwayError if it may be there soon."""
    try:
        yield
    except FAILURES as error:
        cls = UnusableError
        if not isinstance(error, exceptions.AuthenticationError):
            with suppress(*FAILURES):  # the fault is the caller's
                excuse_in(error)
                cls = ServerAwayError
        raise cls(what, f"cannot be used: {error}", advice=advice) from None


def key_of(key: str | None, spider: str) -> str:
    """Return the prefix of the Redis keys of *spider*, ``BLOOM_REDIS_KEY`` being *key*."""
    return (key or DEFAULT_KEY) % {"spider": spider, "name": spider}


class Server:
    """A connection to the server at *url*, or the one that *options* of redis-py name. Use it in one thread at a time.

    Raises UnusableError if the server cannot be reached, or refuses.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        options |= _OURS
        self.where = "The server of the settings"
        """Host, port and database, for messages."""
        self.info: Mapping[str, Any] = {}
        """What INFO says; nothing if the user may not ask."""
        try:
            client: Any = _client(redis.Redis, url, options)
            self.where = _name_of(client.connection_pool.connection_kwargs)
            with usable(self.where, "Start it, or put the right address and password into BLOOM_REDIS_URL."):
                with suppress(exceptions.NoPermissionError):  # INFO is a dangerous command, as Redis calls it
                    self.info = client.info()
                self.is_cluster = bool(self.info.get("cluster_enabled"))
                if self.is_cluster:
                    client.close()
                    options.pop("db", None)
                    client = _client(redis.RedisCluster, url, options)
        except (ValueError, TypeError):
            # The reason is not shown: it quotes pieces of the URL, which may be pieces of the password.
            advice = (
                "Write redis://[user:password@]host[:port][/database], with / @ : # in the password as %2F %40 %3A %23."
            )
            raise UnusableError(self.where, "has a URL or REDIS_PARAMS that cannot be read", advice=advice) from None
        self.client = client

    def warn_if_it_forgets(self) -> None:
        """Log that the server loses what it has when it is killed or full, if its settings say so."""
        if self.info.get("aof_enabled") == 0 or str(self.info.get("maxmemory_policy")).startswith("allkeys"):
            advice = "Set appendonly yes and maxmemory-policy noeviction"
            logger.warning("The server %s loses the queue when it is killed or full. %s", self.where, advice)

    def script(self, *names: str) -> Callable[..., Any]:
        """Return the script that Lua files of this package make, to be called with *keys* and *args*.

        What it raises is a redis.RedisError; with one of :data:`AWAY` it may have been carried out.
        """
        here = files(__package__)
        text = "\n".join((here / f"{name}.lua").read_text(encoding="utf-8") for name in names)
        script: Callable[..., Any] = self.client.register_script(text)
        return script

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _client(cls: Any, url: str | None, options: dict[str, Any]) -> Any:
    return cls.from_url(url, **options) if url else cls(**options)


def _name_of(options: Mapping[str, Any]) -> str:
    address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{address}/{options['db']}" if options.get("db") else str(address)
