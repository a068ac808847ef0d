"""`penstock groups`: list, describe, seek and delete consumer groups.

Lag is shown in records and in time: the age of the first record that was not read. `seek` shows its plan before it
changes offsets, and needs a confirmation at a terminal or --execute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completion import topic_names
from penstock.cli.connection import Cluster, Rejected, cluster_command, command_error_for, show_failures
from penstock.cli.options import confirmation_options, confirmed_plan, group_arguments, watch_option
from penstock.cli.output import (
    EXIT_PARTLY,
    JSON,
    CommandError,
    Output,
    confirm,
    format_option,
    printable,
    show_found,
    show_table,
)
from penstock.cli.topics.partitions import no_such_group
from penstock.cli.values import Duration, NameAndPartitions, Timestamp, TopicPartitions
from penstock.runtime.quantities import counted, duration_text

if TYPE_CHECKING:
    from penstock.client.admin import Admin, GroupDescription
    from penstock.client.errors import PenstockError


@click.group()
def groups() -> None:
    """List, describe, move and delete consumer groups."""


@groups.command("list", short_help="List groups and their states.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Show only groups in this state: Stable, Empty. Can be repeated.",
)
@watch_option
@format_option
@cluster_command
def list_(cluster: Cluster, states: tuple[str, ...], output_format: str) -> None:
    """List the groups of the cluster."""
    with cluster.admin() as admin:
        found = admin.list_groups()
    wanted = {state.lower() for state in states}
    found = [group for group in found if not wanted or group.state.lower() in wanted]
    output = Output()
    if output_format == JSON:
        listed = [
            {
                "group": group.group_id,
                "state": group.state or None,
                "type": group.type or None,
                "protocolType": group.protocol_type,
                "coordinator": group.coordinator.id,
            }
            for group in found
        ]
        output.json({"groups": listed}, indent=2)
        return
    rows = [(group.group_id, group.state, group.type or group.protocol_type, group.coordinator.id) for group in found]
    show_table(output, ("GROUP", "STATE", "TYPE", "COORDINATOR"), rows)
    if not rows:
        output.nothing(f"No group is in state {' or '.join(states)}." if states else "No groups.")


@groups.command(short_help="Show members, their partitions, and lag.")
@group_arguments(required=False)
@watch_option
@format_option
@cluster_command
def describe(cluster: Cluster, names: tuple[str, ...], output_format: str) -> None:
    """Show groups: state, members and their partitions, committed offsets, lag in records and in time.

    Without GROUP, all groups.

    \b
    Exit code: 1  one of several groups could not be described
               4  the group does not exist
    """
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_groups(names or [group.group_id for group in admin.list_groups()])
        found = [group for group in answers.values() if not isinstance(group, PenstockError)]
        errors = {name: error for name, error in answers.items() if isinstance(error, PenstockError)}
        failed = group_errors(admin, errors)
    show_found(found, failed, output_format, title="groups", document=_document, show=_show, nothing="No groups.")


def group_errors(admin: Admin, errors: Mapping[str, PenstockError]) -> dict[str, CommandError]:
    """The errors of groups by name; for a missing group, with the nearest existing one."""
    from penstock.client.errors import UnknownGroup

    is_unknown = any(isinstance(error, UnknownGroup) for error in errors.values())
    there = [group.group_id for group in admin.list_groups()] if is_unknown else []
    return {
        name: no_such_group(name, there) if isinstance(error, UnknownGroup) else command_error_for(error)
        for name, error in errors.items()
    }


def _show(output: Output, group: GroupDescription) -> None:
    facts = [group.state, counted(len(group.members), "member")]
    if group.protocol:
        facts.append(f"{group.protocol} assignment")
    if group.coordinator is not None:
        facts.append(f"coordinator {group.coordinator.id}")
    if group.partitions:
        behind = f"lag {group.lag_records:,}"
        facts.append(behind + (f" ({duration_text(group.lag_seconds)})" if group.lag_seconds is not None else ""))
    output.line(f"{output.style(printable(group.group_id), 'cyan', bold=True)}: {', '.join(facts)}")
    who = {member.member_id: member for member in group.members}
    rows: list[tuple[Any, ...]] = []
    for item in group.partitions:
        member = who.get(item.member_id or "")
        rows.append(
            (
                item.partition.topic, item.partition.partition, item.committed, item.end, item.lag_records,
                duration_text(item.lag_seconds), _member_name(member), member.host if member else None,
            )
        )  # fmt: skip
    titles = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "MEMBER", "HOST")
    show_table(output, titles, rows, "  ")
    idle = [member for member in group.members if not member.assignment]
    show_table(output, ("MEMBER WITHOUT PARTITIONS", "HOST"), [(_member_name(each), each.host) for each in idle], "  ")


def _member_name(member: Any) -> str | None:
    return None if member is None else member.group_instance_id or member.member_id


def _document(group: GroupDescription) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocolType": group.protocol_type,
        "assignor": group.protocol or None,
        "coordinator": group.coordinator.id if group.coordinator else None,
        "lagRecords": group.lag_records,
        "lagSeconds": group.lag_seconds,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "topics": list(member.topics),
                "partitions": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": item.partition.topic,
                "partition": item.partition.partition,
                "committed": item.committed,
                "end": item.end,
                "lagRecords": item.lag_records,
                "lagSeconds": item.lag_seconds,
                "member": item.member_id,
            }
            for item in group.partitions
        ],
    }


@groups.command(short_help="Move the committed offsets of a group.")
@group_arguments(required=True, only_one=True)
@click.option(
    "-t", "--topic", "topics", type=TopicPartitions(), multiple=True, shell_complete=topic_names,
    help="Partitions to move. Can be repeated.",
)  # fmt: skip
@click.option("--all-topics", is_flag=True, help="Move all partitions with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="Move to the first record.")
@click.option("--to-latest", is_flag=True, help="Move past the last record.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Move to this offset.")
@click.option("--to-time", "--to-datetime", type=Timestamp(), help="Move to the first record at or after this time.")
@click.option("--by-duration", type=Duration(), help="Move to the first record of this long ago: 1h30m, PT90M.")
@click.option("--shift-by", type=int, metavar="N", help="Move forward by N offsets, or back if negative.")
@click.option("--to-current", is_flag=True, help="Commit the current offsets again.")
@click.option("--create", is_flag=True, help="Create the group if it does not exist.")
@confirmation_options
@format_option
@cluster_command
def seek(
    cluster: Cluster,
    names: tuple[str, ...],
    topics: tuple[NameAndPartitions, ...],
    all_topics: bool,
    create: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
    **targets: Any,
) -> None:
    """Move the committed offsets of a group. The group must have no members.

    Shows the plan and asks for confirmation at a terminal. Without a terminal, the group is moved only with --execute.
    An offset outside a partition becomes the nearest one inside.

    \b
    Exit code: 0  planned or done
               1  some partitions could not be moved, or you answered no
               4  rejected: the group has members, or the group or topic does not exist
    """
    from penstock.cli.groups.seek import NEW, Target, check_idle, execute_plan, make_plan, show_outcome, show_plan

    if len(names) > 1:
        raise CommandError("Only one group can be moved at a time.", "Give one GROUP.")
    group = names[0]

    if bool(topics) == all_topics:
        raise CommandError("No partitions were given.", "Use --topic TOPIC[:P,...], or --all-topics.")
    chosen = {name: value for name, value in targets.items() if value is not None and value is not False}
    if len(chosen) != 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise CommandError("No target was given.", f"Use one of {options}.")
    ((kind, value),) = chosen.items()
    if kind in ("to_time", "by_duration"):
        cluster.check_times()
    output = Output()
    with cluster.admin() as admin:
        plan = make_plan(admin, group, topics, Target(kind, int(value)))
        if plan.state == NEW and not create and not dry_run and sys.stdin.isatty():
            there = [each.group_id for each in admin.list_groups()]
            missing = no_such_group(group, there)
            raise Rejected(missing.problem, f"{missing.hint} Use --create to create it.", code=missing.code)
        if output_format != JSON:
            show_plan(output, plan)
        if execute:
            check_idle(plan)
        question = f"Move {group} in {counted(len(plan.moves), 'partition')}?"
        done = not (plan.members and not execute) and confirmed_plan(question, dry_run=dry_run, execute=execute)
        failures = execute_plan(admin, plan) if done else {}
    if done and plan.state == NEW:
        click.echo(f"Created group {printable(group)}.", err=True)
    show_outcome(output, output_format, plan, failures, executed=done)
    if output_format != JSON:
        show_failures(failures.values(), output_format)
    if failures:
        click.get_current_context().exit(EXIT_PARTLY)


@groups.command(short_help="Delete groups, or their committed offsets for a topic.")
@group_arguments(required=True)
@click.option(
    "-t", "--topic", "topics", type=TopicPartitions(), multiple=True, shell_complete=topic_names,
    help="Delete only the committed offsets of this topic. Can be repeated.",
)  # fmt: skip
@confirmation_options
@format_option
@cluster_command
def delete(
    cluster: Cluster,
    names: tuple[str, ...],
    topics: tuple[NameAndPartitions, ...],
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Delete groups without members and their committed offsets; with --topic, only the offsets of topics.

    Asks for confirmation at a terminal.
    """
    what = "committed offsets of" if topics else "the groups"
    with cluster.admin() as admin:
        if not dry_run:
            confirm(f"Delete {what} {', '.join(names)}?", yes=execute)
        answers = _would_delete(admin, names) if dry_run else _deleted(admin, names, topics)
        failed = group_errors(admin, {name: error for name, error in answers.items() if error is not None})
    output = Output()
    deleted = [name for name, error in answers.items() if error is None]
    if output_format == JSON:
        documents = {name: error.document() for name, error in failed.items()}
        output.json({"dryRun": dry_run, "deleted": deleted, "failed": documents}, indent=2)
    else:
        offsets = "offsets of " if topics else ""
        for name in deleted:
            shown = printable(name)
            output.line(
                f"{offsets}{shown} would be deleted (dry run)." if dry_run else f"Deleted {offsets}{shown}."
            )  # fmt: skip
    output.flush()
    first, *others = failed.values() or [None]
    show_failures([error for error in others if error is not None], output_format)
    if first is not None:
        raise first


def _deleted(
    admin: Admin, names: Iterable[str], topics: tuple[NameAndPartitions, ...]
) -> dict[str, PenstockError | None]:
    from penstock.cli.topics.partitions import selected_partitions

    if not topics:
        return dict(admin.delete_groups(names))
    partitions = selected_partitions(admin, topics)
    answers: dict[str, PenstockError | None] = {}
    for name in names:
        each = admin.delete_group_offsets(name, partitions)
        answers[name] = next((error for error in each.values() if error is not None), None)
    return answers


def _would_delete(admin: Admin, names: Iterable[str]) -> dict[str, PenstockError | None]:
    """The errors that deletion would have: a group must exist and have no members."""
    from penstock.client.errors import PenstockError, error_for
    from penstock.wire.protocol import ErrorCode

    answers: dict[str, PenstockError | None] = {}
    for name, group in admin.describe_groups(list(names), with_lag=False).items():
        if isinstance(group, PenstockError):
            answers[name] = group
        else:
            is_used = bool(group.members)
            answers[name] = error_for(ErrorCode.NON_EMPTY_GROUP, where=f"group {name}") if is_used else None
    return answers
