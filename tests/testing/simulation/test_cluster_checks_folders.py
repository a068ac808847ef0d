"""Replicas that are in two data folders of a broker, as the checks at the end of a run find them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.cluster_checks import doubles


def test_a_replica_is_in_one_data_folder_and_copies_deleted_and_missing_folders_do_not_count() -> None:
    files = SimulatedFiles()
    for path in ("/a", "/a/t-0", "/a/t-1", "/b", "/b/t-2", "/b/t-1.f00.future", "/b/t-0.f00-delete", "/b/t-10"):
        files.make_folder(path)
    node = SimpleNamespace(name="broker-0", files=files, data_folders=("/a", "/b", "/never-made"))
    cluster: Any = SimpleNamespace(nodes=[node])
    assert doubles(cluster) == []
    files.make_folder("/b/t-1")
    assert doubles(cluster) == ["broker-0 has t-1 in 2 data folders"]
