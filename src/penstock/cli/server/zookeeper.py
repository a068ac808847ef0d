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
    """A ZooKeeper that cannot start, or ended by itself."""

    exit_code = 1


@click.group()
def zookeeper() -> None:
    """Run a ZooKeeper, which a cluster of brokers keeps its metadata in."""


@zookeeper.command(short_help="Run a ZooKeeper in the foreground until SIGTERM or Ctrl-C.")
@click.option(
    "--data-dir", default="penstock-zookeeper", show_default=True, metavar="FOLDER", help="Where its data is kept."
)
@click.option("--port", type=click.IntRange(1, 65_535), default=2181, show_default=True, help="Where clients connect.")
@click.option(
    "--host", metavar="ADDRESS",
    help="The address that clients connect to; 0.0.0.0 is all.  [default: 127.0.0.1; with --servers, all]",
)  # fmt: skip
@click.option(
    "--servers", metavar="ID=HOST:PEER:ELECTION,...",
    help="All servers of an ensemble, with the two ports that they use among themselves; the same for each of them.",
)  # fmt: skip
@click.option("--id", "server_id", type=int, metavar="ID", help="Which of --servers this one is.")
@click.option("--heap-mb", type=click.IntRange(32), default=128, show_default=True, help="Memory for its tree.")
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True,
    help="What ZooKeeper logs, on standard error.",
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
    """Run a ZooKeeper in the foreground; give its address to brokers as zookeeper.connect.

    One is enough for a cluster that may stop with it. An ensemble of three goes on when one of them is lost: start each
    with the same --servers and with an --id and a folder of its own.

    \b
    Exit code: 0  stopped cleanly
               1  could not start, or ended by itself; the message says what to do
               2  the options are wrong
    """
    from penstock.cluster.tree.zookeeper.server import ServerSettings, ZooKeeperProcess, check_settings, parse_members

    log_to_stderr("debug" if log_level == "debug" else "info")
    if (servers is None) != (server_id is None):
        raise CommandError("--servers and --id belong together.", "Give both for an ensemble, or neither.")
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
    """Passes signals on to the server."""

    def __init__(self, process: ZooKeeperProcess) -> None:
        self.is_asked = False
        self._process = process

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # Started by nohup: it is meant to outlive its terminal.
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        # Not by `stop`, which waits: this interrupts whoever waits already.
        self._process.send(signal.SIGKILL if self.is_asked else signal.SIGTERM)
        self.is_asked = True


def _run(process: ZooKeeperProcess) -> None:
    stop = _Stop(process)
    stop.listen()
    process.start()
    if stop.is_asked:
        # It came when there was nobody yet to pass it on to.
        process.send(signal.SIGTERM)
    settings = process.settings
    try:
        if settings.members:
            logger.info("server %d of %d waits for the others", settings.server_id, len(settings.members))
        _log_when_serving(process, stop, settings)
        code = process.wait()
    finally:
        process.kill()
    if not stop.is_asked:
        raise ZooKeeperNotStarted(f"ZooKeeper ended by itself, with exit code {code}", "its log says why")
    logger.info("stopped")


def _log_when_serving(process: ZooKeeperProcess, stop: _Stop, settings: ServerSettings) -> None:
    # An ensemble serves when enough of it is there, however long that takes.
    timeout_s = math.inf if settings.members else _START_TIMEOUT_S
    try:
        health = process.wait_until_serving(timeout_s, give_up=lambda: stop.is_asked)
    except ZooKeeperNotStarted:
        if stop.is_asked:
            return
        raise
    logger.info(
        "ZooKeeper %s serves %s (%s) on Java %d, data in %s; for brokers: zookeeper.connect=%s",
        health.version,
        process.address,
        health.mode,
        process.java.version,
        settings.data_dir,
        process.address,
    )
