"""A process that is a broker: what a signal does while it is still starting."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import socket
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any, cast

import pytest
from tests.timeouts import PATIENCE_S

from penstock.broker.broker import Broker
from penstock.cli.server import broker_process
from penstock.cli.server.broker_process import StopRequest, free_port_after, http_url, raise_open_files_limit

RUN = """
import gc, os, signal, sys
from penstock.broker.settings import settings_from
from penstock.cli.server.broker_process import run_broker
from penstock.runtime.garbage_collector import THRESHOLDS

def started(broker):
    print(gc.get_threshold() == THRESHOLDS, len(gc.callbacks), gc.get_freeze_count() > 10_000)
    os.kill(os.getpid(), signal.SIGTERM)

settings = settings_from({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]})
run_broker(
    settings, http_host="127.0.0.1", http_port=None, on_started=started, on_stopping=lambda: None, advise_on_port=str
)
print("stopped", len(gc.callbacks))
"""


class Starting:
    """Stands for a broker whose start takes as long as it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.goes_on = asyncio.Event()
        self.was_given_up = False
        self._error = error

    async def start(self) -> None:
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.was_given_up = True
            raise
        if self._error is not None:
            raise self._error


async def start(broker: Starting, happen: Any) -> bool:
    stop = StopRequest(asyncio.get_running_loop())
    starting = asyncio.create_task(broker_process._start(cast(Broker, broker), stop))
    await asyncio.sleep(0)
    happen(stop)
    async with asyncio.timeout(PATIENCE_S):
        return await starting


def test_a_signal_during_the_start_ends_it() -> None:
    async def story() -> None:
        broker = Starting()
        assert not await start(broker, lambda stop: stop.asked.set())
        assert broker.was_given_up

    asyncio.run(story())


def test_a_start_without_a_signal_is_let_finish() -> None:
    async def story() -> None:
        broker = Starting()
        assert await start(broker, lambda _: broker.goes_on.set())
        assert not broker.was_given_up

    asyncio.run(story())


def test_a_failed_start_is_distinguished_from_a_signal() -> None:
    async def story() -> None:
        broker = Starting(ValueError("a reason"))
        with pytest.raises(broker_process._StartFailed, match="a reason"):
            await start(broker, lambda _: broker.goes_on.set())

    asyncio.run(story())


def test_a_plain_installation_brings_uvloop_and_a_broker_runs_on_it() -> None:
    plain = [each for each in requires("penstock") or () if "extra ==" not in each]
    assert any(each.startswith("uvloop") for each in plain), "the measured broker is the one that pip installs"
    assert broker_process._event_loop()[1] == "uvloop"


def test_the_limit_of_open_files_is_the_system_s() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
        raise_open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


FAULTS = """
import resource, threading
from penstock.cli.server.broker_process import keep_freed_memory

keep_freed_memory()

def work():
    for turn in range(25):
        if turn == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        buffers = [bytearray(1 << 20) for _ in range(4)]
        del buffers
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)

work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(environment: dict[str, str]) -> list[int]:
    ran = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    return [int(line) for line in ran.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    default = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    assert max(faults(default)) < 50, "4 MiB take 1,024 pages"
    assert min(faults({**default, "MALLOC_TRIM_THRESHOLD_": "131072"})) > 500, "what the user set stays"


def test_a_free_port_is_proposed_but_not_a_taken_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port_after(port - 1) != port
    assert free_port_after(65_535) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://localhost:1"), ("::1", "http://[::1]:1")],
)
def test_the_url_is_one_that_can_be_opened(host: str, url: str) -> None:
    assert http_url(host, 1) == url


def test_collections_of_garbage_are_bounded_while_a_broker_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert run.stdout.splitlines() == ["True 1 True", "stopped 0"]
