"""`penstock up`: a broker to try."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.running import CLEAN_MARKER, Running, produce
from tests.ports import free_port
from tests.timeouts import PATIENCE_S


def test_up_shows_where_it_is_and_its_snippets_work(tmp_path: Path) -> None:
    port = free_port()
    with Running("up", "--port", str(port), "--http-port", str(free_port()), cwd=tmp_path) as broker:
        broker.until("Ctrl-C to stop")
        assert f"127.0.0.1:{port}" in broker.text
        assert f"{tmp_path / 'penstock-data'} (no topics yet)" in broker.text
        assert "/metrics" in broker.text
        produced, consumed = (_snippet(broker.said, title) for title in ("Produce from Python", "Consume from Python"))
        subprocess.run([sys.executable, "-c", produced], check=True, timeout=PATIENCE_S, capture_output=True)
        with subprocess.Popen([sys.executable, "-uc", consumed], stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "0 b'hello'\n"
            consumer.kill()
        assert broker.stop(signal.SIGINT) == 0
    assert broker.said[-1] == f"Stopped. The data is kept in {tmp_path / 'penstock-data'}"
    assert (tmp_path / "penstock-data" / CLEAN_MARKER).exists()


def test_up_again_finds_its_topics(tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path / "data", "--port", "0", "--http-port", "0")
    for expected in ("no topics yet", "1 topic"):
        with Running("up", *options) as broker:
            address = broker.until("Kafka clients").split()[-1]
            assert expected in broker.until("Data ")
            produce(address, "t", b"one")
            assert broker.stop() == 0
        assert "http://" not in broker.text


def _snippet(said: list[str], title: str) -> str:
    begin = next(number for number, line in enumerate(said) if line.startswith(title)) + 1
    return "\n".join(said[begin : said.index("", begin)])
