"""Both kernels for the tests of records: they must behave the same."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from penstock.records import arrow, batch, python_kernel

try:
    compiled: ModuleType | None = importlib.import_module("penstock.records._kernel")
except ImportError:
    compiled = None

not_built = pytest.mark.skipif(compiled is None, reason="the compiled kernel is not built here")


@pytest.fixture(scope="module", params=[pytest.param("compiled", marks=not_built), "python"])
def loops(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A kernel, which `penstock.records.batch` and `.arrow` use while the test runs."""
    chosen = compiled if request.param == "compiled" and compiled is not None else python_kernel
    with pytest.MonkeyPatch.context() as patch:
        for user in (batch, arrow):
            for name in python_kernel.__all__:
                if hasattr(user, name) and hasattr(chosen, name):
                    patch.setattr(user, name, getattr(chosen, name))
        yield chosen


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    """The compiled kernel, to be compared with the Python one."""
    if compiled is None:
        pytest.skip("the compiled kernel is not built here")
    return compiled
