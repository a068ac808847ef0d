"""Whole runs: a real broker and real clients under faults, again from the same seed, and with safeguards off."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import weakref
from typing import Any

import pytest

from penstock.client.cluster_metadata import TopicPartition
from penstock.testing.simulation import __main__ as command
from penstock.testing.simulation.__main__ import main
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.faults import parse_schedule
from penstock.testing.simulation.history import History, Sent, commit_findings, findings
from penstock.testing.simulation.observer import LATE_REJECTION, Observer, observed
from penstock.testing.simulation.run import SETTINGS, Plan, deterministic, simulate
from penstock.testing.simulation.scheduler import Scheduler, Trace
from penstock.testing.simulation.workload import JOURNAL, new_consumer, new_producer
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.heartbeat import HeartbeatResponse


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(seed: int) -> None:
    report = simulate(seed)
    assert not report.problem, "\n".join([*report.last_lines, report.schedule, report.problem])
    assert report.acknowledged > 50
    assert report.faults.total() > 3


def test_a_seed_is_the_same_run_every_time_and_another_seed_another() -> None:
    first, again, other = simulate(7), simulate(7), simulate(8)
    assert first == again
    assert first.trace_hash != other.trace_hash


@pytest.mark.parametrize("seed", [0, 3])
def test_a_run_that_ends_well_leaves_nothing_of_itself_in_the_process(seed: int) -> None:
    """In seed 3 a consumer is finalized while it looks for its position; it must start no task then."""
    before = weakref.WeakSet(each for each in gc.get_objects() if isinstance(each, Scheduler))
    assert not simulate(seed).problem
    assert not [each for each in gc.get_objects() if isinstance(each, Scheduler) and each not in before]


def test_many_seeds_are_run_by_processes_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(command, "_SEEDS_PER_PROCESS", 2)
    assert main(["--seeds", "3", "--jobs", "2", "--brokers", "1", "--schedule", "1 power broker-0 for 0.1"]) == 0
    assert "3 seeds, 0 failed" in capsys.readouterr().out


def test_the_checks_find_what_is_lost_doubled_swapped_invented_unseen_skipped_and_taken_back() -> None:
    partition = TopicPartition("t", 0)
    history = History()
    first, second = Sent("w", partition, 0), Sent("w", partition, 1)
    for number, what in enumerate((first, second)):
        history.sent.add(what)
        history.acknowledge(what, number)
        history.record_read("r", partition, number, what.value(0), expected=number)
    sound = [(0, first.value(3)), (1, second.value(0))]
    assert findings(history, {partition: sound}) == []
    assert "is lost" in findings(history, {partition: sound[:1]})[0]
    assert "where now" in findings(history, {partition: [(0, second.value(0)), (1, first.value(0))]})[0]
    assert "stored twice" in findings(history, {partition: [*sound, (2, first.value(3))]})[0]
    assert "was never sent" in findings(history, {partition: [*sound, (2, b"noise")]})[0]
    assert "was expected" in findings(history, {partition: [*sound, (3, second.value(0))]})[0]
    assert commit_findings(history, {partition: sound}, {partition: 2}) == []
    assert "t-0: 1 is committed, but everything from 2 to 2 was read" in commit_findings(
        history, {partition: sound}, {partition: 1}
    )
    assert "t-0: None is committed" in commit_findings(history, {partition: sound}, {})[0]
    del history.read[partition][1]
    assert "was read as None" in findings(history, {partition: sound})[0]
    history.record_read("r", partition, 5, second.value(0), expected=2)
    history.record_read("r", partition, 0, second.value(0), expected=None)
    history.assigned("a", 3, partition)
    history.assigned("b", 3, partition)
    reported = "; ".join(findings(history, {partition: sound}))
    assert "skipped from 2 to 5" in reported
    assert "read again with other values" in reported
    assert "was read at 5, where now None is" in reported
    assert "is assigned to a and to b in generation 3" in reported


class Late:
    """A member whose commit is not answered, and which loses its place in the group and joins again meanwhile."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(Scheduler(0), 0, brokers=1, clients=2, settings=SETTINGS)
        self.generations: list[int] = []
        self.lost = 0
        self.read: list[int] = []
        self.committed = -1
        self._commits = 0
        self._is_answered = True

    def run(self) -> None:
        cluster, scheduler = self.cluster, self.cluster.scheduler
        cluster.start()
        assert scheduler.run_until(lambda: cluster.nodes[0].is_ready, limit_s=5)
        broker = cluster.nodes[0].broker
        assert broker is not None
        apis = broker.router.apis
        commit: Any = apis[ApiKey.OFFSET_COMMIT].handler
        heartbeat: Any = apis[ApiKey.HEARTBEAT].handler

        def hold(services: Any, request: Any, answer: Any) -> None:
            self._commits += 1
            if self._is_answered:
                commit(services, request, answer)

        def expel(services: Any, request: Any, answer: Any) -> None:
            if self._commits and len(self.generations) == 1:
                answer(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            else:
                heartbeat(services, request, answer)

        apis[ApiKey.OFFSET_COMMIT] = apis[ApiKey.OFFSET_COMMIT]._replace(handler=hold)
        apis[ApiKey.HEARTBEAT] = apis[ApiKey.HEARTBEAT]._replace(handler=expel)
        working = [cluster.clients[0].spawn(self._write()), cluster.clients[1].spawn(self._follow())]
        assert scheduler.run_until(lambda: all(task.done() for task in working), limit_s=120)
        for task in working:
            task.result()
        cluster.kill_all()

    async def _write(self) -> None:
        producer = new_producer(self.cluster.bootstrap, "writer")
        await producer.start()
        for _ in range(2):
            await (await producer.enqueue(JOURNAL, b"x", partition=0))
            while not self.read:
                await asyncio.sleep(0.1)
        await producer.close()

    async def _follow(self) -> None:
        consumer = new_consumer(self.cluster.bootstrap, "reader", [JOURNAL], group_id="g")
        partition = TopicPartition(JOURNAL, 0)

        @consumer.on_assign
        def assigned(partitions: object) -> None:
            self.generations.append(consumer.generation)

        @consumer.on_lost
        def lost(partitions: object) -> None:
            self.lost += 1

        await consumer.start()
        until_s = None
        while until_s is None or self.cluster.scheduler.now_s < until_s:
            self.read += [record.offset for records in (await consumer.poll(200)).values() for record in records]
            if self.read and not self.generations[1:]:
                self._is_answered = False
            elif self.generations[1:] and until_s is None:
                self._is_answered = True
                until_s = self.cluster.scheduler.now_s + 5
        self.committed = (await consumer.committed(partition))[partition].offset
        await consumer.close()


def test_a_commit_rejected_after_the_member_has_joined_again_does_not_cost_its_partitions() -> None:
    """It had been sent again and again until the group had met (seed 8328)."""

    def reported() -> tuple[int, list[int], int, set[int], int]:
        story = Late()
        with observed(Observer(story.cluster)):
            story.run()
        late = story.cluster.trace.counts[LATE_REJECTION]
        return late, story.generations, story.lost, set(story.read), story.committed

    with deterministic(Trace()):
        late, generations, lost, read, committed = reported()
    # One that was under way, and those that waited for their turn behind it.
    assert late >= 1
    assert (len(generations), lost) == (2, 1)
    assert (read, committed) == ({0, 1}, 2)


def test_a_run_goes_on_until_what_a_killed_reader_had_not_committed_is_read_again() -> None:
    # The reader has everything when it is killed. Its next life has to wait until the coordinator misses it.
    report = simulate(20, Plan(brokers=1, schedule=tuple(parse_schedule("5.5 crash client-2 for 0.03"))))
    assert not report.problem, "\n".join([*report.last_lines, report.problem])
    assert report.starts > 2, "a start in each life"


def test_the_command_says_what_it_ran_and_how_to_run_a_failing_seed_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    power = "3 power broker-0 for 0.2 | 5 power broker-0 for 0.2"
    assert main(["--seeds", "2", "--jobs", "1", "--brokers", "1", "--schedule", power]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().out
    assert main(["--seed", "0", "--mutation", "acknowledge-without-sync"]) == 0
    reported = capsys.readouterr().out
    assert "seed 0 FAILED: " in reported
    assert "penstock.testing.simulation --mutation acknowledge-without-sync --brokers 1 --seed 0" in reported
    assert "caught" in reported
    assert main(["--seed", "0", "--schedule", "nonsense"]) == 2
    with pytest.raises(SystemExit):
        main(["--brokers", "2"])
    assert "which 2 brokers cannot hold" in capsys.readouterr().err


@pytest.mark.long
def test_a_campaign_that_is_stopped_reports_what_it_has_found_so_far() -> None:
    command_line = [sys.executable, "-m", "penstock.testing.simulation", "--seeds", "5000", "--jobs", "2"]
    with subprocess.Popen(
        command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert " of 5000 seeds" in first
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        rest = process.stdout.read()
    assert process.returncode == 130, rest
    assert "seeds not run" in rest
    assert "simulated hours" in rest
    assert "Traceback" not in rest
