"""`penstock reassign status` and `cancel`: moves that are under way.

Rule: looking changes nothing, but for what it is told to remove. A move that is taken back leaves a partition as it was
before; one that is done is not touched.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.cluster import Cluster, Refused, cluster_command, failure
from penstock.cli.options import change_options, topics_named, watch_option
from penstock.cli.output import JSON, CommandError, Output, counted, format_option
from penstock.cli.values import Duration, NameAndPartitions

if TYPE_CHECKING:
    from penstock.client.admin import Admin, ConfigResource, PartitionReassignment
    from penstock.client.consumer.types import TopicPartition
    from penstock.client.errors import PenstockError

EXIT_WRONG: Final = 1
_SHOWN_MAX: Final = 10


def wait_options(command: click.decorators.FC) -> click.decorators.FC:
    """--wait and --timeout."""
    for option in (
        click.option("--timeout", "timeout_ms", type=Duration(), help="How long --wait waits.  [default: to the end]"),
        click.option("--wait", is_flag=True, help="Stay until it is done."),
    ):
        command = option(command)
    return command


# --- status


@click.command(short_help="Show how far moves are.")
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(allow_dash=True))
@click.option("--remove-throttle", is_flag=True, help="Remove what slows moves down, once there is none.")
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
    """Show the moves that are under way; with the FILE of a plan, also whether it is complete.

    \b
    Exit code: 0  all is well
               1  a partition of the plan is not as it wants it, and not on the way; or --wait timed out
    """
    from penstock.cli import reassign_progress as progress
    from penstock.cli.reassign_plans import read_plan

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
            output.line("Nothing is being moved.")
        if wanted:
            _tell_plan(output, wanted, different, moving)
        _tell_throttles(output, throttled, bool(moving), remove_throttle)
    output.flush()
    if different or (wait and (moving.keys() & wanted.keys() if file is not None else moving)):
        click.get_current_context().exit(EXIT_WRONG)


def _different(
    admin: Admin, wanted: Mapping[TopicPartition, tuple[int, ...]], moving: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Partitions of a plan that are elsewhere and stay there, with where they are."""
    from penstock.cli.partitions import all_partitions

    if not wanted:
        return {}
    described = all_partitions(admin)
    there = {key: described[key].replicas if key in described else () for key in wanted}
    still = set(moving)
    return {key: replicas for key, replicas in there.items() if replicas != wanted[key] and key not in still}


def _tell_plan(
    output: Output,
    wanted: Mapping[TopicPartition, tuple[int, ...]],
    different: Mapping[TopicPartition, tuple[int, ...]],
    moving: Container[TopicPartition],
) -> None:
    if not different and not any(key in moving for key in wanted):
        output.line(f"Reassignment complete: {counted(len(wanted), 'partition')}.")
    for key, replicas in different.items():
        output.line(f"{key} is on {joined(replicas)}, not on {joined(wanted[key])}, and is not being moved.")


def _throttled(admin: Admin, *, remove: bool) -> dict[ConfigResource, dict[str, str]]:
    """The throttles in force; those that were removed are not among them any more."""
    from penstock.cli import reassign_throttles as throttles

    found = throttles.find_throttles(
        admin, [node.id for node in admin.describe_cluster().nodes], admin.list_topics(include_internal=True)
    )
    if not remove or not found:
        return found
    errors = throttles.lift_throttles(admin, found)
    if errors:
        raise errors[0]
    click.echo(f"Removed the throttle of {', '.join(map(str, found))}.", err=True)
    return {}


def _tell_throttles(
    output: Output, throttled: Mapping[ConfigResource, Mapping[str, str]], is_moving: bool, remove: bool
) -> None:
    if not throttled:
        return
    rates = sorted(
        {value for resource, own in throttled.items() if resource.kind == "broker" for value in own.values()}
    )
    what = f"at {' or '.join(rates)} bytes a second" if rates else "for some replicas"
    advice = "" if is_moving or remove else ", and slows replicas down that fall behind: --remove-throttle removes it"
    output.line(f"A throttle is set, {what}, on {', '.join(map(str, throttled))}{advice}.")


# --- cancel


@click.command(short_help="Take moves back that are under way.")
@topics_named(required=False, partitions=True)
@click.option("--plan", "file", metavar="FILE", help="Those of this plan.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--remove-throttle", is_flag=True, help="Remove what slows moves down, if none is left.")
@change_options
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
    """Take moves back: the partitions have their earlier replicas again, and what was copied is removed.

    Moves that are done are not taken back; for that, `start` a plan of --rollback.
    """
    from penstock.cli.partitions import named_partitions
    from penstock.cli.reassign_plans import read_plan

    if bool(names) + (file is not None) + everything != 1:
        raise CommandError(
            "Which moves are meant?", "Name topics, as TOPIC or TOPIC:0,2, or give --plan FILE or --all."
        )
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
        _tell_throttles(output, throttled, bool(left), remove_throttle)
    output.flush()
    if failed:
        raise refused(failed)


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
        output.line(f"{key} {'would stay' if dry_run else 'stays'} on {joined(moving[key].original)}.")
    if not cancelled and not failed:
        output.line("Nothing to take back: none of these is being moved.")
    elif dry_run:
        output.line("Dry run: nothing was changed.")


# --- shared


def joined(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def failures(failed: Mapping[TopicPartition, PenstockError]) -> list[dict[str, object]]:
    return [{"topic": key.topic, "partition": key.partition, "error": failure(error)} for key, error in failed.items()]


def refused(failed: Mapping[TopicPartition, PenstockError]) -> Refused:
    some = "; ".join(error.message for error in list(failed.values())[:_SHOWN_MAX])
    more = f"; and {len(failed) - _SHOWN_MAX} more" if len(failed) > _SHOWN_MAX else ""
    return Refused(
        f"{counted(len(failed), 'partition')} could not be changed: {some}{more}.",
        "`penstock reassign status` shows what is being moved, `penstock brokers` who is there.",
    )
