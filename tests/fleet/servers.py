"""Real servers for tests, on free ports of 127.0.0.1: single ones that can be killed, and clusters."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from typing_extensions import Self

from scrapy_bloom.fleet.own_server import server_executable
from tests.support.processes import PATIENCE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s until {what}"
        time.sleep(0.01)


class RedisServer:
    """A server in *directory*, up between ``with`` and its end unless it is killed. It keeps its data over kills."""

    def __init__(self, directory: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._directory, self._arguments = directory, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def client(self) -> Any:
        return redis.Redis(host="127.0.0.1", port=self.port, protocol=2)

    def start(self) -> None:
        self._directory.mkdir(exist_ok=True)
        program = os.environ.get("TEST_REDIS_SERVER") or server_executable(path="")
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *self._arguments]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._answers, "the server answers")

    def _answers(self) -> bool:
        with self.client() as client, suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def redis_cluster(directory: Path, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Yield the nodes of a whole cluster, and end them afterwards."""
    started: list[RedisServer] = []
    try:
        for i in range(nodes):
            # The nodes talk to each other on the port that is 10,000 above the clients'.
            node = RedisServer(directory / f"node{i}", "--cluster-enabled", "yes", port=_port_for_node())
            node.start()
            started.append(node)
        clients = [node.client() for node in started]
        for i, client in enumerate(clients):
            slots = range(16_384 * i // nodes, 16_384 * (i + 1) // nodes)
            client.execute_command("CLUSTER ADDSLOTS", *slots)
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", started[i].port)
        wait_until(lambda: all(_is_whole(client, nodes) for client in clients), "the cluster is whole")
        for client in clients:
            client.close()
        yield started
    finally:
        for node in started:
            node.kill()


def move_slot(nodes: list[RedisServer], key: str) -> None:
    """Move the slot of *key* to another node of a cluster, key by key, that key first.

    With one key moved, wait until a client has been sent to the target. Keys that it writes there make this raise when
    the source moves its own.
    """
    clients = [node.client() for node in nodes]
    names = [client.execute_command("CLUSTER MYID") for client in clients]
    slot = clients[0].execute_command("CLUSTER KEYSLOT", key)
    source = next(i for i, client in enumerate(clients) if client.execute_command("CLUSTER COUNTKEYSINSLOT", slot))
    target = (source + 1) % len(nodes)
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[target])
    clients[target].execute_command("CONFIG RESETSTAT")
    while keys := clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1000):
        for name in sorted(keys, key=len):
            clients[source].execute_command("MIGRATE", "127.0.0.1", nodes[target].port, name, 0, 5000)
            wait_until(lambda: "cmdstat_asking" in clients[target].info("commandstats"), "a client was sent there")
    for i in (target, source, *range(len(nodes))):
        clients[i].execute_command("CLUSTER SETSLOT", slot, "NODE", names[target])
        clients[i].close()


def _is_whole(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes))


def _port_for_node() -> int:
    while True:
        port = free_port() - 10_000
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class LosingProxy:
    """Forwards to *port* and, once told to, drops an answer and hangs up: the command was carried out, unheard."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._to_lose = 0
        self.lost = 0
        self.gate = threading.Event()
        """While it is not set, nothing gets through."""
        self.held = 0
        """How many pieces it has held back for that."""
        self.gate.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def lose_next_answer(self) -> None:
        self._to_lose += 1

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # it has been killed
                client.close()
                continue
            self._sockets += [client, server]
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._forward, args=(source, sink, is_answer))
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    break
                self.held += not self.gate.is_set()
                self.gate.wait(PATIENCE)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
