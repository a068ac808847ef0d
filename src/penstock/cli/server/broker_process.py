"""The process of a broker: limits, event loop, start, signals, stop, exit code.

The first SIGTERM, SIGINT or SIGHUP asks for a clean stop with exit code 0. The second ends the process at once, as a
crash would; the next start recovers. A broker that cannot start reports one message: what is wrong, and what to do.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NoReturn

import click

from penstock import __version__
from penstock.broker.broker import METADATA_FOLDER, Broker
from penstock.broker.http import HttpServerError
from penstock.broker.settings import BrokerSettings, InvalidSettings, Listener, unreachable_hosts
from penstock.cli.output import CommandError, counted, printable, sentence
from penstock.cluster.errors import ClusterError, TreeFailed, TreeInUse
from penstock.log.errors import FolderInUse, LogError, NoDirectoryOnline
from penstock.runtime.network import AddressInUse, CannotListen

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILLED = 128
_PORTS_TRIED = 100


class BrokerError(CommandError):
    """A broker that cannot start, or could not stop as it should: what is wrong, and what to do."""

    exit_code = 1


class SettingsRejected(click.ClickException):
    """Settings that no broker can start with, all that is wrong with them."""

    exit_code = 2

    def __init__(self, error: InvalidSettings) -> None:
        problems = "".join(f"\n  {printable(str(problem))}" for problem in error.problems)
        super().__init__(f"{counted(len(error.problems), 'problem')} in the settings:{problems}")


def run_broker(
    settings: BrokerSettings,
    *,
    http_host: str,
    http_port: int | None,
    on_started: Callable[[Broker], None],
    on_stopping: Callable[[], None],
    advise_on_port: Callable[[int], str],
) -> None:
    """Be a broker until a signal asks for the end. BrokerError if it cannot start.

    `advise_on_port` says what to do about a port that is taken.
    """
    open_files = raise_open_files_limit()
    new_loop, loop_name = _event_loop()
    logger.info("penstock %s, process %d, %s, open files at most %s", __version__, os.getpid(), loop_name, open_files)
    broker = Broker(settings, http_host=http_host, http_port=http_port)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        stop = StopRequest(runner.get_loop())
        stop.listen()
        try:
            runner.run(_serve(broker, stop, on_started, on_stopping))
        except _StartFailed as failed:
            _explain(failed.error, advise_on_port)


async def _serve(
    broker: Broker, stop: StopRequest, on_started: Callable[[Broker], None], on_stopping: Callable[[], None]
) -> None:
    if not await _start(broker, stop):
        return
    # What there is by now stays until the end. A full collection would go over it again and again, and hold the loop
    # for 10 ms even with no partition: it then looks at what came later only.
    gc.freeze()
    try:
        on_started(broker)
        await stop.asked.wait()
        logger.info("%s: stopping; a second one ends the process at once", stop.signal_name)
        on_stopping()
    finally:
        clean = await broker.stop()
    if not clean:
        raise BrokerError(
            "The broker did not stop cleanly: see the log above.",
            "Nothing that was acknowledged with acks=all is lost; the next start checks what was not marked as closed.",
        )


async def _start(broker: Broker, stop: StopRequest) -> bool:
    """Whether it has started; not if it was asked to stop before."""
    starting = asyncio.create_task(broker.start())
    asked = asyncio.create_task(stop.asked.wait())
    try:
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            logger.info("%s: the start is given up; the next one checks again what this one did", stop.signal_name)
            starting.cancel()
        await starting
    except asyncio.CancelledError:
        if not stop.asked.is_set():
            raise
        return False
    except Exception as error:
        raise _StartFailed(error) from error
    finally:
        asked.cancel()
    return True


class StopRequest:
    """Who asked for the end, if somebody did."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.signal_name = ""
        self._loop = loop

    def listen(self) -> None:
        # Not by the loop's own handlers: while it recovers logs they would wait, even for the second signal.
        for number in _SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # Started by nohup: it is meant to outlive its terminal.
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name:
            os._exit(_KILLED + number)
        self.signal_name = signal.Signals(number).name
        self._loop.call_soon_threadsafe(self.asked.set)


class _StartFailed(Exception):
    """Tells what kept the broker from starting from what came later."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# --- the process


def raise_open_files_limit() -> int | str:
    """Allow as many open files as the system does: partitions and connections are files. The limit after that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays %d: %s", soft, error)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _event_loop() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, "asyncio's event loop"
    return uvloop.new_event_loop, "uvloop"


def warn_about_unreachable_hosts(advertised: Iterable[Listener]) -> None:
    """Log a warning for each advertised host without an address, when that is known."""
    listeners = tuple(advertised)

    def look() -> None:
        for doubt in unreachable_hosts(listeners, socket.getaddrinfo):
            logger.warning("%s", doubt)

    # A name server may take its time, and nothing depends on the answer: neither the start nor the stop waits for it.
    threading.Thread(target=look, name="advertised-hosts", daemon=True).start()


def http_url(host: str, port: int) -> str:
    """Where HTTP answers, as seen from this machine."""
    shown = "localhost" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def free_port_after(port: int) -> int | None:
    """A port above this one that is free on the loopback now."""
    for candidate in range(port + 1, min(port + _PORTS_TRIED, 65_536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    return None


# --- why it did not start


def _explain(error: Exception, advise_on_port: Callable[[int], str]) -> NoReturn:
    if isinstance(error, AddressInUse):
        port = int(error.address.rpartition(":")[2])
        raise BrokerError(f"{error.address} is in use: another process listens there.", advise_on_port(port))
    if isinstance(error, CannotListen):
        raise BrokerError(sentence(str(error)), _advice_on_listening(error))
    if isinstance(error, (FolderInUse, TreeInUse)):
        folder = error.path.removesuffix(f"/{METADATA_FOLDER}")
        raise BrokerError(
            f"Data folder {folder} is in use ({error.holder}).",
            "Stop that process, or choose another folder with --data-dir.",
        )
    if isinstance(error, TreeFailed | NoDirectoryOnline):
        raise BrokerError(
            sentence(str(error)), "Make the folder one that this user can write to, or choose another with --data-dir."
        )
    if isinstance(error, ClusterError | LogError | HttpServerError):
        # Their texts end with what to do.
        problem, _, advice = str(error).rpartition("; ")
        if not problem:
            problem, advice = advice, "Its data is as it was; --log-level debug tells more."
        raise BrokerError(sentence(problem), sentence(advice))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        raise BrokerError(f"{where}{error.strerror or error}.", "Its data is as it was; --log-level debug tells more.")
    raise error


def _advice_on_listening(error: CannotListen) -> str:
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.EACCES:
        return "Ports below 1024 are for root: choose a higher one."
    return "Give an address of this machine; 0.0.0.0 is all of them."
