"""A driver in its own process: a process has one session, and this one may have another kind.

    driver = Driver(classic, url, str(folder))
    assert driver.tells(stories.count, address, topic) == 10

Stories are functions of a module that get the session and plain values. What they return comes back, or why they
failed. One driver serves many stories: starting one costs more than most of them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tests.spark.cluster.standalone import SETTINGS
from tests.timeouts import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")
_OF_ANOTHER = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_REMOTE")
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_session: list[SparkSession] = []


class StoryFailed(Exception):
    """What went wrong in the driver, as text: Spark's errors do not travel."""


class Driver:
    """A process with a session; ended by `stop`."""

    def __init__(self, start: Callable[..., SparkSession], *args: Any) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            self._pool.submit(_begin, start, args).result(PATIENCE_S)
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise

    def tells(self, story: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the story returns. Raises StoryFailed."""
        return self.begins(story, *args, **kwargs).result(PATIENCE_S)

    def begins(self, story: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """What the story will return; it is under way."""
        return self._pool.submit(_run, story, args, kwargs)

    def stop(self) -> None:
        self._pool.submit(_end).result(PATIENCE_S)
        self._pool.shutdown()


def classic(master: str, folder: str, more: Mapping[str, str] = NO_SETTINGS) -> SparkSession:
    """A session of `penstock.spark.session`, for executors that have this environment; with more settings."""
    from penstock.spark.session import session

    for name in _OF_ANOTHER:
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    places = {
        "spark.sql.warehouse.dir": str(Path(folder) / "warehouse"),
        "spark.local.dir": str(Path(folder) / "local"),
    }
    spark = session("penstock-tests", master=master, config={**SETTINGS, **places, **more}, deliver=False)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def remote(url: str) -> SparkSession:
    """A session of `penstock.spark.session` with a Spark Connect server."""
    from penstock.spark.session import session

    for name in _OF_ANOTHER:
        os.environ.pop(name, None)
    return session(master=url)


def _begin(start: Callable[..., SparkSession], args: tuple[Any, ...]) -> None:
    _session.append(start(*args))


def _run(story: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return story(_session[0], *args, **kwargs)
    except Exception:  # noqa: BLE001 - reported to the test, as text
        raise StoryFailed(traceback.format_exc()) from None


def _end() -> None:
    _session.pop().stop()
