"""A real Redis Cluster for tests: a few servers of 127.0.0.1 that share the slots."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.old.support.redis_servers import PATIENCE, RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLOTS = 16_384
BUS = 10_000
"""The nodes talk to each other on the port that is so much above the clients': Redis 6.2 knows no other."""


@contextmanager
def redis_cluster(directory: Path, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Yield the nodes of a whole cluster, and end those that are still there afterwards."""
    started: list[RedisServer] = []
    try:
        for i in range(nodes):
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
            node = RedisServer(directory / f"node{i}", port=_free_port_with_bus(), arguments=options)
            node.start()
            started.append(node)
        clients = [node.client() for node in started]
        for i, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS * i // nodes, SLOTS * (i + 1) // nodes))
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", started[i].port)
        deadline = time.monotonic() + PATIENCE
        while not all(_is_whole(client, nodes) for client in clients):
            assert time.monotonic() < deadline, "the cluster does not form"
            time.sleep(0.05)
        for client in clients:
            client.close()
        yield started
    finally:
        for node in started:
            node.kill()


def _is_whole(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes))


def _free_port_with_bus() -> int:
    while True:
        port = free_port() - BUS
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
