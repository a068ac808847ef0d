"""Whatever is killed, nothing is lost and nothing is there twice: mirror processes and brokers, under load.

PENSTOCK_KILLS=20 PENSTOCK_KILLS_SEED=1 make test-long ARGS="-k mirror_kills" repeats the long run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.mirror.kill_stories import TOPIC, Site, ThreeBrokers, kills_wanted, our_broker

from penstock.client.admin import Admin
from penstock.testing.zookeeper import ZooKeeperServer

KILLS = kills_wanted(8)
pytestmark = [pytest.mark.long, pytest.mark.timeout(300 + 15 * KILLS)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def new_site(folder: Path, stack: ExitStack, more: str = "") -> Site:
    return Site(folder, stack, our_broker("source", folder), our_broker("target", folder), more)


def test_same_offsets_whatever_is_killed(tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack)
    site.run(KILLS)
    site.check_identical()


def test_same_offsets_with_transactions_whatever_but_the_target_is_killed(tmp_path: Path, stack: ExitStack) -> None:
    """A killed coordinator of the target may write a marker twice, which stops a partition: see decision 023."""
    site = new_site(tmp_path, stack)
    site.run(KILLS, [site.source, *site.mirrors], transactions=True)
    site.check_identical()


def test_same_offsets_between_clusters_whose_brokers_are_killed_one_by_one(tmp_path: Path, stack: ExitStack) -> None:
    """Leaders move on both sides."""
    zookeeper = stack.enter_context(ZooKeeperServer()).connect
    source, target = (ThreeBrokers(name, tmp_path, zookeeper) for name in ("source", "target"))
    site = Site(tmp_path, stack, source, target)
    site.run(KILLS)
    site.check_identical()
    for cluster in (source, target):
        with Admin(cluster.address) as admin:
            assert all(len(each.replicas) == 3 for each in admin.describe_topic(TOPIC).partitions)


def test_mapped_topic_has_every_record_once_whatever_is_killed(tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, 'mode = "mapped"')
    site.run(KILLS, transactions=True)
    site.check_mapped()


def test_shared_topic_has_every_record_once_whatever_is_killed(tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, 'mode = "shared"\nrename = "all"')
    site.run(KILLS, transactions=True)
    site.check_shared("all")


def test_same_offsets_after_one_kill_of_each(tmp_path: Path, stack: ExitStack) -> None:
    """The short one: a mirror process, then the target."""
    site = new_site(tmp_path, stack)
    site.run_with([site.mirrors[0], site.target], lambda: 0.0)
    site.check_identical()
