"""Spark sessions with everything set: Java, Python, sockets, packages for executors, lag for others to see.

    from penstock.spark.session import session
    spark = session("views", master="local[4]")
    spark.read.format("penstock") ...

Rule: what the user has set is never changed, only what is missing is added. The same settings, as arguments and
variables of a process, make `penstock spark`. A master sc://host is a Spark Connect server: it has a Java, a Python and
this package of its own, so nothing is set for it and nothing is sent.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import ConfigError, MissingDependency
from penstock.spark.configured import is_local, told_by_environment
from penstock.spark.console_output import ConsoleOutput, quiet_settings
from penstock.spark.delivery import delivery_settings, make_archive
from penstock.spark.interpreter import DRIVER_VARIABLE, VARIABLE, cure
from penstock.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

# TCP between Spark and its Python costs two delayed acknowledgements of 40 ms a micro-batch.
_SETTINGS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_FINISHED: Final = "spark.penstock.registered"
_REMOTE: Final = "sc://"
# For every query that starts, and again for every task: see PythonStreamingSourceRunner of Spark's.
_SET_BY_SPARK: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def session(
    name: str | None = None,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    deliver: bool | None = None,
    visible_lag: bool = True,
    reads_topics: bool = True,
    console: ConsoleOutput | None = None,
) -> SparkSession:
    """A session, or the one there is. `deliver` sends this package to executors; without a word, if they are elsewhere.

    A master sc://host:port is a Spark Connect server. Without `reads_topics` the data source is not registered, which
    takes a second or two. `console` makes it a session that prints only errors. Raises NoJava, MissingDependency,
    ConfigError.
    """
    check_pyspark()
    given = dict(config or {})
    remote = connect_address(master, given)
    if remote is not None:
        chosen = _remote_settings(given, deliver)
    else:
        prepare(os.environ)
        if console is not None:
            told = {**told_by_environment(os.environ, spark_home()), **given}
            given |= quiet_settings(told, master or told.get("spark.master"), spark_home())
        chosen = missing_settings(given, master, deliver)
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    if name is not None:
        builder = builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if console is not None and remote is None:
        with console.held_back(_conf(name, master, chosen)):
            spark = builder.getOrCreate()
    else:
        spark = builder.getOrCreate()
    if reads_topics:
        finish(spark, visible_lag=visible_lag)
    return spark


def _conf(name: str | None, master: str | None, chosen: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    conf = SparkConf()
    named = {"spark.app.name": name, "spark.master": master, **chosen}
    return conf.setAll([(key, value) for key, value in named.items() if value is not None])


def connect_address(master: str | None, config: Mapping[str, str] | None = None) -> str | None:
    """The address of the Spark Connect server, if that is where a session would work."""
    if master is not None:
        return master if master.startswith(_REMOTE) else None
    told = {**told_by_environment(os.environ, spark_home()), **(config or {})}
    return told.get("spark.remote")


def missing_settings(given: Mapping[str, str], master: str | None, deliver: bool | None) -> dict[str, str]:
    """What is given, and what neither that nor Spark's own files and variables say."""
    told = {**told_by_environment(os.environ, spark_home()), **given}
    chosen = settings(told, master=master or told.get("spark.master"), deliver=deliver)
    return {key: value for key, value in chosen.items() if key in given or told.get(key) != value}


def _remote_settings(given: Mapping[str, str], deliver: bool | None) -> dict[str, str]:
    """What a client of Spark Connect may set. Raises MissingDependency, ConfigError."""
    check_connect()
    if deliver:
        raise ConfigError(
            "a Spark Connect server takes no package from its clients",
            hint="Install penstock where the server and its executors run, and leave deliver out",
        )
    return {key: value for key, value in given.items() if key not in ("spark.master", "spark.remote")}


def finish(spark: SparkSession, *, visible_lag: bool = True) -> None:
    """What a session can only be given when it is there: the data source, and lag for others to see.

    Spark finds the source by itself, but then runs it on executors by the path of the driver's Python, where they may
    have none. Registered, it runs by PYSPARK_PYTHON, as everything else does.
    """
    from penstock.spark.lag import publish
    from penstock.spark.source import PenstockDataSource

    if spark.conf.get(_FINISHED, None) is None:
        with _variables_there(spark):
            spark.dataSource.register(PenstockDataSource)
        spark.conf.set(_FINISHED, "true")
    if visible_lag:
        publish(spark)


@contextmanager
def _variables_there(spark: SparkSession) -> Iterator[None]:
    """What is registered meanwhile has a place for all variables that Spark sets for it later, whatever they are then.

    All queries of a session share the source's variables, in a Java map. The start of a query sets some, while tasks of
    another one, with the map in them, are written down. That fails (OptionalDataException) if a place is new.
    """
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect: the server has them
        yield
        return
    cure(context)
    variables = context.environment
    added = [name for name in _SET_BY_SPARK if name not in variables]
    variables.update(dict.fromkeys(added, ""))
    try:
        yield
    finally:
        for name in added:
            del variables[name]


def finish_always() -> None:
    """Every session that this process makes is finished like that."""
    from pyspark.sql import SparkSession

    original = SparkSession.Builder.getOrCreate
    if getattr(original, "finishes", False):
        return

    def get_or_create(builder: Any) -> Any:
        spark = original(builder)
        finish(spark)
        return spark

    get_or_create.finishes = True  # type: ignore[attr-defined]
    SparkSession.Builder.getOrCreate = get_or_create  # type: ignore[method-assign, assignment]


def settings(given: Mapping[str, str], *, master: str | None, deliver: bool | None = None) -> dict[str, str]:
    """What is given, and what is missing."""
    chosen = {**_SETTINGS, **given}
    if deliver if deliver is not None else not is_local(master):
        chosen |= delivery_settings(make_archive(_archives()), given)
    return chosen


def prepare(environment: dict[str, str] | os._Environ[str]) -> Java:
    """Sets the variables by which Spark finds Java and Python. Raises NoJava."""
    java = find_java(environment)
    if java.home is not None:
        environment["JAVA_HOME"] = java.home
    environment.setdefault(VARIABLE, sys.executable)
    environment.setdefault(DRIVER_VARIABLE, sys.executable)
    return java


def arguments(given: Mapping[str, str]) -> list[str]:
    """Settings as spark-submit takes them."""
    return [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]


def submit_variable(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Settings as the variable that a plain Python program's session takes them from, before what it has already."""
    present = environment.get(_ARGUMENTS, "pyspark-shell")
    return f"{shlex.join(arguments(given))} {present}"


def spark_home() -> Path:
    """Where pyspark keeps its programs; raises MissingDependency."""
    check_pyspark()
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path()


def check_pyspark() -> None:
    """Raises MissingDependency, which names what to install."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "Spark", "spark")


def check_connect() -> None:
    """Raises MissingDependency, which names what to install for Spark Connect."""
    for module, package in (
        ("grpc", "grpcio"),
        ("grpc_status", "grpcio-status"),
        ("google.rpc", "googleapis-common-protos"),
    ):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise MissingDependency(package, "Spark Connect", "connect")


def _archives() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(cache, "penstock", "packages")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"penstock-packages-{os.getuid()}"
    return folder
