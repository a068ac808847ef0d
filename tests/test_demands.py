"""What is demanded is not skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults import namespaces
from benchmarks.faults.namespaces import NoNamespaces
from tests import demands
from tests.demands import NEEDS, VARIABLE, UnknownDemand, demanded, lacking
from tests.faults import test_network_cut, test_three_hosts
from tests.records import conftest as records
from tests.spark.tables import test_delta_full_disk

_ROOT = Path(__file__).resolve().parents[1]


def test_a_need_is_skipped_unless_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(pytest.skip.Exception, match="not built"):
        lacking("kernel", "not built")
    monkeypatch.setenv(VARIABLE, "mounts")
    with pytest.raises(pytest.skip.Exception, match="not built"):
        lacking("kernel", "not built")
    monkeypatch.setenv(VARIABLE, "mounts, kernel,")
    with pytest.raises(pytest.fail.Exception, match=r"PENSTOCK_DEMAND has kernel .*: not built"):
        lacking("kernel", "not built")


def test_a_mistyped_demand_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownDemand, match="kernels"):
        lacking("kernels", "not built")
    monkeypatch.setenv(VARIABLE, "kernels")
    with pytest.raises(UnknownDemand, match="PENSTOCK_DEMAND names kernels; the needs are connect, kernel"):
        demanded()
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, cwd=_ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names kernels" in done.stderr


@pytest.mark.parametrize("module", [test_network_cut, test_three_hosts])
def test_a_demanded_network_cut_is_not_skipped(module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> None:
        raise NoNamespaces("unshare is missing")

    monkeypatch.setattr(namespaces, "in_a_namespace", none)
    again = getattr(module, "_run_again_in_a_namespace")  # noqa: B009 - for both modules
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(pytest.skip.Exception, match="unshare is missing"):
        again(tmp_path)
    monkeypatch.setenv(VARIABLE, "namespaces")
    with pytest.raises(pytest.fail.Exception, match="unshare is missing"):
        again(tmp_path)


def test_a_demanded_kernel_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "compiled", None)
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(pytest.skip.Exception):
        records.the_compiled_kernel()
    monkeypatch.setenv(VARIABLE, "kernel")
    with pytest.raises(pytest.fail.Exception, match="kernel is not built here"):
        records.the_compiled_kernel()


def test_a_demanded_file_system_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 32, "", "mount: permission denied")

    monkeypatch.setattr(subprocess, "run", refused)
    monkeypatch.setenv(VARIABLE, "mounts")
    with pytest.raises(pytest.fail.Exception, match="permission denied"):
        test_delta_full_disk.mount_small(tmp_path)


def test_continuous_integration_demands_every_need() -> None:
    script = (_ROOT / ".ci" / "run").read_text()
    found = re.search(rf"^export {VARIABLE}=(\S+)$", script, re.MULTILINE)
    assert found is not None
    assert set(found[1].split(",")) == set(demands.NEEDS)
    assert found.start() < script.index("make test")


def test_every_need_is_used() -> None:
    used = {
        name
        for path in (_ROOT / "tests").rglob("*.py")
        for name in re.findall(r"(?<!\w)lacking\(\s*\"(\w+)\"", path.read_text())
        if path != Path(__file__)
    }
    assert used == set(NEEDS)
