"""`penstock reassign`: move partitions between brokers: plan, start, status, cancel.

A plan is made and started by two commands, and shown by both. Nothing is moved that need not be, and no replica leaves
a broker that is only offline for now, unless --without says so. `status` changes nothing, except that
--remove-throttle removes a throttle. `cancel` restores the earlier replicas; a finished reassignment is not touched.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.completion import broker_ids
from penstock.cli.connection import Cluster, Rejected, cluster_command, error_document
from penstock.cli.options import confirmation_options, dry_run_option, topic_arguments, watch_option
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option
from penstock.cli.values import FACTOR, BrokerIds, ByteCount, Duration, NameAndPartitions
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    from penstock.cli.cluster.partition_moves import Move
    from penstock.client.admin import Admin, ConfigResource, PartitionReassignment
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError


EXIT_INCOMPLETE: Final = 1
_SHOWN_MAX: Final = 10


@click.group()
def reassign() -> None:
    """Move partitions between brokers.

    \b
    penstock reassign plan -o plan.json                     balance brokers with as few copies as possible
    penstock reassign plan --without 3 -o plan.json         empty broker 3
    penstock reassign start plan.json --throttle 50MB --wait
    """


def wait_options(command: click.decorators.FC) -> click.decorators.FC:
    """--wait and --timeout."""
    for option in (
        click.option("--timeout", "timeout_ms", type=Duration(), help="Time-out of --wait.  [default: none]"),
        click.option("--wait", is_flag=True, help="Wait until the reassignment is complete."),
    ):
        command = option(command)
    return command


# --- plan


@reassign.command(short_help="Compute which partitions to move.")
@topic_arguments(required=False, partitions=True)
@click.option(
    "--brokers", type=BrokerIds(), shell_complete=broker_ids,
    help="Brokers to place replicas on.  [default: all]",
)  # fmt: skip
@click.option("--without", type=BrokerIds(), shell_complete=broker_ids, help="Brokers to empty.")
@click.option("-r", "--replication-factor", type=FACTOR, metavar="N", help="New replication factor.")
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help="Write the plan to a file, in the format of kafka-reassign-partitions.",
)
@click.option("--rollback", metavar="FILE", help="Write a plan that restores the current replicas.")
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
    """Compute a plan that balances replicas and leaders over brokers and racks with as few copies as possible.

    Without TOPIC, for all topics. Nothing is changed; `penstock reassign start FILE` executes the plan.
    """
    from penstock.cli.cluster import partition_moves as plans
    from penstock.cli.cluster.partition_moves import largest_sizes, replica_sizes
    from penstock.cli.topics.partitions import all_partitions, named_partitions

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
        output.line(f"Nothing to move: {counted(len(settled), 'partition')} already balanced.")
    else:
        plans.show_moves(output, moves)
        plans.show_balance(output, settled, wanted, nodes)
        output.line(f"To execute it: penstock reassign start {file or 'FILE (written by -o FILE)'}")
    output.flush()
    if len(settled) < len(described):
        left_out = counted(len(described) - len(settled), "partition")
        click.echo(f"{left_out} left out: being moved.", err=True)


def _planned(
    settled: Mapping[TopicPartition, tuple[int, ...]], usable: Mapping[int, str | None], replication_factor: int | None
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that get other replicas. CommandError if no plan is possible."""
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.cluster.placement import plan_rebalance

    placed = {
        (key.topic, key.partition): _without_surplus_replicas(replicas, usable, replication_factor)
        for key, replicas in settled.items()
    }
    try:
        found = plan_rebalance(placed, usable, replication_factor).assignments
    except ValueError as error:
        raise CommandError(
            f"No plan is possible: {error}.", "Lower --replication-factor or start more brokers."
        ) from None
    after = {TopicPartition(*key): replicas for key, replicas in {**placed, **found}.items()}
    return {key: replicas for key, replicas in after.items() if replicas != settled[key]}


def _without_surplus_replicas(
    replicas: tuple[int, ...], usable: Container[int], replication_factor: int | None
) -> tuple[int, ...]:
    """Removes surplus replicas from brokers to be emptied first, so that they need not be copied."""
    needless = 0 if replication_factor is None else max(0, len(replicas) - replication_factor)
    leaving = [broker for broker in reversed(replicas) if broker not in usable][:needless]
    return tuple(broker for broker in replicas if broker not in leaving)


def _usable(
    racks: Mapping[int, str | None],
    brokers: tuple[int, ...] | None,
    without: tuple[int, ...],
    settled: Mapping[TopicPartition, tuple[int, ...]],
) -> dict[int, str | None]:
    """The brokers that may have replicas. Rejected if one is offline and not excluded."""
    missing = sorted(set(brokers or ()) - racks.keys())
    if missing:
        raise Rejected(f"Broker {joined(missing)} does not exist.", "`penstock brokers` shows the brokers.")
    chosen = [broker for broker in (racks if brokers is None else brokers) if broker not in without]
    if not chosen:
        raise CommandError(
            "No broker is left for the replicas.", "Add brokers to --brokers, or name fewer with --without."
        )
    if brokers is None:
        holding = {broker for replicas in settled.values() for broker in replicas}
        offline = sorted(holding - racks.keys() - set(without))
        if offline:
            ids = joined(offline)
            raise Rejected(
                f"Broker {ids} has replicas of these partitions and is offline.",
                f"Start it, or if it will not come back, empty it: --without {ids.replace(' ', '')}",
            )
    return {broker: racks[broker] for broker in chosen}


def _plan_document(moves: list[Move]) -> dict[str, object]:
    from penstock.cli.cluster import partition_moves as plans

    return {
        "version": 1,
        "partitions": [plans.move_document(move) for move in moves],
        "copies": sum(len(move.copies) for move in moves),
        "bytes": plans.copied_bytes(moves),
    }


# --- start


@reassign.command(short_help="Start a plan.")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "--throttle", type=ByteCount(), metavar="BYTES",
    help="Limit in bytes/s of what each broker sends and receives: 50MB. Removed by --wait or `status`.",
)  # fmt: skip
@click.option("--rollback", metavar="FILE", help="Write a plan that restores the current replicas.")
@confirmation_options
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
    """Start a plan of `penstock reassign plan` or kafka-reassign-partitions; - reads standard input.

    The cluster executes it in the background; `penstock reassign status` shows the progress. A partition that is
    already being moved changes its target.

    \b
    Exit code: 0  started; with --wait, complete
               1  --wait timed out, or you answered no
               4  the plan or a partition was rejected; the others are moved
    """
    from penstock.cli.cluster import partition_moves as plans
    from penstock.cli.cluster import partition_moves as throttles

    wanted = plans.read_plan(file)
    output = Output()
    with cluster.admin() as admin:
        moves = _to_move(admin, wanted)
        if output_format != JSON:
            _show_changes(output, moves, len(wanted))
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
        raise reassignment_rejected(failed)
    if wait and left:
        click.get_current_context().exit(EXIT_INCOMPLETE)


def _show_dry_run(output: Output, output_format: str, moves: list[Move]) -> None:
    if output_format == JSON:
        output.json({"dryRun": True, **_plan_document(moves)}, indent=2)
    else:
        output.line("Dry run: nothing was changed.")
    output.flush()


def _to_move(admin: Admin, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> list[Move]:
    """The partitions that differ from the plan and are not on their way. Rejected if one does not exist."""
    from penstock.cli.cluster import partition_moves as plans
    from penstock.cli.cluster.partition_moves import largest_sizes, replica_sizes
    from penstock.cli.topics.partitions import all_partitions

    described = all_partitions(admin)
    plans.check_plan(wanted, described, admin.describe_cluster().nodes)
    moves = plans.moves_of(wanted, described, largest_sizes(replica_sizes(admin)))
    moving = admin.list_partition_reassignments() if moves else {}
    left = [move for move in moves if move.key not in moving or moving[move.key].target != move.after]
    # One that turns to another aim begins where it began before.
    return [move._replace(before=moving[move.key].original) if move.key in moving else move for move in left]


def _show_changes(output: Output, moves: list[Move], planned: int) -> None:
    from penstock.cli.cluster.partition_moves import show_moves

    if moves:
        show_moves(output, moves)
    else:
        output.line(f"Nothing to do: {counted(planned, 'partition')} as planned.")
    output.flush()


def _begin(
    admin: Admin, moves: list[Move], changes: Mapping[ConfigResource, object]
) -> dict[TopicPartition, PenstockError]:
    """Start the moves. Returns the rejected ones; removes the throttle if all were rejected."""
    from penstock.cli.cluster.partition_moves import remove_throttles
    from penstock.client.errors import PenstockError

    try:
        outcomes = admin.alter_partition_reassignments({move.key: move.after for move in moves})
    except PenstockError:
        remove_throttles(admin, changes)
        raise
    failed = {key: error for key, error in outcomes.items() if error is not None}
    if len(failed) == len(moves):
        remove_throttles(admin, changes)
    return failed


def _wait(
    admin: Admin, keys: list[TopicPartition], timeout_ms: int | None, changes: Mapping[ConfigResource, object]
) -> int:
    from penstock.cli.cluster.partition_moves import remove_throttles, wait_until_done

    left = wait_until_done(admin, keys, timeout_ms, lambda text: click.echo(text, err=True))
    if not left:
        for error in remove_throttles(admin, changes):
            click.echo(f"Error: cannot remove the throttle: {error.message}.", err=True)
    return left


def _begun_line(begun: list[Move], wait: bool, left: int, throttle: int | None) -> str:
    if left:
        tail = ", and --remove-throttle removes the throttle at the end" if throttle is not None else ""
        state = "still being moved" if wait else "being moved"
        return f"{counted(left, 'partition')} {state}. `penstock reassign status` shows the progress{tail}."
    elect = ""
    if any(not move.copies or move.after[0] != move.before[0] for move in begun):
        elect = " `penstock elect preferred` elects the new first replicas."
    return f"Reassignment complete: {counted(len(begun), 'partition')}.{elect}"


# --- status


@reassign.command(short_help="Show the progress of reassignments.")
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(allow_dash=True))
@click.option("--remove-throttle", is_flag=True, help="Remove the throttle once nothing is being moved.")
@wait_options
@watch_option
@format_option
@cluster_command
def status(
    cluster: Cluster,
    file: str | None,
    remove_throttle: bool,
    wait: bool,
    timeout_ms: int | None,
    output_format: str,
) -> None:
    """Show reassignments in progress and, with the FILE of a plan, whether it is complete.

    \b
    Exit code: 0  complete or in progress
               1  a partition differs from the plan and is not being moved, or --wait timed out
    """
    from penstock.cli.cluster import partition_moves as progress
    from penstock.cli.cluster.partition_moves import read_plan

    wanted = {} if file is None else read_plan(file)
    with cluster.admin() as admin:
        if wait:
            progress.wait_until_done(
                admin, wanted if file is not None else None, timeout_ms, lambda text: click.echo(text, err=True)
            )
        moving = admin.list_partition_reassignments()
        found = progress.progress_of(admin, moving)
        different = _different(admin, wanted, moving.keys())
        throttled = _throttled(admin, remove=remove_throttle and not moving)
    output = Output()
    if output_format == JSON:
        document: dict[str, object] = {
            "moving": [progress.progress_document(each) for each in found],
            "throttled": {str(resource): values for resource, values in throttled.items()},
        }
        if file is not None:
            document["different"] = [
                {"topic": key.topic, "partition": key.partition, "replicas": list(replicas)}
                for key, replicas in different.items()
            ]
        output.json(document, indent=2)
    else:
        if found:
            progress.show_progress(output, found)
        else:
            output.line("No reassignment is in progress.")
        if wanted:
            _print_plan_state(output, wanted, different, moving)
        _print_throttles(output, throttled, bool(moving), remove_throttle)
    output.flush()
    if different or (wait and (moving.keys() & wanted.keys() if file is not None else moving)):
        click.get_current_context().exit(EXIT_INCOMPLETE)


def _different(
    admin: Admin, wanted: Mapping[TopicPartition, tuple[int, ...]], moving: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Partitions that differ from the plan and are not being moved, with their replicas."""
    from penstock.cli.topics.partitions import all_partitions

    if not wanted:
        return {}
    described = all_partitions(admin)
    there = {key: described[key].replicas if key in described else () for key in wanted}
    still = set(moving)
    return {key: replicas for key, replicas in there.items() if replicas != wanted[key] and key not in still}


def _print_plan_state(
    output: Output,
    wanted: Mapping[TopicPartition, tuple[int, ...]],
    different: Mapping[TopicPartition, tuple[int, ...]],
    moving: Container[TopicPartition],
) -> None:
    if not different and not any(key in moving for key in wanted):
        output.line(f"Reassignment complete: {counted(len(wanted), 'partition')}.")
    for key, replicas in different.items():
        output.line(f"{key} has replicas {joined(replicas)} instead of {joined(wanted[key])}, and is not being moved.")


def _throttled(admin: Admin, *, remove: bool) -> dict[ConfigResource, dict[str, str]]:
    """The throttles that remain."""
    from penstock.cli.cluster import partition_moves as throttles

    found = throttles.find_throttles(
        admin, [node.id for node in admin.describe_cluster().nodes], admin.list_topics(include_internal=True)
    )
    if not remove or not found:
        return found
    errors = throttles.remove_throttles(admin, found)
    if errors:
        raise errors[0]
    click.echo(f"Removed the throttle of {', '.join(map(str, found))}.", err=True)
    return {}


def _print_throttles(
    output: Output, throttled: Mapping[ConfigResource, Mapping[str, str]], is_moving: bool, remove: bool
) -> None:
    if not throttled:
        return
    rates = sorted(
        {value for resource, own in throttled.items() if resource.kind == "broker" for value in own.values()}
    )
    what = f"of {' or '.join(rates)} bytes/s" if rates else "for some replicas"
    advice = (
        "" if is_moving or remove else "; it slows down replicas that fall behind. Use --remove-throttle to remove it"
    )
    output.line(f"A throttle {what} is set on {', '.join(map(str, throttled))}{advice}.")


# --- cancel


@reassign.command(short_help="Cancel reassignments in progress.")
@topic_arguments(required=False, partitions=True)
@click.option("--plan", "file", metavar="FILE", help="Cancel the reassignments of this plan.")
@click.option("--all", "everything", is_flag=True, help="Cancel all reassignments.")
@click.option("--remove-throttle", is_flag=True, help="Remove the throttle if nothing else is being moved.")
@dry_run_option
@format_option
@cluster_command
def cancel(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    file: str | None,
    everything: bool,
    remove_throttle: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Cancel reassignments in progress: partitions keep their original replicas, and copies are removed.

    Completed reassignments are not reverted. To revert one, `start` the plan written by --rollback.
    """
    from penstock.cli.cluster.partition_moves import read_plan
    from penstock.cli.topics.partitions import named_partitions

    if bool(names) + (file is not None) + everything != 1:
        raise CommandError("No partitions were given.", "Give TOPIC or TOPIC:0,2, or --plan FILE, or --all.")
    planned = read_plan(file) if file is not None else {}
    with cluster.admin() as admin:
        moving = admin.list_partition_reassignments()
        chosen: Iterable[TopicPartition] = moving if everything else planned or named_partitions(admin, names)
        keys = [key for key in chosen if key in moving]
        if dry_run:
            _show_cancelled(Output(), output_format, keys, moving, {}, dry_run=True)
            return
        outcomes = admin.alter_partition_reassignments(dict.fromkeys(keys))
        failed = {key: error for key, error in outcomes.items() if error is not None}
        left = admin.list_partition_reassignments() if keys else moving
        throttled = _throttled(admin, remove=remove_throttle and not left)
    output = Output()
    _show_cancelled(output, output_format, keys, moving, failed, dry_run=False)
    if output_format != JSON:
        _print_throttles(output, throttled, bool(left), remove_throttle)
    output.flush()
    if failed:
        raise reassignment_rejected(failed)


def _show_cancelled(
    output: Output,
    output_format: str,
    keys: Iterable[TopicPartition],
    moving: Mapping[TopicPartition, PartitionReassignment],
    failed: Mapping[TopicPartition, PenstockError],
    *,
    dry_run: bool,
) -> None:
    cancelled = [key for key in keys if key not in failed]
    if output_format == JSON:
        rows = [{"topic": key.topic, "partition": key.partition} for key in cancelled]
        output.json({"dryRun": dry_run, "cancelled": rows, "failed": failures(failed)}, indent=2)
        return
    for key in cancelled:
        output.line(f"{key} {'would keep' if dry_run else 'keeps'} its replicas {joined(moving[key].original)}.")
    if not cancelled and not failed:
        output.line("Nothing to cancel: none of these partitions is being moved.")
    elif dry_run:
        output.line("Dry run: nothing was changed.")


# --- shared


def joined(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def failures(failed: Mapping[TopicPartition, PenstockError]) -> list[dict[str, object]]:
    return [
        {"topic": key.topic, "partition": key.partition, "error": error_document(error)}
        for key, error in failed.items()
    ]


def reassignment_rejected(failed: Mapping[TopicPartition, PenstockError]) -> Rejected:
    some = "; ".join(error.message for error in list(failed.values())[:_SHOWN_MAX])
    more = f"; and {len(failed) - _SHOWN_MAX} more" if len(failed) > _SHOWN_MAX else ""
    return Rejected(
        f"Cannot reassign {counted(len(failed), 'partition')}: {some}{more}.",
        "`penstock reassign status` shows what is being moved, `penstock brokers` the live brokers.",
    )
