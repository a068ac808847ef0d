"""Three brokers, any order of writes, fetches, fail-overs, restarts and power losses: what was committed stays.

The model is the controller (who may lead: a replica in sync, in a new epoch) and a list of the responses to producers.
The logs, partitions and the decisions of followers are the real ones. Invariants: below a leader's watermark all in
sync are alike; what was acknowledged is in every later leader; a watermark never goes back within an epoch; the same
offset and epoch have the same bytes everywhere.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.replication.replica_stories import LEDGER, Committed, Host, TopicRules, cluster, with_epoch

from penstock.log.settings import LogSettings
from penstock.records import scan
from penstock.replication.errors import NotEnoughReplicas
from penstock.testing.simulated_disk import LOSE_UNSYNCED

BROKERS = st.sampled_from((1, 2, 3))


class Failovers(RuleBasedStateMachine):
    @initialize(minimum=st.sampled_from((1, 2)))
    def begin(self, minimum: int) -> None:
        rules = TopicRules(LogSettings(segment_bytes=400), minimum)
        self.hosts = {broker: Host(broker, rules=rules) for broker in LEDGER}
        self.broker_epochs = dict(LEDGER)
        self.leader, self.epoch, self.version = 1, 0, 0
        self.isr: tuple[int, ...] = (1, 2, 3)
        self.minimum = minimum
        self.responses: list[tuple[bytes, Committed]] = []
        self.written = 0
        self.watermarks: dict[tuple[int, int], int] = {}
        self.publish()

    def publish(self, *, to: int | None = None) -> None:
        image = cluster(self.leader, self.epoch, isr=self.isr, version=self.version)
        for broker, epoch in self.broker_epochs.items():
            image = with_epoch(image, broker, epoch)
        for broker, host in self.hosts.items():
            if to is None or broker == to:
                host.take(image)

    @rule()
    def write(self) -> None:
        value = b"%d" % self.written
        self.written += 1
        try:
            self.responses.append((value, self.hosts[self.leader].append(value)))
        except NotEnoughReplicas:
            assert len(self.isr) < self.minimum

    @rule(broker=BROKERS)
    def fetch(self, broker: int) -> None:
        if broker != self.leader:
            self.hosts[broker].fetch_from(self.hosts[self.leader], broker_epoch=self.broker_epochs[broker])

    @rule(broker=BROKERS)
    def fall_out_of_sync(self, broker: int) -> None:
        # The controller rejects an ISR below min.insync.replicas: such a member would stay eligible (KIP-966).
        if broker != self.leader and broker in self.isr and len(self.isr) > self.minimum:
            self.isr = tuple(each for each in self.isr if each != broker)
            self.version += 1
            self.publish()

    @rule()
    def come_into_sync(self) -> None:
        leader = self.hosts[self.leader].partition
        assert leader.leadership is not None
        proposal = leader.leadership.propose(leader.log.log_end_offset, self.broker_epochs, 1e9, 0)
        if proposal is not None:
            self.isr = tuple(broker for broker in (1, 2, 3) if broker in proposal.isr)
            self.version += 1
            self.publish()

    @rule(broker=BROKERS, late=st.booleans())
    def lead_another(self, broker: int, late: bool) -> None:
        """One in sync leads from now on; the old leader may hear of it later than the new one."""
        if broker not in self.isr:
            return
        before, self.leader = self.leader, broker
        self.epoch += 1
        self.version += 1
        if late:
            for other in LEDGER:
                if other != before:
                    self.publish(to=other)
            self.late_write(before)
        self.publish()

    def late_write(self, broker: int) -> None:
        """What one writes who has lost its lead and does not know is never acknowledged."""
        host = self.hosts[broker]
        if broker != self.leader and host.partition.is_leader:
            value = b"late %d" % self.written
            self.written += 1
            try:
                self.responses.append((value, host.append(value)))
            except NotEnoughReplicas:
                return

    @rule(broker=BROKERS, power=st.booleans())
    @precondition(lambda self: len(self.isr) > 1)
    def restart(self, broker: int, power: bool) -> None:
        """A broker ends, with or without its page cache, and comes back; another in sync leads if it did."""
        self.hosts[broker] = self.hosts[broker].restart(LOSE_UNSYNCED if power else None)
        self.broker_epochs[broker] += 100
        if broker == self.leader:
            self.leader = next(each for each in self.isr if each != broker)
        self.epoch += 1
        self.version += 1
        self.publish()

    @invariant()
    def what_was_acknowledged_is_with_the_leader(self) -> None:
        if not hasattr(self, "hosts"):
            return
        values = self.hosts[self.leader].values()
        for value, committed in self.responses:
            if committed.is_good:
                assert values.count(value) == 1, value

    @invariant()
    def below_the_watermark_all_in_sync_are_alike(self) -> None:
        if not hasattr(self, "hosts"):
            return
        leader = self.hosts[self.leader].partition.log
        expected = _batches(self.hosts[self.leader], leader.high_watermark)
        for broker in self.isr:
            if self.hosts[broker].partition.leader_epoch == self.epoch:
                assert _batches(self.hosts[broker], leader.high_watermark) == expected

    @invariant()
    def a_watermark_does_not_go_back_in_an_epoch(self) -> None:
        if not hasattr(self, "hosts"):
            return
        key, log = (self.leader, self.epoch), self.hosts[self.leader].partition.log
        assert log.high_watermark >= self.watermarks.get(key, 0)
        self.watermarks[key] = log.high_watermark

    @invariant()
    def the_same_offset_and_epoch_have_the_same_bytes(self) -> None:
        if not hasattr(self, "hosts"):
            return
        seen: dict[tuple[int, int], bytes] = {}
        for host in self.hosts.values():
            for (offset, epoch), data in _batches(host, host.partition.log.log_end_offset).items():
                assert seen.setdefault((offset, epoch), data) == data

    def teardown(self) -> None:
        """After all that, the cluster heals: all logs are one, and new records are committed."""
        if not hasattr(self, "hosts"):
            return
        for _ in range(12):
            for broker in LEDGER:
                self.fetch(broker)
            self.come_into_sync()
        assert self.isr == (1, 2, 3)
        last = self.hosts[self.leader].append(b"last")
        for _ in range(3):
            for broker in LEDGER:
                self.fetch(broker)
        assert last.is_good
        values = [host.values(committed_only=True) for host in self.hosts.values()]
        assert values[0] == values[1] == values[2]


def _batches(host: Host, upper: int) -> dict[tuple[int, int], bytes]:
    """By offset and leader epoch."""
    log = host.partition.log
    found: dict[tuple[int, int], bytes] = {}
    offset = log.log_start_offset
    while (region := log.read(offset, 1 << 20, upper_offset=upper)) is not None:
        data = region.read()
        headers = scan(data).headers
        for header, after in zip(headers, [*[each.position for each in headers[1:]], len(data)], strict=True):
            found[header.base_offset, header.leader_epoch] = data[header.position : after]
            offset = header.next_offset
    return found


TestFailovers = Failovers.TestCase
TestFailovers.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
