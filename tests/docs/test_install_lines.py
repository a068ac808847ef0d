"""What the pages tell a newcomer to type works with what is there: install lines, extras, addresses, columns."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_install_lines_are_about_the_clone_and_its_extras(page: Path) -> None:
    """The package is not on PyPI, so its name alone installs nothing, or something else."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in page.read_text().splitlines():
        for asked in re.findall(r"pip install +['\"]?([^'\"`\s]+)", line):
            assert not asked.startswith("penstock"), line
            named = re.search(r"\[(.*)\]", asked)
            assert named is None or set(named[1].split(",")) <= extras.keys(), line


def test_the_address_of_the_examples_is_defined_before_it_is_used() -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    assert text.index("`ADDRESS` in what follows is") < text.index("(ADDRESS")


def test_columns_that_are_read_are_those_of_the_table_that_is_declared() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    declared = re.search(r'schema = "(.*)"', text)
    assert declared is not None
    columns = {part.split()[0] for part in declared[1].split(",")}
    reading = text[text.index("## Reading tables elsewhere") : text.index("## On a cluster")]
    read = re.findall(r'col\("(\w+)"\)', reading)
    for listed in re.findall(r"columns=\[(.*?)\]", reading):
        read += re.findall(r'"(\w+)"', listed)
    assert len(read) >= 3
    assert set(read) <= columns
