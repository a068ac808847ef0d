"""Both kernels for the tests of records: they must behave the same."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.demands import lacking

from penstock.records import arrow, batch, python_kernel

try:
    compiled: ModuleType | None = importlib.import_module("penstock.records._kernel")
except ImportError:
    compiled = None


def the_compiled_kernel() -> ModuleType:
    if compiled is None:
        lacking("kernel", "the compiled kernel is not built here")
    return compiled


@pytest.fixture(scope="module", params=["compiled", "python"])
def loops(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A kernel, which `penstock.records.batch` and `.arrow` use while the test runs."""
    chosen = the_compiled_kernel() if request.param == "compiled" else python_kernel
    with pytest.MonkeyPatch.context() as patch:
        for user in (batch, arrow):
            for name in python_kernel.__all__:
                if hasattr(user, name) and hasattr(chosen, name):
                    patch.setattr(user, name, getattr(chosen, name))
        yield chosen


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    """The compiled kernel, to be compared with the Python one."""
    return the_compiled_kernel()
