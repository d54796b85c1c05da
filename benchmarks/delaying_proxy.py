"""A TCP proxy that makes loopback as slow as a network, and counts the round trips over it."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class DelayingProxy:
    """Forwards to *port* of 127.0.0.1, and holds back what passes for half of *round_trip_seconds*, either way.

    What has to wait does not hold up what comes after it: like a long line, not a narrow one.
    """

    def __init__(self, port: int, round_trip_seconds: float) -> None:
        self.round_trips = 0
        """Times that a client sent something after it had got an answer, or for the first time."""
        self._target = port
        self._one_way = round_trip_seconds / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def accept(self) -> None:
        """Serve connections until :meth:`close`."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            state = _Turn()
            self._sockets += [client, server]
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._forward(client, server, state, is_answer=False)
            self._forward(server, client, state, is_answer=True)

    def close(self) -> None:
        """Hang up."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _forward(self, source: socket.socket, sink: socket.socket, turn: _Turn, *, is_answer: bool) -> None:
        on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def receive() -> None:
            data = b"x"
            while data:
                try:
                    data = source.recv(1 << 16)
                except OSError:
                    data = b""
                with self._lock:
                    if data and not is_answer and turn.is_clients:
                        self.round_trips += 1
                    turn.is_clients = is_answer
                on_the_way.put((time.monotonic() + self._one_way, data))

        def send() -> None:
            while True:
                due, data = on_the_way.get()
                if not data:
                    break
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                try:
                    sink.sendall(data)
                except OSError:
                    break
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

        for run in (receive, send):
            threading.Thread(target=run, daemon=True).start()


class _Turn:
    """Whose turn it is to speak on one connection."""

    is_clients = True


@contextmanager
def delaying_proxy(port: int, round_trip_seconds: float) -> Iterator[DelayingProxy]:
    """Run a proxy in front of *port*."""
    proxy = DelayingProxy(port, round_trip_seconds)
    thread = threading.Thread(target=proxy.accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
