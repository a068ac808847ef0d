"""The page's server, in a thread of this process.

Noun: `PageServer`, a listening socket and who answers on it.

Rule: the socket is bound before anything else is started, so that a port in use is known at once, and nobody can take
it in between. It listens on the loopback only.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

import uvicorn
from starlette.applications import Starlette

HOST: Final = "127.0.0.1"
_CLOSE_S: Final = 3.0
_BACKLOG: Final = 64


class PageServer:
    """Serves an application until it is closed."""

    def __init__(self, listener: socket.socket, app: Starlette) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1,
            ws="none", loop="asyncio",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="activity-page", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        self._listener.listen(_BACKLOG)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        with contextlib.suppress(OSError):
            self._listener.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])


def bound(port: int) -> socket.socket:
    """A socket on this port of the loopback; 0 is any that is free. Raises OSError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
    except BaseException:
        listener.close()
        raise
    return listener
