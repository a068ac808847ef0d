"""An operator's own retention policy, named in the settings: bad names, policies that fail, and one that works."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, ConfigResource, Producer, TopicSpec
from penstock.broker.settings import InvalidSettings, settings_from
from penstock.broker.settings.retention_class import GuardedPolicies
from penstock.client.errors import PenstockError
from penstock.log.retention import LogView, PartitionRetention, SegmentInfo
from penstock.testing import Broker

NAME = "log.retention.policy.class"
SOURCE = """
CALLS = []
LIMIT = 3

class KeepThreeSegments:
    def __init__(self, partition):
        self.partition = partition

    def expired(self, segments, log, now_ms):
        CALLS.append(self.partition)
        return max(0, len(segments) - 3)

def made(partition):
    return KeepThreeSegments(partition)

class NotAPolicy:
    pass
"""


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module of policies that can be imported."""
    name = f"policies_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


# --- names


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (
            "no_such_module_at_all:Policy",
            "no module named 'no_such_module_at_all'; install it, or add",
        ),
        ("{module}:Missing", "has no 'Missing'"),
        ("{module}:LIMIT", "is not a class or function, but 3"),
        ("{module}:NotAPolicy", "has no method expired(segments, log, now_ms)"),
        ("{module}_broken:Policy", "importing {module}_broken failed: RuntimeError('no licence')"),
        ("kafka.log.KeepDaily", "is not module:name"),
        ("a:b:c", "is not module:name"),
        ("../x:y", "is not module:name"),
        (":x", "is not module:name"),
    ],
)
def test_a_name_that_cannot_be_used_stops_the_start_and_is_named(policies: str, written: str, reason: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_from({NAME: written.format(module=policies)})
    (problem,) = caught.value.problems
    assert (problem.name, problem.where) == (NAME, "--set")
    assert reason.format(module=policies) in problem.reason


def test_without_the_setting_kafkas_policies_apply() -> None:
    assert settings_from({}).log_retention_policy_class is None
    assert settings_from({NAME: ""}).log_retention_policy_class is None


@pytest.mark.parametrize("cluster_wide", [True, False])
def test_it_cannot_be_changed_while_the_broker_runs(policies: str, cluster_wide: bool) -> None:
    with pytest.raises(InvalidSettings, match="cannot be changed while the broker runs"):
        settings_from({}).with_changes({NAME: f"{policies}:made"}, cluster_wide=cluster_wide)


# --- policies that fail

PARTITION = PartitionRetention("views", 1, 1000, -1)
LOG = LogView(100, 0, 10)
SEGMENTS = [SegmentInfo(0, 10, 100, 5)]


class Failing:
    def __init__(self, partition: PartitionRetention) -> None:
        if partition.topic == "views":
            raise OSError("the rules are on another machine")

    def expired(self, segments: object, log: object, now_ms: int) -> int:
        return 0


class Answering:
    answer: object = None

    def __init__(self, partition: PartitionRetention) -> None:
        pass

    def expired(self, segments: object, log: object, now_ms: int) -> int:
        return self.answer  # type: ignore[return-value]


def test_a_policy_that_raises_deletes_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert GuardedPolicies("mine:Failing", Failing)(PARTITION).expired(SEGMENTS, LOG, 9) == 0
    assert "policy=mine:Failing partition=views-1" in caplog.text
    assert "the rules are on another machine" in caplog.text


@pytest.mark.parametrize("answer", [None, "1", 1.0, True])
def test_an_answer_that_is_not_a_number_deletes_nothing(caplog: pytest.LogCaptureFixture, answer: object) -> None:
    policy = type("Odd", (Answering,), {"answer": answer})
    assert GuardedPolicies("mine:Odd", policy)(PARTITION).expired(SEGMENTS, LOG, 9) == 0
    assert f"returned={answer!r}" in caplog.text


def test_a_slow_policy_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    policy = type("Slow", (Answering,), {"answer": 1})
    times = iter([0.0, 0.2])
    with caplog.at_level(logging.WARNING):
        assert GuardedPolicies("mine:Slow", policy, lambda: next(times))(PARTITION).expired(SEGMENTS, LOG, 9) == 1
    assert "ms=200" in caplog.text


# --- in a broker


def start(broker: Broker, topic: str) -> int:
    partition = broker.broker.replicas.get(topic, 0)
    assert partition is not None
    return partition.log.log_start_offset


@pytest.mark.parametrize("name", ["KeepThreeSegments", "made"])
def test_a_broker_deletes_what_the_policy_says_and_nothing_by_time_or_size(policies: str, name: str) -> None:
    settings = {NAME: f"{policies}:{name}", "log.retention.check.interval.ms": "50", "log.segment.delete.delay.ms": "0"}
    with Broker(settings=settings) as broker, Admin(broker.address) as admin:
        admin.create_topic(TopicSpec("views", 1, config={"segment.bytes": 300, "retention.ms": 1}))
        admin.create_topic(TopicSpec("state", 1, config={"segment.bytes": 300, "cleanup.policy": "compact"}))
        with Producer(broker.address) as producer:
            for number in range(10):
                for topic in ("views", "state"):
                    producer.send(topic, bytes(150), key=str(number), timestamp_ms=1).result(PATIENCE_S)
        until(lambda: start(broker, "views") == 7, "the policy keeps three segments")
        assert start(broker, "state") == 0
    calls = __import__(policies).CALLS
    assert ("views", 0, 1, -1) in {tuple(call) for call in calls}
    assert "state" not in {call.topic for call in calls}


def test_a_client_cannot_set_it(policies: str) -> None:
    with Broker() as broker, Admin(broker.address) as admin:
        for resource in (ConfigResource.broker(0), ConfigResource.broker(None)):
            with pytest.raises(PenstockError, match="cannot be changed while the broker runs"):
                admin.alter_config(resource, {NAME: f"{policies}:made"})
        with pytest.raises(PenstockError, match="topics have no such setting"):
            admin.create_topic(TopicSpec("views", 1, config={NAME: f"{policies}:made"}))
