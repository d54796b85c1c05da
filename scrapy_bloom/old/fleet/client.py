"""One Redis or Valkey server, or a cluster of them: connect, send commands, count round trips, name what went wrong.

Knows no bloom filter, and does not decide what to do about an error. It never repeats a command by itself: a command
whose answer got lost may have been carried out, and asking again would find our own URL "seen". No message and no chain
of exceptions shows a password.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy_bloom.old.errors import MissingPackageError, UnusableError
from scrapy_bloom.old.fleet.server_check import risks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from redis import Redis, RedisCluster

CONNECT_TIMEOUT = 1.0
"""Seconds to wait for a connection; a host that drops packets costs that much per attempt."""

READ_TIMEOUT = 5.0
"""Seconds to wait for an answer. Zeroing a new layer of 512 MB took a server 0.7 to 3 s, on a machine with four times
as much to do as it had cores."""

# Options that are ours to set: they decide how often a command is sent, and how an answer is read.
_OURS = frozenset(
    {"redis_cls", "encoding", "decode_responses", "encoding_errors", "protocol", "socket_timeout"}
    | {"socket_connect_timeout", "retry", "retry_on_timeout", "retry_on_error", "single_connection_client"}
)


class ServerError(Exception):
    """A command failed. It may have been carried out."""


class AwayError(ServerError):
    """The server cannot be reached, does not answer in time, or is not ready."""


class RefusedError(AwayError):
    """The server does not accept the password or user."""


class ReplyError(ServerError):
    """The server answered with an error."""


class FullError(ReplyError):
    """The server has used up its ``maxmemory`` and takes no more data."""


class Script:
    """A Lua script: sent once, then called by its SHA1."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Redis names scripts by SHA1; nothing here depends on its strength.
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Command:
    """One command, and the key that decides which node of a cluster gets it."""

    args: tuple[Any, ...]
    """Name and arguments; of a script: number of keys, keys, arguments."""
    key: str
    """One of its keys, all of which have the same hash tag."""
    script: Script | None = None

    @property
    def by_sha(self) -> tuple[Any, ...]:
        """Arguments to send first: scripts by their SHA1."""
        return self.args if self.script is None else ("EVALSHA", self.script.sha, *self.args)

    @property
    def in_full(self) -> tuple[Any, ...]:
        """Fallback when the script is not cached on the server, which then keeps it."""
        return self.args if self.script is None else ("EVAL", self.script.text, *self.args)


class Server:
    """A connection, see :func:`connect`."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        where: str,
        secrets: Sequence[str],
        info: Mapping[str, Any],
        risks: Sequence[str] = (),
    ) -> None:
        """Keep the server's answer to ``INFO`` as *info*, and *secrets*, which must never be shown."""
        self.where = where
        """Host, port and database, for messages."""
        self.risks = risks
        """What could lose a queue on this server; on a cluster, on the node that was asked."""
        self.round_trips = 0
        """Round trips so far. On a cluster, one per node that was asked."""
        self.is_cluster = bool(info.get("cluster_enabled"))
        self.is_valkey = info.get("server_name") == "valkey" or "valkey_version" in info
        self._client = client
        self._secrets = secrets

    def call(self, command: Command) -> Any:
        """Send *command* and return the answer.

        Raises:
            ServerError: It failed.

        """
        (reply,) = self.calls([command])
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Send *commands* in one round trip, or one per node of a cluster, and return the answers.

        If the server answers with an error, a :class:`ReplyError` takes the place of that answer.

        Raises:
            AwayError: No answer came, or not from all.

        """
        replies = self._send([(command, command.by_sha) for command in commands])
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, _UnknownScriptError)]
        if unknown:
            # Send all scripts in full: on a cluster, each command may be for another node.
            in_full = self._send([(commands[i], commands[i].in_full) for i in unknown])
            for i, reply in zip(unknown, in_full, strict=True):
                replies[i] = reply
        return replies

    def close(self) -> None:
        """Close the connection."""
        with _Translation(self._secrets):
            self._client.close()

    def _send(self, requests: Sequence[tuple[Command, tuple[Any, ...]]]) -> list[Any]:
        with _Translation(self._secrets):
            if len(requests) == 1:
                return [self._send_one(requests[0][1])]
            if not self.is_cluster:
                return self._send_together(self._client, [wire for _, wire in requests])
            return self._send_to_nodes(requests)

    def _send_one(self, wire: tuple[Any, ...]) -> Any:
        from redis.exceptions import ResponseError

        execute: Any = self._client.execute_command
        self.round_trips += 1
        try:
            return execute(*wire)
        except ResponseError as error:
            return self._reply_error(error)

    def _send_together(self, client: Any, wires: Sequence[tuple[Any, ...]]) -> list[Any]:
        from redis.exceptions import ResponseError

        self.round_trips += 1
        pipeline = client.pipeline(transaction=False)
        for wire in wires:
            pipeline.execute_command(*wire)
        replies = pipeline.execute(raise_on_error=False)
        return [self._reply_error(reply) if isinstance(reply, ResponseError) else reply for reply in replies]

    def _send_to_nodes(self, requests: Sequence[tuple[Command, tuple[Any, ...]]]) -> list[Any]:
        """Send each node of a cluster its commands.

        redis-py's own cluster pipeline refuses EVALSHA.
        """
        from redis.exceptions import AskError, MovedError

        cluster: Any = self._client
        by_node: dict[str, list[int]] = {}
        nodes = {}
        for i, (command, _) in enumerate(requests):
            node = cluster.get_node_from_key(command.key)
            nodes[node.name] = node
            by_node.setdefault(node.name, []).append(i)
        replies: list[Any] = [None] * len(requests)
        for name, indexes in by_node.items():
            client = cluster.get_redis_connection(nodes[name])
            answers = self._send_together(client, [requests[i][1] for i in indexes])
            for i, answer in zip(indexes, answers, strict=True):
                # The slot is moving to another node: the cluster client follows it. Nothing was done yet.
                moved = isinstance(answer, ReplyError) and isinstance(answer.__cause__, MovedError | AskError)
                replies[i] = self._send_one(requests[i][1]) if moved else answer
        return replies

    def _reply_error(self, error: Exception) -> ReplyError:
        from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, OutOfMemoryError

        text = _scrubbed(str(error), self._secrets)
        if "unauthenticated" in text:
            # A server's answer to a long command without a password, before it has read which command it is.
            raise RefusedError(f"it refuses the user or password: {text}") from None
        if isinstance(error, ClusterDownError):
            raise AwayError(text) from None
        if isinstance(error, NoScriptError):
            return _UnknownScriptError(text)
        if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:  # the latter from a script on 6.2
            return FullError(text)
        found = ReplyError(text)
        if isinstance(error, MovedError | AskError):
            found.__cause__ = error
        return found


def connect(url: str | None, parameters: Mapping[str, Any], *, given_as: str = "BLOOM_REDIS_URL") -> Server:
    """Connect to the server at *url*, or to the host and port in *parameters*, and find out what it is.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        parameters: Further arguments of ``redis.Redis``. Those that change how often a command is sent or how answers
            are read are ignored.
        given_as: Where the address was given, for advice.

    Raises:
        UnusableError: The server cannot be reached, or refuses.
        MissingPackageError: redis-py is not installed.

    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.exceptions import NoPermissionError
        from redis.retry import Retry
    except ImportError:
        raise MissingPackageError("redis", "redis", "RedisBloomDupeFilter") from None
    url = _without_ours(url) if url else url
    arguments = {
        **{name: value for name, value in parameters.items() if name not in _OURS and name != "url"},
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": READ_TIMEOUT,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    where, secrets = "the server of the settings", [str(parameters["password"])] if parameters.get("password") else []
    try:
        client = redis.Redis.from_url(url, **arguments) if url else redis.Redis(**arguments)
        found = client.connection_pool.connection_kwargs
        where = str(found["path"]) if "path" in found else f"{found.get('host')}:{found.get('port')}"
        where += f"/{found['db']}" if found.get("db") else ""
        secrets = [str(found["password"])] if found.get("password") else []
        host = None if "path" in found else str(found.get("host", "localhost"))
        has_credentials = bool(secrets or found.get("ssl_certfile"))
        with _Translation(secrets):
            info: Mapping[str, Any] = {}
            try:
                info = client.info()
            except NoPermissionError:
                client.ping()  # allowed to everyone
            if info.get("cluster_enabled"):
                client.close()
                arguments.pop("db", None)
                cluster: Any = redis.RedisCluster
                client = cluster.from_url(url, **arguments) if url else cluster(**arguments)
    except (ValueError, TypeError):
        # The reason is not shown: it quotes pieces of the URL, which may be pieces of the password.
        raise unusable(
            where,
            "its URL or parameters cannot be read",
            "Write redis://[user:password@]host[:port][/database], with characters like / @ : # in the password as "
            f"{quote('/', safe='')}, {quote('@')}, {quote(':')}, {quote('#')}; and look at REDIS_PARAMS, if it is set.",
        ) from None
    except RefusedError as error:
        raise unusable(where, f"the server: {error}".rstrip("."), f"Put the right ones into {given_as}.") from None
    except ServerError as error:
        raise unusable(
            where,
            str(error).rstrip("."),
            f"Start the server, or put the right host and port into {given_as}.",
        ) from None
    return Server(client, where, secrets, info, risks_of(info, host, has_credentials=has_credentials))


def _without_ours(url: str) -> str:
    """Return *url* without the options that we set ourselves: redis-py would prefer those in the URL."""
    base, mark, query = url.partition("?")
    kept = [option for option in query.split("&") if option.partition("=")[0] not in _OURS]
    return f"{base}{mark}{'&'.join(kept)}"


def unusable(where: str, problem: str, advice: str) -> UnusableError:
    """Return the error about the filter at *where*: the server, without its password, and its Redis key if known."""
    return UnusableError(f"The filter on {where}", f"cannot be used: {problem}", advice=advice)


class _UnknownScriptError(ReplyError):
    """The server has restarted, or has been told to forget its scripts."""


def _scrubbed(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        for spelling in {secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]}:
            text = text.replace(spelling, "***")
    return text


class _Translation:
    """Turn redis-py's exceptions, whose chains may hold anything, into ours."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        from redis.exceptions import AuthenticationError, RedisClusterException, RedisError

        # The second is no RedisError: no node of a cluster is there, or none has the slot.
        if not isinstance(error, RedisError | RedisClusterException | OSError):
            return
        text = _scrubbed(f"{error}" or type(error).__name__, self._secrets)
        if isinstance(error, AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
            raise RefusedError(f"it refuses the user or password: {text}") from None
        raise AwayError(text) from None
