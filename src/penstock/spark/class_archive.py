"""An archive of the classes that a local Spark loads, so that its JVM starts with half of the CPU time.

Loading and verifying some fifteen thousand classes is most of what the start of a JVM does. Java can map them from a
file instead (class data sharing). It depends on the Java, on Spark's jars and on the program, so it is made once
on each machine, from a run: the first JVM writes the names of the classes that it loads, and a process of the lowest
priority makes the archive from them. Later JVMs use it. A JVM that cannot use it ignores it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_KEPT: Final = 2
"""Archives of other versions of Java and Spark that stay: each has 200 MB."""
_UNFINISHED: Final = (".classes", ".list", ".unfinished")
_LEAST_CLASSES: Final = 5_000
_STOP_S: Final = 2.0
_LOWEST: Final = 19
# Another kind of JVM does not know the options, and starts without them.
_LENIENT: Final = "-XX:+IgnoreUnrecognizedVMOptions"


class ClassArchive:
    """The archive for a Java and a Spark in a folder."""

    def __init__(self, folder: Path, java: Path, jars: Path) -> None:
        self._java = java
        self._folder = folder
        self.path = folder / f"spark-{_digest(java, jars)}.jsa"
        self._classes = self.path.with_suffix(f".{os.getpid()}.classes")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    def java_options(self) -> str:
        """Options for a JVM: to use the archive, or to write down what it has to contain. Raises OSError."""
        if self.exists:
            return f"{_LENIENT} -XX:SharedArchiveFile={self.path}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_left_behind()
        return f"{_LENIENT} -XX:DumpLoadedClassList={self._classes}"

    def start_making(self, class_path: str) -> bool:
        """Starts to make the archive from the classes that were loaded until now. Returns whether it did."""
        if self.exists or self._process is not None:
            return False
        # The JVM may be in the middle of a line.
        loaded = self._loaded()
        complete = loaded[: loaded.rfind(b"\n") + 1]
        if complete.count(b"\n") < _LEAST_CLASSES:
            return False
        listed = self._classes.with_suffix(".list")
        listed.write_bytes(complete)
        self._process = subprocess.Popen(
            [
                str(self._java), "-Xshare:dump", f"-XX:SharedClassListFile={listed}", "-XX:+UseSerialGC",
                f"-XX:SharedArchiveFile={self._unfinished}", "-cp", class_path,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST)
        return True

    def finish(self) -> bool:
        """Puts a complete archive in its place. Does not block; returns whether it did."""
        process = self._process
        if process is None or process.poll() != 0 or not self._unfinished.is_file():
            return False
        self._process = None
        os.replace(self._unfinished, self.path)
        others = [each for each in self._folder.glob("spark-*.jsa") if each != self.path]
        for old in sorted(others, key=lambda each: each.stat().st_mtime_ns)[: max(len(others) - _KEPT + 1, 0)]:
            old.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Ends what is being made, and removes what is not complete."""
        with contextlib.suppress(OSError):
            self.finish()
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a read of a disk that does not answer
                process.wait(_STOP_S)
        for suffix in _UNFINISHED:
            each = self._classes.with_suffix(suffix)
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)

    def _remove_left_behind(self) -> None:
        """Files of processes that were killed."""
        for each in self._folder.glob("spark-*.*.*"):
            pid = each.suffixes[-2].removeprefix(".")
            if each.suffix in _UNFINISHED and pid.isdigit() and not Path("/proc", pid).exists():
                each.unlink(missing_ok=True)

    @property
    def _unfinished(self) -> Path:
        return self._classes.with_suffix(".unfinished")

    def _loaded(self) -> bytes:
        try:
            return self._classes.read_bytes()
        except OSError:
            return b""


def archive_folder(environment: Mapping[str, str]) -> Path:
    """Where this user's archives are."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home(), ".cache"))
    return Path(cache, "penstock", "java")


def can_be_in_options(folder: Path) -> bool:
    """Whether an option may name it: Spark splits options as a shell does."""
    return not any(letter.isspace() or letter in "'\"\\" for letter in str(folder))


def java_command(environment: Mapping[str, str]) -> Path | None:
    """The java that Spark's scripts run."""
    home = environment.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH", os.defpath))
    return Path(found) if found else None


def _digest(java: Path, jars: Path) -> str:
    digest = hashlib.sha256()
    for path in [java.resolve(), *sorted(jars.glob("*.jar"))]:
        with contextlib.suppress(OSError):
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    with contextlib.suppress(OSError):
        digest.update((java.resolve().parent.parent / "release").read_bytes())
    return digest.hexdigest()[:16]
