"""`penstock reassign`: move partitions between brokers: plan, start, status, cancel.

Rule: a plan is made apart from its being carried out, and shown both times. Nothing is moved that need not be, and
nothing off a broker that is only away for the moment, unless that is said.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster import Cluster, Refused, cluster_command
from penstock.cli.completing import broker_ids
from penstock.cli.options import asking_options, topics_named
from penstock.cli.output import JSON, CommandError, Output, confirm, counted, format_option
from penstock.cli.reassign_moves import EXIT_WRONG, cancel, failures, joined, refused, status, wait_options
from penstock.cli.values import FACTOR, BrokerIds, ByteCount, NameAndPartitions

if TYPE_CHECKING:
    from penstock.cli.reassign_plans import Move
    from penstock.client.admin import Admin, ConfigResource
    from penstock.client.consumer.types import TopicPartition
    from penstock.client.errors import PenstockError


@click.group()
def reassign() -> None:
    """Move partitions between brokers: plan, start, status, cancel.

    \b
    penstock reassign plan -o plan.json                     even out, with as few copies as that takes
    penstock reassign plan --without 3 -o plan.json         empty broker 3
    penstock reassign start plan.json --throttle 50MB --wait
    """


reassign.add_command(status)
reassign.add_command(cancel)

# --- plan


@reassign.command(short_help="Work out which partitions should move.")
@topics_named(required=False, partitions=True)
@click.option(
    "--brokers", type=BrokerIds(), shell_complete=broker_ids,
    help="The brokers to place replicas on.  [default: all]",
)  # fmt: skip
@click.option("--without", type=BrokerIds(), shell_complete=broker_ids, help="Brokers to be emptied.")
@click.option("-r", "--replication-factor", type=FACTOR, metavar="N", help="Other numbers of replicas.")
@click.option("-o", "--output", "file", metavar="FILE", help="Write the plan here, as Kafka's tool reads it.")
@click.option("--rollback", metavar="FILE", help="Write a plan here that leads back.")
@format_option
@cluster_command
def plan(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    brokers: tuple[int, ...] | None,
    without: tuple[int, ...] | None,
    replication_factor: int | None,
    file: str | None,
    rollback: str | None,
    output_format: str,
) -> None:
    """Work out how replicas and leaders are spread evenly over brokers and racks, with as few copies as possible.

    Of these topics, or of all. Nothing is changed; `penstock reassign start FILE` carries it out.
    """
    from penstock.cli import reassign_plans as plans
    from penstock.cli.partitions import all_partitions, named_partitions
    from penstock.cli.reassign_progress import largest_sizes, replica_sizes

    with cluster.admin() as admin:
        described = named_partitions(admin, names) if names else all_partitions(admin)
        nodes = admin.describe_cluster().nodes
        moving = admin.list_partition_reassignments()
        sizes = largest_sizes(replica_sizes(admin))
    settled = {key: part.replicas for key, part in described.items() if key not in moving}
    racks = {node.id: node.rack for node in nodes}
    wanted = _planned(settled, _usable(racks, brokers, without or (), settled), replication_factor)
    moves = plans.moves_of(wanted, described, sizes)
    if file is not None:
        plans.write_plan(file, wanted)
    if rollback is not None:
        plans.write_plan(rollback, {key: settled[key] for key in wanted})
    output = Output()
    if output_format == JSON:
        output.json(_plan_document(moves), indent=2)
    elif not moves:
        output.line(f"Nothing to move: {counted(len(settled), 'partition')} spread evenly already.")
    else:
        plans.show_moves(output, moves)
        plans.show_balance(output, settled, wanted, nodes)
        output.line(f"Carry it out: penstock reassign start {file or 'FILE, with -o FILE here'}")
    output.flush()
    if len(settled) < len(described):
        left_out = counted(len(described) - len(settled), "partition")
        click.echo(f"{left_out} left out: being moved at the moment.", err=True)


def _planned(
    settled: Mapping[TopicPartition, tuple[int, ...]], usable: Mapping[int, str | None], replication_factor: int | None
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that shall have other replicas. CommandError."""
    from penstock.client.consumer.types import TopicPartition
    from penstock.cluster.rebalance import plan_rebalance

    placed = {
        (key.topic, key.partition): _without_needless(replicas, usable, replication_factor)
        for key, replicas in settled.items()
    }
    try:
        found = plan_rebalance(placed, usable, replication_factor).assignments
    except ValueError as error:
        raise CommandError(
            f"No such plan is possible: {error}.", "Ask for fewer replicas, or start more brokers."
        ) from None
    after = {TopicPartition(*key): replicas for key, replicas in {**placed, **found}.items()}
    return {key: replicas for key, replicas in after.items() if replicas != settled[key]}


def _without_needless(
    replicas: tuple[int, ...], usable: Container[int], replication_factor: int | None
) -> tuple[int, ...]:
    """What goes anyway goes from brokers that are to be emptied, before anything is copied off them."""
    needless = 0 if replication_factor is None else max(0, len(replicas) - replication_factor)
    leaving = [broker for broker in reversed(replicas) if broker not in usable][:needless]
    return tuple(broker for broker in replicas if broker not in leaving)


def _usable(
    racks: Mapping[int, str | None],
    brokers: tuple[int, ...] | None,
    without: tuple[int, ...],
    settled: Mapping[TopicPartition, tuple[int, ...]],
) -> dict[int, str | None]:
    """The brokers that may have replicas. Refused if one is not there, or it is not said what to do about one."""
    missing = sorted(set(brokers or ()) - racks.keys())
    if missing:
        raise Refused(f"Broker {joined(missing)} is not there.", "`penstock brokers` shows those there are.")
    chosen = [broker for broker in (racks if brokers is None else brokers) if broker not in without]
    if not chosen:
        raise CommandError(
            "No broker is left for the replicas.", "Give others with --brokers, or fewer with --without."
        )
    if brokers is None:
        holding = {broker for replicas in settled.values() for broker in replicas}
        away = sorted(holding - racks.keys() - set(without))
        if away:
            ids = joined(away)
            raise Refused(
                f"Broker {ids} has replicas of these partitions, and is away.",
                f"Start it; or, if it will not come back, have the plan empty it: --without {ids.replace(' ', '')}",
            )
    return {broker: racks[broker] for broker in chosen}


def _plan_document(moves: list[Move]) -> dict[str, object]:
    from penstock.cli import reassign_plans as plans

    return {
        "version": 1,
        "partitions": [plans.move_document(move) for move in moves],
        "copies": sum(len(move.copies) for move in moves),
        "bytes": plans.copied_bytes(moves),
    }


# --- start


@reassign.command(short_help="Carry a plan out.")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "--throttle", type=ByteCount(), metavar="BYTES",
    help="Bytes a second that each broker sends, and takes, for this: 50MB. Removed by --wait, or by `status`.",
)  # fmt: skip
@click.option("--rollback", metavar="FILE", help="Write a plan here that leads back.")
@asking_options
@wait_options
@format_option
@cluster_command
def start(
    cluster: Cluster,
    file: str,
    throttle: int | None,
    rollback: str | None,
    dry_run: bool,
    execute: bool,
    wait: bool,
    timeout_ms: int | None,
    output_format: str,
) -> None:
    """Move partitions as a plan says: one of `penstock reassign plan`, or of kafka-reassign-partitions; - is standard
    input.

    The cluster carries it out by itself; `penstock reassign status` shows how far it is. A partition that is being
    moved already turns to its new aim.

    \b
    Exit code: 0  begun; with --wait, done
               1  --wait timed out, or you said no
               4  rejected, or a partition was; the others are moved
    """
    from penstock.cli import reassign_plans as plans
    from penstock.cli import reassign_throttles as throttles

    wanted = plans.read_plan(file)
    output = Output()
    with cluster.admin() as admin:
        moves = _to_move(admin, wanted)
        if output_format != JSON:
            _show_what_is_to_be(output, moves, len(wanted))
        if dry_run:
            _show_dry_run(output, output_format, moves)
            return
        if moves and file != "-":
            confirm(f"Change {counted(len(moves), 'partition')}?", yes=execute)
        if rollback is not None:
            plans.write_plan(rollback, {move.key: move.before for move in moves})
        changes = throttles.throttle_changes(moves, throttle) if throttle is not None else {}
        throttles.apply_throttles(admin, changes)
        failed = _begin(admin, moves, changes)
        begun = [move for move in moves if move.key not in failed]
        left = _wait(admin, [move.key for move in begun], timeout_ms, changes) if wait else len(begun)
    if output_format == JSON:
        document = _plan_document(begun) | {"failed": failures(failed), "throttle": throttle, "moving": left}
        output.json(document, indent=2)
    elif begun:
        output.line(_begun_line(begun, wait, left, throttle))
    output.flush()
    if failed:
        raise refused(failed)
    if wait and left:
        click.get_current_context().exit(EXIT_WRONG)


def _show_dry_run(output: Output, output_format: str, moves: list[Move]) -> None:
    if output_format == JSON:
        output.json({"dryRun": True, **_plan_document(moves)}, indent=2)
    else:
        output.line("Dry run: nothing was changed.")
    output.flush()


def _to_move(admin: Admin, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> list[Move]:
    """The partitions of a plan that are neither where it wants them nor on their way there. Refused."""
    from penstock.cli import reassign_plans as plans
    from penstock.cli.partitions import all_partitions
    from penstock.cli.reassign_progress import largest_sizes, replica_sizes

    described = all_partitions(admin)
    plans.check_plan(wanted, described, admin.describe_cluster().nodes)
    moves = plans.moves_of(wanted, described, largest_sizes(replica_sizes(admin)))
    moving = admin.list_partition_reassignments() if moves else {}
    left = [move for move in moves if move.key not in moving or moving[move.key].target != move.after]
    # One that turns to another aim begins where it began before.
    return [move._replace(before=moving[move.key].original) if move.key in moving else move for move in left]


def _show_what_is_to_be(output: Output, moves: list[Move], planned: int) -> None:
    from penstock.cli.reassign_plans import show_moves

    if moves:
        show_moves(output, moves)
    else:
        output.line(f"Nothing to do: {counted(planned, 'partition')} as the plan wants.")
    output.flush()


def _begin(
    admin: Admin, moves: list[Move], changes: Mapping[ConfigResource, object]
) -> dict[TopicPartition, PenstockError]:
    """Those that were refused, and why; a throttle for nothing does not stay."""
    from penstock.cli.reassign_throttles import lift_throttles
    from penstock.client.errors import PenstockError

    try:
        outcomes = admin.alter_partition_reassignments({move.key: move.after for move in moves})
    except PenstockError:
        lift_throttles(admin, changes)
        raise
    failed = {key: error for key, error in outcomes.items() if error is not None}
    if len(failed) == len(moves):
        lift_throttles(admin, changes)
    return failed


def _wait(
    admin: Admin, keys: list[TopicPartition], timeout_ms: int | None, changes: Mapping[ConfigResource, object]
) -> int:
    from penstock.cli.reassign_progress import wait_until_done
    from penstock.cli.reassign_throttles import lift_throttles

    left = wait_until_done(admin, keys, timeout_ms, lambda text: click.echo(text, err=True))
    if not left:
        for error in lift_throttles(admin, changes):
            click.echo(f"Error: the throttle stays: {error.message}.", err=True)
    return left


def _begun_line(begun: list[Move], wait: bool, left: int, throttle: int | None) -> str:
    if left:
        tail = " and, at the end, removes the throttle with --remove-throttle" if throttle is not None else ""
        state = "still being moved" if wait else "being moved"
        return f"{counted(left, 'partition')} {state}: `penstock reassign status` shows how far{tail}."
    elect = ""
    if any(not move.copies or move.after[0] != move.before[0] for move in begun):
        elect = " `penstock elect preferred` gives leadership to those that are first now."
    return f"Done: {counted(len(begun), 'partition')} as the plan wants.{elect}"
