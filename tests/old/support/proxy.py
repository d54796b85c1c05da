"""TCP proxies in front of a server: one loses answers, so that a command is carried out and nobody hears of it. The
other speaks TLS, which the servers in Python packages cannot do.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


class LosingProxy:
    """Forwards to *port* of 127.0.0.1 and, once :meth:`lose_next_answer` was called, drops an answer and hangs up."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._to_lose = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose_next_answer(self) -> None:
        self._to_lose += 1

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
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
                client = self._spoken_to(client)
            except OSError:  # who does not trust the certificate hangs up
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._forward, args=(source, sink, is_answer))
                self._threads.append(thread)
                thread.start()

    def _spoken_to(self, client: socket.socket) -> socket.socket:
        return client

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._to_lose:
                    self._to_lose -= 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class TLSProxy(LosingProxy):
    """Speaks TLS with clients and plain TCP with the server."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        super().__init__(port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)

    def _spoken_to(self, client: socket.socket) -> socket.socket:
        client.settimeout(10)
        spoken_to = self._context.wrap_socket(client, server_side=True)
        spoken_to.settimeout(None)
        return spoken_to
