"""Many peers, and large requests: time per turn of the loop, and memory."""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from functools import partial
from itertools import groupby
from struct import pack

from tests.runtime.socket_stories import Later, Peer, Recorder, Scene, framed, play, serving, until
from tests.timeouts import PATIENCE_S

from penstock.runtime.clock import ManualClock
from penstock.runtime.network import Connection, Limits, Reply
from penstock.runtime.socket_io import BUFFER_BYTES
from penstock.runtime.socket_limits import FREE_FRAMES, GRACE_MS, MIN_BYTES_PER_S, QUANTUM_FRAMES, TURN_MS

LARGE = 4 * BUFFER_BYTES


class Slow(Recorder):
    """A handler that takes a millisecond for each frame, and notes in which turn of the loop it came, and from whom."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(self._answer)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self.log: list[tuple[int, int]] = []
        self._count_turns()

    def _count_turns(self) -> None:
        self._turn += 1
        self._loop.call_soon(self._count_turns)

    def _answer(self, connection: Connection, frame: bytearray) -> None:
        self._clock.advance(1)
        self.log.append((self._turn, connection.id))
        connection.reply().send([framed(frame)])


def push(peer: Peer, data: bytes) -> None:
    """Send what the kernel takes at once, without giving the server a turn."""
    assert peer.sock.send(data) == len(data)


def is_above(replies: list[Reply], count: int) -> bool:
    return len(replies) > count


async def a_crowd(scene: Scene, size: int) -> list[Peer]:
    peers = [await scene.peer() for _ in range(size)]
    await until(lambda: len(scene.server.connections) == size)
    return peers


def test_a_turn_of_the_loop_has_a_budget_however_many_frames_there_are() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Slow(clock)
        async with serving(handler, clock=clock) as scene:
            peers = await a_crowd(scene, 10)
            for peer in peers:
                push(peer, framed(b"question") * 40)
            await until(lambda: len(handler.log) == 400)
            for peer in peers:
                assert await peer.receive_raw(40 * 12) == framed(b"question") * 40
            per_turn = Counter(turn for turn, _ in handler.log)
            assert max(per_turn.values()) <= FREE_FRAMES + TURN_MS + 4, per_turn

    play(story)


def test_waiting_connections_are_served_in_turn_a_few_frames_each() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Slow(clock)
        async with serving(handler, clock=clock) as scene:
            peers = await a_crowd(scene, 5)
            for peer in peers:
                push(peer, framed(b"q") * 60)
            await until(lambda: len(handler.log) == 300)
            runs = [(who, len(list(run))) for who, run in groupby(who for _, who in handler.log)]
            # The first had its turn before the others were known to wait.
            assert max(length for _, length in runs[1:-1]) <= QUANTUM_FRAMES
            first_half = Counter(who for _, who in handler.log[:150])
            assert all(first_half[connection.id] >= 10 for connection in scene.server.connections), first_half

    play(story)


def test_a_newcomer_in_a_crowd_waits_for_one_round_only() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Slow(clock)
        async with serving(handler, clock=clock) as scene:
            peers = await a_crowd(scene, 6)
            for peer in peers[:5]:
                push(peer, framed(b"q") * 90)
            await until(lambda: bool(handler.log))
            newcomer = scene.server.connections[5].id
            push(peers[5], framed(b"a heartbeat"))
            assert await peers[5].receive() == b"a heartbeat"
            before = [who for _, who in handler.log].index(newcomer)
            assert before < 2 * 5 * QUANTUM_FRAMES + FREE_FRAMES + 2 * TURN_MS, before
            await until(lambda: len(handler.log) == 451)

    play(story)


def test_a_newcomer_does_not_wait_for_what_a_crowd_sends_at_once() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Slow(clock)
        async with serving(handler, clock=clock) as scene:
            peers = await a_crowd(scene, 31)
            for peer in peers[:30]:
                push(peer, framed(b"q") * 60)
            await until(lambda: len({who for _, who in handler.log}) == 30)
            connection = scene.server.connections[30]
            newcomer, seen = connection.id, len(handler.log)
            push(peers[30], framed(b"a heartbeat"))
            # No turn of the loop before it has arrived.
            assert select.select([connection._descriptor], [], [], PATIENCE_S)[0]
            assert await peers[30].receive() == b"a heartbeat"
            waited = [who for _, who in handler.log].index(newcomer) - seen
            # Two turns at most, where a round of the crowd would be 240 frames.
            assert waited <= 2 * (TURN_MS + QUANTUM_FRAMES), waited
            await until(lambda: len(handler.log) == 1801)
            assert Counter(who for _, who in handler.log)[scene.server.connections[0].id] == 60

    play(story)


# --- memory


async def begin(peer: Peer, size: int = LARGE) -> None:
    """Announce a frame, and send half of it."""
    await peer.send_raw(pack(">i", size) + b"h" * (size // 2))


def test_large_frames_are_received_one_after_the_other_without_room_for_both() -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, Limits(max_request_bytes=LARGE + BUFFER_BYTES)) as scene:
            first, second, third = await a_crowd(scene, 3)
            await begin(first)
            await until(lambda: scene.server.connections[0].unread_bytes >= LARGE // 2)
            await asyncio.gather(begin(second), begin(third))
            # Small frames are served meanwhile.
            assert await (await scene.peer()).ask(b"small") == b"small"
            held = [connection.unread_bytes for connection in scene.server.connections]
            assert held[0] >= LARGE // 2
            assert max(held[1:]) <= BUFFER_BYTES
            assert scene.server.request_bytes == LARGE
            for peer in (first, second, third):
                await peer.send_raw(b"h" * (LARGE // 2))
                assert await peer.receive() == b"h" * LARGE
            assert scene.server.request_bytes == 0

    play(story)


def test_a_large_frame_counts_until_it_is_answered() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(max_request_bytes=LARGE)) as scene:
            first, second = await a_crowd(scene, 2)
            await first.send(b"a" * LARGE)
            await until(lambda: len(handler.replies) == 1)
            sending = asyncio.create_task(second.send(b"b" * LARGE))
            await until(lambda: scene.server.connections[1].unread_bytes > 0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(handler.replies) == 1
            handler.replies[0].send([framed(b"done")])
            await until(lambda: len(handler.replies) == 2)
            await sending

    play(story)


def test_a_frame_above_the_limit_is_received_if_it_is_alone() -> None:
    async def story() -> None:
        async with serving(Recorder(), Limits(max_request_bytes=1)) as scene:
            peer = await scene.peer()
            assert await peer.ask(b"x" * LARGE) == b"x" * LARGE
            assert await peer.ask(b"x" * LARGE) == b"x" * LARGE

    play(story)


def test_a_slow_large_frame_is_closed_when_others_wait() -> None:
    async def story() -> None:
        clock = ManualClock()
        async with serving(Recorder(), Limits(max_request_bytes=LARGE), clock) as scene:
            idler, waiter = await a_crowd(scene, 2)
            await idler.send_raw(pack(">i", LARGE) + b"h")
            await until(lambda: scene.server.request_bytes == LARGE)
            memory = scene.server._shared.memory
            clock.advance(2 * GRACE_MS)
            assert memory.close_slow() == 0, "no connection waits for it"
            sending = asyncio.create_task(waiter.send(b"w" * LARGE))
            await until(lambda: bool(memory.line))
            assert memory.close_slow() == 1
            assert await idler.ended()
            assert await waiter.receive() == b"w" * LARGE
            await sending

    play(story)


def test_a_fast_enough_large_frame_finishes_although_others_wait() -> None:
    async def story() -> None:
        clock = ManualClock()
        size = 2 * GRACE_MS // 1000 * MIN_BYTES_PER_S
        async with serving(Recorder(), Limits(max_request_bytes=size), clock) as scene:
            sender, waiter = await a_crowd(scene, 2)
            await sender.send_raw(pack(">i", size) + b"s" * (size - 1))
            await until(lambda: scene.server.connections[0].arrived_bytes == size - 1)
            sending = asyncio.create_task(waiter.send(b"w" * LARGE))
            memory = scene.server._shared.memory
            await until(lambda: bool(memory.line))
            clock.advance(GRACE_MS + 1)
            assert memory.close_slow() == 0
            await sender.send_raw(b"s")
            assert await sender.receive() == b"s" * size
            assert await waiter.receive() == b"w" * LARGE
            await sending

    play(story)


def test_small_frames_beyond_the_limit_are_one_per_connection() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(max_request_bytes=1000)) as scene:
            first, second = await a_crowd(scene, 2)
            await first.send(*[b"f" * 200] * 10)
            await until(lambda: len(handler.replies) == 6)  # 1,200 bytes
            await second.send(b"s" * 200, b"s" * 200)
            await until(lambda: len(handler.replies) == 7)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(handler.replies) == 7
            done = 0
            while len(handler.replies) < 12:
                answered = len(handler.replies)
                for reply in handler.replies[done:]:
                    reply.send([framed(b"done")])
                done = answered
                await until(partial(is_above, handler.replies, answered))
            for reply in handler.replies[done:]:
                reply.skip()
            assert scene.server.request_bytes == 0

    play(story)


def test_connections_that_go_give_their_memory_back() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(max_request_bytes=2 * LARGE)) as scene:
            unanswered, half, waiting, last = await a_crowd(scene, 4)
            await unanswered.send(b"u" * LARGE)
            await until(lambda: len(handler.replies) == 1)
            await begin(half)
            await until(lambda: scene.server.request_bytes == 2 * LARGE)
            memory = scene.server._shared.memory
            begun = asyncio.create_task(begin(waiting))
            await until(lambda: len(memory.line) == 1)
            sending = asyncio.create_task(last.send(b"l" * LARGE))
            await until(lambda: len(memory.line) == 2)
            await begun
            waiting.close()  # it is not read, so the server does not know yet
            unanswered.reset()
            half.reset()
            await until(lambda: len(handler.replies) == 2)
            await sending
            handler.replies[1].skip()
            await until(lambda: len(scene.server.connections) == 1)
            assert scene.server.request_bytes == 0
            assert not memory.line

    play(story)
