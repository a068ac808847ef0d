"""`penstock zookeeper start`: run a real ZooKeeper for a cluster, from the jars of the pyspark package.

It runs in the foreground: the first SIGTERM, SIGINT or SIGHUP stops it, a second one kills it. Its log goes to
standard error, one line per event, in the format of a broker's log.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

import click

from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import CommandError, sentence
from penstock.cluster.errors import ZooKeeperNotStarted

if TYPE_CHECKING:
    from penstock.cluster.tree.zookeeper.server import ServerSettings, ZooKeeperProcess

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0


class ServerError(CommandError):
    """A ZooKeeper that cannot start or exited."""

    exit_code = 1


@click.group()
def zookeeper() -> None:
    """Run a ZooKeeper server, which stores the metadata of a cluster."""


@zookeeper.command(short_help="Run a ZooKeeper server until SIGTERM or Ctrl-C.")
@click.option("--data-dir", default="penstock-zookeeper", show_default=True, metavar="FOLDER", help="Data folder.")
@click.option("--port", type=click.IntRange(1, 65_535), default=2181, show_default=True, help="Port for clients.")
@click.option(
    "--host", metavar="ADDRESS",
    help="Address for clients; 0.0.0.0 is all.  [default: 127.0.0.1; with --servers, all]",
)  # fmt: skip
@click.option(
    "--servers", metavar="ID=HOST:PEER:ELECTION,...",
    help="All servers of the ensemble with their two internal ports; the same for each server.",
)  # fmt: skip
@click.option("--id", "server_id", type=int, metavar="ID", help="Number of this server in --servers.")
@click.option("--heap-mb", type=click.IntRange(32), default=128, show_default=True, help="Java heap.")
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True,
    help="Level of ZooKeeper's log on standard error.",
)  # fmt: skip
def start(
    data_dir: str,
    port: int,
    host: str | None,
    servers: str | None,
    server_id: int | None,
    heap_mb: int,
    log_level: str,
) -> None:
    """Run a ZooKeeper server in the foreground. Brokers use its address as zookeeper.connect.

    An ensemble of three tolerates the loss of one: start each with the same --servers, and with its own --id and
    folder.

    \b
    Exit code: 0  stopped cleanly
               1  could not start, or exited; the message says what to do
               2  invalid options
    """
    from penstock.cluster.tree.zookeeper.server import ServerSettings, ZooKeeperProcess, check_settings, parse_members

    log_to_stderr("debug" if log_level == "debug" else "info")
    if (servers is None) != (server_id is None):
        raise CommandError("--servers and --id belong together.", "Use both for an ensemble, or neither.")
    try:
        settings = ServerSettings(
            os.path.abspath(data_dir),
            port,
            host if host is not None else "127.0.0.1" if servers is None else "",
            server_id or 0,
            () if servers is None else parse_members(servers),
            heap_mb=heap_mb,
            log_level=log_level,
        )
        check_settings(settings)
    except ZooKeeperNotStarted as error:
        raise CommandError(sentence(error.problem), sentence(error.advice)) from None
    try:
        _run(ZooKeeperProcess(settings))
    except ZooKeeperNotStarted as error:
        raise ServerError(sentence(error.problem), sentence(error.advice)) from None


class _Stop:
    """Forwards signals to the server."""

    def __init__(self, process: ZooKeeperProcess) -> None:
        self.is_asked = False
        self._process = process

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        # Not `stop`, which waits: this may interrupt a wait.
        self._process.send(signal.SIGKILL if self.is_asked else signal.SIGTERM)
        self.is_asked = True


def _run(process: ZooKeeperProcess) -> None:
    stop = _Stop(process)
    stop.listen()
    process.start()
    if stop.is_asked:
        # The signal came before the process existed.
        process.send(signal.SIGTERM)
    settings = process.settings
    try:
        if settings.members:
            logger.info("waiting for the ensemble: server=%d servers=%d", settings.server_id, len(settings.members))
        _log_when_serving(process, stop, settings)
        code = process.wait()
    finally:
        process.kill()
    if not stop.is_asked:
        raise ZooKeeperNotStarted(f"ZooKeeper exited with code {code}", "see its log for the reason")
    logger.info("zookeeper stopped")


def _log_when_serving(process: ZooKeeperProcess, stop: _Stop, settings: ServerSettings) -> None:
    # An ensemble serves once a majority is up, however long that takes.
    timeout_s = math.inf if settings.members else _START_TIMEOUT_S
    try:
        health = process.wait_until_serving(timeout_s, give_up=lambda: stop.is_asked)
    except ZooKeeperNotStarted:
        if stop.is_asked:
            return
        raise
    logger.info(
        "zookeeper started: version=%s address=%s mode=%s java=%d data=%s",
        health.version,
        process.address,
        health.mode,
        process.java.version,
        settings.data_dir,
    )
