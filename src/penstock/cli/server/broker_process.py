"""The process of a broker: limits, event loop, start, signals, stop, exit code.

The first SIGTERM, SIGINT or SIGHUP asks for a clean stop with exit code 0. The second ends the process at once, as a
crash would; the next start recovers. A broker that cannot start reports one message: what is wrong, and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NoReturn, Protocol

import click

from penstock import __version__
from penstock.broker.broker import METADATA_FOLDER, Broker
from penstock.broker.http import HttpServerError
from penstock.broker.settings import BrokerSettings, InvalidSettings, Listener, unreachable_hosts
from penstock.cli.output import CommandError, printable, sentence
from penstock.cluster.errors import ClusterError, TreeFailed, TreeInUse
from penstock.embedded_broker import console_program
from penstock.log.errors import FolderInUse, LogError, NoDirectoryOnline
from penstock.runtime.garbage_collector import BoundedCollector
from penstock.runtime.network import AddressInUse, CannotListen
from penstock.runtime.quantities import counted

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The two parameters of glibc's mallopt, and the variables by which users set them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEPT_FREE_BYTES = 16 * 1024 * 1024
_RETURNED_BYTES = 4 * 1024 * 1024
_KILLED = 128
_PORTS_TRIED = 100
_GARBAGE_TICK_S = 10


class BrokerError(CommandError):
    """A broker that cannot start, or did not stop cleanly."""

    exit_code = 1


class SettingsRejected(click.ClickException):
    """Invalid settings, with every problem."""

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
    companion: Companion | None = None,
) -> None:
    """Run a broker until a signal. BrokerError if it cannot start.

    `advise_on_port` returns what to do about a port in use. `companion` runs beside the broker, in its process.
    """
    open_files = raise_open_files_limit()
    keep_freed_memory()
    new_loop, loop_name = _event_loop()
    logger.info(
        "process started: version=%s pid=%d loop=%s max_files=%s", __version__, os.getpid(), loop_name, open_files
    )
    broker = Broker(settings, http_host=http_host, http_port=http_port, console=console_program)
    with BoundedCollector() as collector, asyncio.Runner(loop_factory=new_loop) as runner:
        stop = StopRequest(runner.get_loop())
        stop.listen()
        try:
            runner.run(_serve(broker, stop, collector, on_started, on_stopping, companion))
        except _StartFailed as failed:
            _explain(failed.error, advise_on_port)


async def _serve(
    broker: Broker,
    stop: StopRequest,
    collector: BoundedCollector,
    on_started: Callable[[Broker], None],
    on_stopping: Callable[[], None],
    companion: Companion | None,
) -> None:
    if not await _start(broker, stop):
        return
    collector.set_aside()
    collecting = asyncio.create_task(_collect_garbage(collector))
    try:
        on_started(broker)
        if companion is not None:
            await _start_companion(companion, broker, stop)
        await stop.asked.wait()
        logger.info("stopping: signal=%s; a second signal ends the process at once", stop.signal_name)
        on_stopping()
    finally:
        collecting.cancel()
        if companion is not None:
            await asyncio.to_thread(companion.stop)
        clean = await broker.stop()
    if not clean:
        raise BrokerError(
            "The broker did not stop cleanly; the log has the reason.",
            "No record acknowledged with acks=all is lost. The next start recovers the logs.",
        )


async def _collect_garbage(collector: BoundedCollector) -> None:
    while True:
        await asyncio.sleep(_GARBAGE_TICK_S)
        collector.tick(time.monotonic(), time.process_time())


class Companion(Protocol):
    """What runs in a broker's process on threads of its own. Both methods may block; they are called on a thread."""

    def start(self, broker: Broker) -> None: ...

    def stop(self) -> None: ...


async def _start_companion(companion: Companion, broker: Broker, stop: StopRequest) -> None:
    """Start it, unless a stop is asked for meanwhile. Raises what it raises, and the broker stops."""
    starting = asyncio.create_task(asyncio.to_thread(companion.start, broker))
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if starting.done():
        starting.result()
    else:
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _start(broker: Broker, stop: StopRequest) -> bool:
    """Whether it has started; False if a stop was requested before."""
    starting = asyncio.create_task(broker.start())
    asked = asyncio.create_task(stop.asked.wait())
    try:
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            logger.info("start cancelled: signal=%s", stop.signal_name)
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
    """The first signal that asks for a stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.signal_name = ""
        self._loop = loop

    def listen(self) -> None:
        # Not the loop's own handlers: they would wait while the loop is busy, even for the second signal.
        for number in _SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name:
            os._exit(_KILLED + number)
        self.signal_name = signal.Signals(number).name
        self._loop.call_soon_threadsafe(self.asked.set)


class _StartFailed(Exception):
    """An error of the start, as opposed to one after it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# --- the process


def raise_open_files_limit() -> int | str:
    """Raise the limit of open files to the hard limit. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("cannot raise the limit of open files: limit=%d error=%s", soft, error)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def keep_freed_memory() -> None:
    """Let the C library keep 16 MiB of freed memory per arena, and return blocks above 4 MiB at once.

    glibc adapts both sizes to what was freed last. With several requests of a megabyte at a time it returned pages
    after each and got as many cleared ones for the next: 10 % of the processor time for large compressed batches.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _ALLOCATOR_VARIABLES):
        return
    with contextlib.suppress(AttributeError, OSError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


def _event_loop() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, "asyncio"
    return uvloop.new_event_loop, "uvloop"


def warn_about_unreachable_hosts(advertised: Iterable[Listener]) -> None:
    """Log a warning for each advertised host that cannot be resolved."""
    listeners = tuple(advertised)

    def look() -> None:
        for doubt in unreachable_hosts(listeners, socket.getaddrinfo):
            logger.warning("advertised host has no address: problem=%s", doubt)

    # A name server may be slow, and neither start nor stop depends on the answer.
    threading.Thread(target=look, name="advertised-hosts", daemon=True).start()


def http_url(host: str, port: int) -> str:
    """The address of the HTTP server, as seen from this machine."""
    shown = "localhost" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def free_port_after(port: int) -> int | None:
    """A higher port that is free on the loopback."""
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
        raise BrokerError(f"{error.address} is in use by another process.", advise_on_port(port))
    if isinstance(error, InvalidSettings):
        raise SettingsRejected(error)  # certificates and credentials are read at the start
    if isinstance(error, CannotListen):
        raise BrokerError(sentence(str(error)), _advice_on_listening(error))
    if isinstance(error, (FolderInUse, TreeInUse)):
        folder = error.path.removesuffix(f"/{METADATA_FOLDER}")
        raise BrokerError(
            f"Data folder {folder} is in use ({error.holder}).",
            "Stop that process, or choose another folder with --data-dir.",
        )
    if isinstance(error, TreeFailed | NoDirectoryOnline):
        raise BrokerError(sentence(str(error)), "Make the folder writable, or choose another with --data-dir.")
    if isinstance(error, ClusterError | LogError | HttpServerError):
        # Their texts end with what to do.
        problem, _, advice = str(error).rpartition("; ")
        if not problem:
            problem, advice = advice, "The data was not changed. --log-level debug shows more."
        raise BrokerError(sentence(problem), sentence(advice))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        raise BrokerError(
            f"{where}{error.strerror or error}.", "The data was not changed. --log-level debug shows more."
        )
    raise error


def _advice_on_listening(error: CannotListen) -> str:
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.EACCES:
        return "Ports below 1024 need root. Choose a higher one."
    return "Use an address of this machine; 0.0.0.0 is all of them."
