"""Creates `.venv` with the pinned dependencies and the compiled kernel. `make setup` runs it with any Python 3.11+.

It uses the standard library only, and needs Python, pip's registry and a writable folder. A digest of its inputs is
kept, so a second run returns at once.

The kernel is built by the system's C compiler; if none works, by `ziglang` from PyPI; if that fails too, Penstock runs
on its plain-Python twin, and this script says so.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".penstock-setup"
INPUTS = ["pyproject.toml", "constraints.txt", "setup.py", "tools/bootstrap.py"]
KERNEL_SOURCES = "src/penstock/records/_kernel*.p[yx][xi]"
MINIMUM = (3, 11)
EXTRAS = os.environ.get("PENSTOCK_EXTRAS", "test,spark,connect,console")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def digest() -> str:
    state = hashlib.sha256(f"{sys.version}|{EXTRAS}|{os.environ.get('PENSTOCK_COMPILER', '')}|{ROOT}".encode())
    for path in [*(ROOT / name for name in INPUTS), *sorted(ROOT.glob(KERNEL_SOURCES))]:
        state.update(path.read_bytes())
    return state.hexdigest()


def pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **(environment or {})})


def compiler_works(command: list[str]) -> str | None:
    """None when `command` turns a source that includes Python.h into a shared object; else why it does not."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return (int)Py_IsInitialized(); }\n")
        include = sysconfig.get_path("include")
        full = [
            *command,
            "-shared",
            "-fPIC",
            f"-I{include}",
            str(source),
            "-o",
            str(Path(folder, "probe.so")),
        ]
        try:
            run = subprocess.run(full, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if run.returncode == 0:
            return None
        return (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[0]


def find_compiler() -> list[str] | None:
    """The command of a C compiler that works here, or None. PENSTOCK_COMPILER=system|zig|none narrows it."""
    wanted = os.environ.get("PENSTOCK_COMPILER", "")
    if wanted not in {"", "system", "zig", "none"}:
        raise SystemExit(f"PENSTOCK_COMPILER must be system, zig or none, not {wanted!r}")
    if wanted in {"", "system"}:
        candidates = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
        for candidate in candidates:
            trouble = compiler_works(shlex.split(candidate))
            if trouble is None:
                say(f"kernel: compiling with the system's {candidate}")
                return shlex.split(candidate)
            say(f"kernel: {candidate} does not work here ({trouble})")
    if wanted in {"", "zig"}:
        say("kernel: no system compiler; installing ziglang from PyPI as one (large, once)")
        try:
            pip("install", "-q", "-c", "constraints.txt", "ziglang")
        except subprocess.CalledProcessError as error:
            say(f"kernel: ziglang could not be installed ({error})")
            return None
        zig = [str(PYTHON), "-m", "ziglang", "cc"]
        trouble = compiler_works(zig)
        if trouble is None:
            say("kernel: compiling with ziglang")
            return zig
        say(f"kernel: ziglang does not work here ({trouble})")
    return None


def build_environment(compiler: list[str] | None) -> dict[str, str]:
    if compiler is None:
        return {"PENSTOCK_KERNEL_BUILD": "skip"}
    command = shlex.join(compiler)
    return {"PENSTOCK_KERNEL_BUILD": "auto", "CC": command, "LDSHARED": f"{command} -shared"}


def main() -> None:
    if sys.version_info < MINIMUM:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"setup: Penstock needs Python 3.11 or newer; this is {found}. Try: make PYTHON=python3.12 ..."
        )
    wanted = digest()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    if not PYTHON.exists():
        say(f"making .venv with Python {'.'.join(map(str, sys.version_info[:3]))}")
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        except subprocess.CalledProcessError:
            raise SystemExit(
                "setup: this Python cannot make virtual environments; on Debian: apt install python3-venv"
            ) from None
    STAMP.unlink(missing_ok=True)
    say(f"installing the pinned set from PyPI (extras: {EXTRAS})")
    pip("install", "-q", "-c", "constraints.txt", "setuptools", "cython")
    compiler = find_compiler()
    for stale in Path(ROOT, "src/penstock/records").glob("_kernel*.so"):
        stale.unlink()
    pip(
        "install", "-q", "-c", "constraints.txt", "--no-build-isolation", "-e", f".[{EXTRAS}]",
        environment=build_environment(compiler),
    )  # fmt: skip
    probe = "from penstock.records import KERNEL; print(KERNEL)"
    kernel = subprocess.run([str(PYTHON), "-c", probe], check=True, capture_output=True, text=True, cwd=ROOT)
    if kernel.stdout.strip() == "compiled":
        say("kernel: compiled")
    else:
        say("kernel: NOT COMPILED. Penstock runs on its plain-Python twin: the same results, many times slower.")
    STAMP.write_text(wanted)
    say("done")


if __name__ == "__main__":
    main()
