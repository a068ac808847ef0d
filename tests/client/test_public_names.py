"""What `import penstock` gives, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import penstock
from penstock.client import errors as client_errors


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(penstock, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        penstock.nonsense  # noqa: B018


def test_every_error_of_the_clients_has_a_public_name() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(client_errors, inspect.isclass)
        if kind.__module__ == client_errors.__name__
    }
    assert kinds <= set(penstock.errors.__all__)
    for name in kinds:
        assert getattr(penstock.errors, name) is getattr(client_errors, name)


def test_importing_the_package_imports_nothing_of_weight() -> None:
    script = "import sys; before = set(sys.modules); import penstock; print(sorted(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = eval(output)
    assert [name for name in loaded if name.startswith("penstock.")] == []
    assert not {"asyncio", "msgspec", "ssl", "socket"} & set(loaded)
