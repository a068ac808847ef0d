"""What can be known to be missing before anything is started: ports, Java, packages, the cluster.

Rule: each raises CannotRun, which says what to do. They are quick, and change nothing.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.activity.live.supervising_folder import CannotRun

if TYPE_CHECKING:
    from penstock.activity.live.supervising_plan import Plan

_HOST: Final = "127.0.0.1"
_TRIED: Final = 100
_TIMEOUT_MS: Final = 5_000
_REMOTE: Final = "sc://"


def check_packages() -> None:
    """Spark, its tables and the page's server are extras of the package."""
    from penstock.client.errors import MissingDependency
    from penstock.client.serializers.base import load_optional

    try:
        for module, package, extra in (
            ("numpy", "numpy", "spark"),
            ("pyspark", "pyspark", "spark"),
            ("deltalake", "deltalake", "spark"),
            ("pyarrow", "pyarrow", "spark"),
            ("starlette", "starlette", "console"),
            ("uvicorn", "uvicorn", "console"),
        ):
            load_optional(module, package, extra, "a site's activity")
    except MissingDependency as error:
        raise CannotRun(_sentence(error.message), error.hint or "pip install 'penstock[spark,console]'") from None


def check_java(master: str | None) -> str:
    """Which Java it will be; on a Spark Connect server there is one."""
    if master is not None and master.startswith(_REMOTE):
        return "of the Spark Connect server"
    from penstock.spark.java import NoJava, find_java

    try:
        java = find_java()
    except NoJava as error:
        raise CannotRun(_sentence(error.message), _sentence(error.hint)) from None
    return f"Java {java.version}, {java.origin}"


def bound_page(port: int) -> socket.socket:
    """The page's socket."""
    from penstock.activity.live.page.server import bound

    return _bound(port, bound, "--http-port", "")


def check_broker_port(port: int) -> int:
    """The broker's port; for 0 one that is free."""
    from penstock.activity.live.page.server import bound

    use_it = f"If it is a broker that you want to use, add --bootstrap-server {_HOST}:{port}; if not, "
    with _bound(port, bound, "--port", use_it) as probe:
        return int(probe.getsockname()[1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def cluster_id(plan: Plan) -> str:
    """Of a cluster that others run."""
    from penstock.client.errors import PenstockError

    try:
        with plan.cluster.admin(
            "penstock-activity", request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS
        ) as admin:
            return admin.describe_cluster().cluster_id or plan.servers
    except PenstockError as error:
        raise CannotRun(
            f"{_sentence(error.message)}", _sentence(error.hint or "Name a broker that runs with --bootstrap-server")
        ) from None


def _bound(port: int, bind: Callable[[int], socket.socket], option: str, use_it: str) -> socket.socket:
    try:
        return bind(port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise CannotRun(
                f"{_HOST}:{port} cannot be listened on: {error.strerror}.", f"Choose a port above 1023 with {option}."
            ) from None
    free = next((each for each in range(port + 1, min(port + _TRIED, 65_536)) if _is_free(each)), 0)
    raise CannotRun(
        f"{_HOST}:{port} is in use: another process listens there (`ss -ltnp` names it).",
        _sentence(f"{use_it}stop it, or choose another port: {option} {free}"),
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _sentence(text: str) -> str:
    text = text.strip()
    if text.partition(" ")[0] in ("a", "it", "no", "stop", "the"):  # not a name, which keeps its case
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
