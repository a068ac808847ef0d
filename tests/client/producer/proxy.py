"""A wire between client and broker that can be cut in the middle of a frame, slowed down and stopped.

    with Proxy(broker_port) as proxy:
        proxy.cut_after(to_broker=100_000)       after that many more bytes, also in the middle of a frame
        proxy.delay_s = 0.05                     each piece waits before it goes on
        proxy.hold(); proxy.let_go()             nothing goes through

The broker has to advertise the proxy's address, or clients go around it.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

from tests.timeouts import PATIENCE_S

_PIECE = 16_384


class Proxy:
    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.cuts = 0
        self.connections = 0  # made through it so far
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._left = {"to_broker": -1, "to_client": -1}
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_ended = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ended = True
        self._open.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def cut_after(self, *, to_broker: int = -1, to_client: int = -1) -> None:
        """Cut all connections after this many more bytes in that direction."""
        with self._lock:
            self._left = {"to_broker": to_broker, "to_client": to_client}

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker_port), PATIENCE_S)
            except OSError:
                client.close()
                continue
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.settimeout(None)
            with self._lock:
                self._sockets |= {client, broker}
                self.connections += 1
            self._spawn(self._pump, client, broker, "to_broker")
            self._spawn(self._pump, broker, client, "to_client")

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(_PIECE):
                self._open.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                allowed, is_cut = self._allowed(direction, len(data))
                target.sendall(data[:allowed])
                if is_cut:
                    self.cuts += 1
                    self.cut()
                    return
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _allowed(self, direction: str, size: int) -> tuple[int, bool]:
        with self._lock:
            left = self._left[direction]
            if left < 0:
                return size, False
            if size < left:
                self._left[direction] = left - size
                return size, False
            self._left[direction] = -1
            return left, True
