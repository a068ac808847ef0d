"""Streams between simulated processes, and what happens to them."""

from __future__ import annotations

import errno

import pytest
from tests.testing.simulation.simulation_stories import Caller, Stage, connected


def test_a_closed_port_refuses_connections_and_a_machine_without_power_is_silent() -> None:
    stage = Stage()
    connect = stage.left.loop.create_connection
    with pytest.raises(ConnectionRefusedError):
        stage.left.loop.run_until_complete(connect(Caller, stage.right.address, 7), limit_s=5)
    stage.right.lose_power()
    with pytest.raises(TimeoutError) as caught:
        stage.left.loop.run_until_complete(connect(Caller, stage.right.address, 7), limit_s=1000)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_cut_one_way_holds_bytes_back_until_it_heals() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    stage.network.cut([stage.right.address], [stage.left.address])
    caller.transport.write(b"there, but not back")
    stage.pass_time(5)
    assert not caller.received
    stage.network.heal([stage.right.address], [stage.left.address])
    stage.pass_time(1)
    assert caller.received == b"there, but not back"
    assert not caller.lost


def test_a_connection_without_an_answer_times_out() -> None:
    stage, caller = Stage(give_up_s=3), Caller()
    connected(stage, caller)
    stage.network.cut([stage.left.address], [stage.right.address])
    caller.transport.write(b"?")
    stage.pass_time(2)
    assert not caller.lost
    stage.pass_time(2)
    assert [error.errno for error in caller.lost if isinstance(error, OSError)] == [errno.ETIMEDOUT]


def test_a_machine_that_lost_power_resets_connections_only_after_its_return() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    stage.right.lose_power()
    stage.pass_time(30)
    assert not caller.lost
    stage.right.boot()
    caller.transport.write(b"?")
    stage.pass_time(1)
    assert [error.errno for error in caller.lost if isinstance(error, OSError)] == [errno.ECONNRESET]


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_dies_takes_its_connections_with_it(seed: int) -> None:
    stage, caller = Stage(seed), Caller()
    connected(stage, caller)
    stage.right.kill()
    stage.pass_time(1)
    assert len(caller.lost) == 1
    assert stage.network.open_sockets == 0


def test_a_reset_ends_both_sides() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    assert stage.network.reset_connections(stage.right.address) == 1
    stage.pass_time(1)
    assert len(caller.lost) == 1
    assert stage.network.open_sockets == 0


def test_a_host_whose_connections_are_doubled_accepts_each_twice() -> None:
    stage = Stage()
    accepted: list[Caller] = []

    def protocol() -> Caller:
        accepted.append(Caller())
        return accepted[-1]

    async def listen() -> None:
        await stage.right.loop.create_server(protocol, "10.0.0.2", 9)

    async def speak() -> None:
        transport, _ = await stage.left.loop.create_connection(Caller, "10.0.0.2", 9)
        transport.write(b"hello")

    stage.right.spawn(listen())
    stage.network.double_connections("10.0.0.2")
    stage.left.spawn(speak())
    stage.pass_time(1)
    assert sorted(bytes(each.received) for each in accepted) == [b"", b"hello"]
    stage.network.single_connections("10.0.0.2")
    stage.left.spawn(speak())
    stage.pass_time(1)
    assert len(accepted) == 3
