"""A layer-4 balancer: it accepts connections on one loopback port and joins each to one of several servers, in turn.

A server that refuses is passed over. It knows nothing of what the connections carry.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from tests.ports import free_port

_CHUNK: Final = 256 * 1024


class Balancer:
    """`ports` may change while it runs; connections stay where they are."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.ports: Sequence[int] = ()
        self.served: dict[int, int] = {}
        """Connections so far, by port of the server."""
        self._turn = 0
        self._is_closed = False
        self._listening = socket.socket()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Balancer:
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(("127.0.0.1", self.port))
        self._listening.listen(128)
        self._accepting = threading.Thread(target=self._accept, name="balancer", daemon=True)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        _shut(self._listening)
        self._accepting.join()
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in (*self._sockets, self._listening):
            each.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                outer, _ = self._listening.accept()
            except OSError:
                return
            inner = self._connect()
            if inner is None:
                outer.close()
                continue
            self._sockets += [outer, inner]
            for pair in ((outer, inner), (inner, outer)):
                thread = threading.Thread(target=_copy, args=pair, name="balancer", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> socket.socket | None:
        for _ in self.ports:
            self._turn += 1
            port = self.ports[self._turn % len(self.ports)]
            try:
                inner = socket.create_connection(("127.0.0.1", port))
            except OSError:
                continue
            self.served[port] = self.served.get(port, 0) + 1
            return inner
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends; then both do."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
    except OSError:
        pass
    _shut(source)
    _shut(target)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        each.shutdown(socket.SHUT_RDWR)
