"""``info`` and ``requeue`` for a fleet, whose queue and filter are on a server. Knows no job directory."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.terminal import OK, Table, rows, show, size
from scrapy_bloom.old.errors import UnusableError, counted
from scrapy_bloom.old.fleet.client import ServerError, connect
from scrapy_bloom.old.fleet.frontier import aside
from scrapy_bloom.old.fleet.frontier.inspect import figures, prefixes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.old.fleet.client import Server

_SCHEMES = ("redis://", "rediss://", "unix://")
_DEFAULT_PREFIX = "bloom:{}"


def is_server(where: str) -> bool:
    """Return whether *where* is the address of a server, not a directory."""
    return where.startswith(_SCHEMES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which queue is meant, if the server has several."""
    parser.add_argument("--spider", help="of a server: the spider, if there are queues of several")
    parser.add_argument("--key", help="of a server: the BLOOM_REDIS_KEY, if it is not the default one")


def refuse_options(options: argparse.Namespace, *names: str) -> None:
    """Raise if one of the options *names* is given, which are of a server, and the job is a directory.

    Raises:
        UnusableError: One is.

    """
    given = [f"--{name}" for name in names if getattr(options, name)]
    if given:
        raise UnusableError(
            " and ".join(given),
            f"can be asked of a fleet's server only, and {options.directory} is a job directory",
            advice="Nothing was changed. `info` shows what the loop guard has parked there.",
        )


def show_info(options: argparse.Namespace) -> int:
    """Print what the queue and the filter hold."""
    with _queue(options) as (server, prefix):
        found = figures(server, prefix)
    show({**asdict(found), "finished": found.is_finished}, options, _info_lines)
    return OK


def show_requeued(options: argparse.Namespace) -> int:
    """Put back what was set aside, or those of the given ids, and print what it was."""
    with _queue(options) as (server, prefix):
        shards = figures(server, prefix, most_hosts=0).shards
        listed = aside.listed(server, prefix, shards)
        unknown = sorted(set(options.id) - {one.id for one in listed})
        if unknown:
            known = f"It has {', '.join(one.id for one in listed)}." if listed else "Nothing is set aside there."
            raise UnusableError(
                f"{server.where}, key {prefix},", f"has not set aside {', '.join(unknown)}", advice=known
            )
        chosen = [one for one in listed if not options.id or one.id in options.id]
        count = 0
        if chosen and not options.list:
            count = aside.put_back(server, prefix, shards, [one.id for one in chosen])
    found = {
        "where": server.where,
        "key": prefix,
        "requeued": count,
        "set_aside": [asdict(one) for one in chosen],
        "listed_only": options.list,
    }
    show(found, options, _requeued_lines)
    return OK


@contextmanager
def _queue(options: argparse.Namespace) -> Iterator[tuple[Server, str]]:
    """Connect, and find out which queue is meant."""
    server = connect(options.directory, {}, given_as="the address")
    try:
        yield server, _prefix(server, options.spider, options.key)
    except ServerError as error:
        raise UnusableError(
            f"The queue on {server.where}", f"cannot be looked at: {error}", advice="See what the server logs."
        ) from None
    finally:
        server.close()


def _prefix(server: Server, spider: str | None, key: str | None) -> str:
    if key is not None:
        return key.replace("%(spider)s", spider or "")
    if server.is_cluster:
        if spider is None:
            raise UnusableError(server.where, "is a cluster", advice="Give the --spider or the --key.")
        return _DEFAULT_PREFIX.format(spider)
    found = {prefix: of for prefix, of in prefixes(server).items() if spider in (None, of)}
    if len(found) == 1:
        return next(iter(found))
    names = ", ".join(f"--spider {of} --key {prefix}" for prefix, of in found.items())
    whose = f" of the spider {spider}" if spider else ""
    raise UnusableError(
        server.where,
        f"holds several queues{whose}" if found else f"holds no queue of FleetScheduler's{whose}",
        advice=f"Say which one: {names}." if found else "Look at the address, the database and the spider's name.",
    )


def _info_lines(found: dict[str, Any]) -> list[str | Table]:
    state = (
        "finished: nothing is pending or in hand"
        if found["finished"]
        else "requests of scrapy-redis are being taken over"
        if found["is_moving"]
        else "not finished"
    )
    layers = counted(found["layers"], "layer")
    labelled = [
        ("queue", f"{found['where']}, key {found['prefix']}, spider {found['spider']}"),
        ("state", state),
        ("pending", f"{found['pending']:,} of {counted(found['hosts'], 'host')}"),
        ("in hand", f"{found['leased']:,}"),
        ("set aside", f"{found['aside']:,}" + ("; `requeue` lists them and puts them back" if found["aside"] else "")),
        ("ever enqueued", f"{found['enqueued']:,}"),
        ("URLs", f"{found['urls']:,} in the filter"),
        ("filter", f"{size(found['nbytes'])} in {layers}, the newest {found['fill_ratio']:.0%} full"),
        ("made with", f"engine {found['engine']}, shards: {found['shards']}"),
        ("error rate", f"{found['error_rate']:.2g} now"),
    ]
    lines: list[str | Table] = [*rows(labelled)]
    if found["pending_by_host"]:
        lines += ["", Table(["host", "pending"], [[host, f"{count:,}"] for host, count in found["pending_by_host"]])]
    if found["workers"]:
        lines += ["", Table(["worker", "in hand", "last seen"], [_worker(one) for one in found["workers"]])]
    return lines


def _worker(one: dict[str, Any]) -> Sequence[str]:
    seen = "-" if one["last_seen"] is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["last_seen"]))
    return [one["name"], f"{one['held']:,}", seen + ("" if one["is_alive"] else ", lost")]


def _requeued_lines(found: dict[str, Any]) -> list[str | Table]:
    if not found["set_aside"]:
        return ["Nothing was set aside."]
    table = [[one["id"], one["reason"], one["url"] or "cannot be read here"] for one in found["set_aside"]]
    count = f"Pending again: {found['requeued']:,}. Running workers fetch them; if none runs, start one."
    return [Table(["id", "why", "URL"], table), *([] if found["listed_only"] else [count])]
