"""An executor dies by SIGKILL in the middle of a task: the job ends well, and the books add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.cluster import stories
from tests.spark.cluster.drivers import Driver
from tests.spark.cluster.standalone import Standalone
from tests.spark.cluster.test_standalone import log_of
from tests.spark.source_stories import fill
from tests.spark.tables.table_stories import VIEWS, once, places, rows, world_of

from penstock.testing import Broker


@pytest.mark.long
def test_a_load_whose_executor_dies_after_writing_its_files_has_everything_once(
    driver: Driver, broker: Broker, topic: str, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    with world_of(broker, topic, tmp_path) as world:
        world.views(1000)
        opened = world.make(schema=VIEWS, event_time="at")
        commits, landed = driver.tells(
            stories.load, broker.address, world.warehouse.storage.uri, commit_records=500, mark=str(mark)
        )
        assert mark.exists()
        assert commits >= 2
        assert landed == 1000
        assert places(rows(opened)) == once(world.log())
        # The files of the dead one lie there, and no commit names them.
        written = set(Path(opened.store.storage.local_path).rglob("*.parquet"))
        named = {Path(uri) for uri in opened.store.delta.file_uris()}
        assert named < written


@pytest.mark.long
def test_a_stream_whose_executor_dies_in_a_batch_has_everything_once(
    driver: Driver, broker: Broker, topic: str, tmp_path: Path
) -> None:
    for partition in (0, 1):
        fill(broker, topic, range(300), partition=partition)
    _, batches = driver.tells(
        stories.to_parquet, broker.address, topic, str(tmp_path), (1, 180), maxOffsetsPerTrigger="200"
    )
    assert (tmp_path / "killed").exists()
    assert batches == 3
    assert driver.tells(stories.parquet, str(tmp_path)) == log_of(broker, topic)


@pytest.mark.long
def test_a_write_whose_executor_dies_loses_nothing(
    driver: Driver, standalone: Standalone, broker: Broker, topic: str, tmp_path: Path
) -> None:
    driver.tells(stories.write, broker.address, topic, 2000, str(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    # Writing is at least once: what the dead one had sent is there twice, and nothing else.
    assert {int(value) for _, _, value in log_of(broker, topic)} == set(range(2000))
