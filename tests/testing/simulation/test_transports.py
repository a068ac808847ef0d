"""asyncio transports over simulated sockets."""

from __future__ import annotations

from tests.testing.simulation.simulation_stories import Caller, Stage, connected


def test_a_stream_arrives_whole_and_in_order_however_it_is_cut_up() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    sent = bytes(range(256)) * 40
    for start in range(0, len(sent), 100):
        caller.transport.write(sent[start : start + 100])
    stage.pass_time(1)
    assert caller.received == sent


def test_a_writer_is_paused_when_its_peer_does_not_read() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    stage.right.pause()
    caller.transport.write(bytes(1_000_000))
    stage.pass_time(1)
    assert caller.pauses == 1
    assert caller.transport.get_write_buffer_size() > 500_000
    stage.right.resume()
    stage.pass_time(5)
    assert len(caller.received) == 1_000_000
