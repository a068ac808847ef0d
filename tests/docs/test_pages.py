"""The README, the pages and the decisions are true to the tree: length, programs, links, file names, template."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
PAGES = [
    page
    for page in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name != "benchmarks.md"  # generated; its results need not be kept
]
FIGURES_MAX = 12
"""Lines of the generated block of figures at its longest."""


def test_the_readme_has_at_most_100_lines_even_with_all_figures() -> None:
    text = README.read_text()
    block = re.search(r"<!-- figures: begin.*?\n(.*?)<!-- figures: end -->", text, re.DOTALL)
    assert block is not None
    assert len(text.splitlines()) - len(block[1].splitlines()) + FIGURES_MAX <= 100


def test_the_python_program_of_the_readme_runs() -> None:
    program = next(
        code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "import" in code
    )
    assert "  # until Ctrl-C\n" in program
    with Broker() as broker:
        ended = program.replace("localhost:9092", broker.address).rstrip() + "\n        break\n"
        done = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "0 b'hello from Python'\n"), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_file_names_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    missing = [target for target in links if not (page.parent / target).exists()]
    names = set(re.findall(r"(?<![\w/.-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b", text))
    folders = (ROOT, ROOT / "src" / "penstock", ROOT / "src" / "penstock" / "testing")
    missing += [name for name in names if not any((folder / name).exists() for folder in folders)]
    assert missing == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_follows_the_template(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem[:3]}: ")
    assert re.search(
        r"^Date: \d{4}-\d\d-\d\d\. Status: (accepted|superseded by \[\d{3}\]\(.*\))\.$", text, re.MULTILINE
    )
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections == ["Context", "Decision", "Measurements", "Rejected alternatives"]
    title = text.partition("\n")[0].removeprefix("# ")
    assert f"[{title}]({page.name})" in (page.parent / "README.md").read_text()
