"""What a machine may lack, so that tests are skipped there; `PENSTOCK_DEMAND=kernel,mounts` makes them fail instead.

Continuous integration demands everything (`.ci/run`): a run without a network to cut is not green.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

import pytest

VARIABLE: Final = "PENSTOCK_DEMAND"
NEEDS: Final = {
    "connect": "the packages of Spark Connect",
    "kernel": "the compiled kernel",
    "mounts": "permission to mount a file system",
    "namespaces": "network namespaces, to cut connections",
}


class UnknownDemand(Exception):
    """A demanded name that no test knows."""


def demanded() -> set[str]:
    """The needs that must be met."""
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    unknown = sorted(names - set(NEEDS))
    if unknown:
        raise UnknownDemand(f"{VARIABLE} names {', '.join(unknown)}; the needs are {', '.join(NEEDS)}")
    return names


def lacking(need: str, reason: str) -> NoReturn:
    """The test cannot run, because this machine does not have what it needs: skip it, or fail if it is demanded."""
    if need not in NEEDS:
        raise UnknownDemand(f"{need}; the needs are {', '.join(NEEDS)}")
    if need in demanded():
        pytest.fail(f"{VARIABLE} has {need} ({NEEDS[need]}): {reason}", pytrace=False)
    pytest.skip(reason)
