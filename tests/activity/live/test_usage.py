"""Memory and CPU of processes, as the system reports them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.activity.live.runs import UNTIL_THE_PIPE_CLOSES, script
from tests.timeouts import until

from penstock.activity.live.usage import UsageSampler
from penstock.runtime.supervisor import LoggedChild


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not report it")
def test_usage_counts_descendants_and_leaves_out_processes_that_do_not_run(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    text = (
        "import subprocess, sys\n"
        f"with subprocess.Popen([sys.executable, '-c', {UNTIL_THE_PIPE_CLOSES!r}]):\n"
        "    while True: pass\n"
    )
    child = LoggedChild(script(text), log)
    child.start()
    try:
        until(lambda: "\nup\n" in log.read_text(), "the child is up")
        usages = UsageSampler()
        first = usages.sample({"child": child.pid, "none": None, "gone": 2**22 + 1}, 0.0)
        assert list(first) == ["child"]
        assert first["child"].processes == 2
        assert first["child"].memory_bytes > 4 << 20
        until(lambda: bool(usages.sample({"child": child.pid}, 1.0)["child"].cores), "it uses CPU")
    finally:
        child.kill()


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert UsageSampler(tmp_path / "nothing").sample({"me": os.getpid()}, 0.0) == {}
