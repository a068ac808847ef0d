"""Followers through fail-overs: three copies, elections, crashes that lose what was not synced, cuts, late news.

Whatever happens, the numbered invariants of replication hold: what is below a watermark is the same everywhere (2), a
leader's watermark never goes back within its epoch (4), the same offset and epoch are the same bytes (5), and a cut
takes nothing that was committed. When it is quiet, all copies are the leader's.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log.log_stories import TINY
from tests.replication.fetch_stories import Copy, Host, Room, content

from penstock.records import scan
from penstock.replication.follower import FetcherSettings

BROKERS = (1, 2, 3)
BROKER = st.sampled_from(BROKERS)
QUICK = FetcherSettings(max_wait_ms=100, backoff_ms=5.0, backoff_max_ms=50.0, timeout_ms=200.0)


def common(one: bytes, other: bytes) -> int:
    """How many batches at the beginning are the same: the first bytes of two batches at one offset always are."""
    count = 0
    for header in scan(one).headers:
        place = slice(header.position, header.position + header.size)
        if one[place] != other[place]:
            break
        count += 1
    return count


class Watched(Copy):
    """A copy that tells when a cut takes what was committed."""

    committed: bytes = b""
    lost: int = 0

    def truncate_to(self, offset: int) -> None:
        before = common(content(self.log), self.committed)
        super().truncate_to(offset)
        self.lost += before - common(content(self.log), self.committed)


class Failovers(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000), releases=st.booleans())
    def begin(self, seed: int, releases: bool) -> None:
        self.room = Room(seed, delay_ms=0.5, sync_ms=1.0)
        self.releases = releases
        self.copies: dict[int, Watched] = {}
        self.lives = dict.fromkeys(BROKERS, 0)
        for me in BROKERS:
            self.start(self.room.host(me, settings=QUICK))
        # What the controller knows.
        self.leader, self.epoch, self.isr = 1, 1, set(BROKERS)
        self.committed = b""
        self.watermarks: dict[int, int] = {}
        self.number = 0
        for me in BROKERS:
            self.tell(me)

    def start(self, host: Host) -> None:
        host.server.releases_overtaken = self.releases
        opened = host.open(settings=TINY)
        copy = Watched(host.me, "t", 0, opened.log)
        copy.syncs_at_once = False
        host.server.add(copy)
        self.copies[host.me] = copy

    # --- the cluster

    @rule(me=BROKER)
    def tell(self, me: int) -> None:
        """A broker gets the news of the cluster."""
        copy = self.copies[me]
        if copy.leader_epoch == self.epoch:
            copy.isr = set(self.isr)
        elif me == self.leader:
            self.room.hosts[me].fetchers.unfollow([("t", 0)])
            copy.lead(self.epoch, self.isr)
        else:
            self.room.hosts[me].follow(copy, self.leader, self.epoch)

    @rule(which=st.integers(0, 2), reported=st.sets(BROKER))
    def elect(self, which: int, reported: set[int]) -> None:
        """An in-sync replica leads from now on; only some brokers know yet."""
        candidates = sorted(self.isr)
        self.leader = candidates[which % len(candidates)]
        self.epoch += 1
        for me in sorted(reported):
            self.tell(me)

    @rule(me=BROKER)
    def fall_behind(self, me: int) -> None:
        if me != self.leader:
            self.isr.discard(me)

    @rule(me=BROKER)
    def catch_up(self, me: int) -> None:
        """The leader asks for a follower to be in sync."""
        copy = self.copies[self.leader]
        is_leading = copy.leader == self.leader and copy.leader_epoch == self.epoch
        if is_leading and copy.ends.get(me, -1) >= max(copy.log.high_watermark, copy.epoch_start):
            self.isr.add(me)
            copy.isr.add(me)

    # --- records

    @rule(which=st.integers(0, 2), count=st.integers(1, 3), synced=st.booleans(), ms=st.sampled_from([0.0, 0.7, 5.0]))
    def produce(self, which: int, count: int, synced: bool, ms: float) -> None:
        """To one of those who take themselves for the leader."""
        leaders = [me for me in BROKERS if self.copies[me].leader == me]
        if leaders:
            me = leaders[which % len(leaders)]
            self.copies[me].put(*range(self.number, self.number + count))
            self.number += count
            if synced:
                self.sync(me)
            self.room.pass_time(ms)

    @rule(me=BROKER)
    def sync(self, me: int) -> None:
        self.copies[me].log.flush()
        if self.copies[me].leader == me:
            self.copies[me].advance()

    # --- faults

    @rule(me=BROKER)
    def lose_power(self, me: int) -> None:
        """It restarts at once, and leaves the ISR unless it is the only member."""
        files = self.room.hosts[me].files
        self.room.kill(me)
        files.crash()
        self.lives[me] += 1
        self.start(self.room.host(me, files, life=self.lives[me], settings=QUICK))
        if self.isr != {me}:
            self.isr.discard(me)
        for copy in self.copies.values():
            copy.ends.pop(me, None)  # only what it reports in its current broker epoch counts
        if self.leader == me:
            self.elect(0, set())

    @rule(me=BROKER)
    def cut_off(self, me: int) -> None:
        self.room.cut_off.add(me)

    @precondition(lambda self: self.room.cut_off)
    @rule()
    def heal(self) -> None:
        self.room.cut_off.clear()

    @rule(me=BROKER, sync_ms=st.sampled_from([0.1, 2.0, 30.0]))
    def disk(self, me: int, sync_ms: float) -> None:
        self.room.hosts[me].disk.sync_ms = sync_ms

    @rule(ms=st.sampled_from([0.3, 1.0, 3.0, 20.0, 200.0]))
    def wait(self, ms: float) -> None:
        self.room.pass_time(ms)

    # --- what always holds

    @invariant()
    def what_is_below_a_watermark_is_the_same_everywhere(self) -> None:
        for me, copy in self.copies.items():
            if copy.leader != me:
                continue
            assert copy.log.high_watermark >= self.watermarks.get(copy.leader_epoch, 0), "it went back"
            self.watermarks[copy.leader_epoch] = copy.log.high_watermark
            known = content(copy.log, copy.log.high_watermark)
            if len(known) > len(self.committed):
                assert known.startswith(self.committed), f"{me} committed something else"
                self.committed = known
        for me, copy in self.copies.items():
            known = content(copy.log, copy.log.high_watermark)
            assert self.committed.startswith(known), f"{me} takes for committed what is not"
        for copy in self.copies.values():
            copy.committed = self.committed
            assert copy.lost == 0, "a cut took what was committed"

    @invariant()
    def the_same_offset_and_epoch_are_the_same_bytes(self) -> None:
        seen: dict[tuple[int, int], bytes] = {}
        for copy in self.copies.values():
            data = content(copy.log)
            for header in scan(data).headers:
                batch = data[header.position : header.position + header.size]
                assert seen.setdefault((header.base_offset, header.leader_epoch), batch) == batch

    @invariant()
    def in_sync_replicas_have_all_committed_records(self) -> None:
        for me in self.isr:
            assert content(self.copies[me].log).startswith(self.committed), f"{me} is in sync, and lacks something"

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        self.room.cut_off.clear()
        for me in BROKERS:
            self.disk(me, 0.3)
            self.tell(me)
        leader = self.copies[self.leader]
        leader.put(self.number)
        leader.log.flush()
        self.room.until(self.is_quiet, within_ms=3000)
        self.what_is_below_a_watermark_is_the_same_everywhere()
        for copy in self.copies.values():
            assert content(copy.log) == content(leader.log)
        self.room.close()

    def is_quiet(self) -> bool:
        for me in BROKERS:
            self.catch_up(me)
        self.copies[self.leader].advance()
        end = self.copies[self.leader].log.log_end_offset
        return all(copy.log.high_watermark == copy.log.flushed_offset == end for copy in self.copies.values())


Failovers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_followers_through_failovers = pytest.mark.long(Failovers.TestCase)
