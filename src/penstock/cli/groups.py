"""`penstock groups`: consumer groups, how far they are behind, and moving them.

Rule: lag is shown in records and in time: the age of the first record that was not read. Nothing moves a group unless
--execute is given; without it the plan is shown.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster import Cluster, cluster_command
from penstock.cli.completing import group_names, topic_names
from penstock.cli.output import JSON, CommandError, Output, counted, format_option, printable
from penstock.cli.tables import show_table
from penstock.cli.values import Duration, Moment, NameAndPartitions, TopicPartitions, duration_text

if TYPE_CHECKING:
    from penstock.client.admin import GroupDescription

_EXIT_PARTLY = 1


@click.group()
def groups() -> None:
    """List, describe, move and delete consumer groups."""


@groups.command("list", short_help="List groups and their states.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those: Stable, Empty ...")
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


@groups.command(short_help="Show members, what they read, and how far they are behind.")
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=group_names)
@format_option
@cluster_command
def describe(cluster: Cluster, names: tuple[str, ...], output_format: str) -> None:
    """Show groups: state, members and their partitions, committed offsets, lag in records and in time.

    Without GROUP, all groups.

    \b
    Exit code: 1  one of several groups could not be described; it is told
               4  there is no such group
    """
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_groups(names or [group.group_id for group in admin.list_groups()])
    found = [group for group in answers.values() if not isinstance(group, PenstockError)]
    failed = [error for error in answers.values() if isinstance(error, PenstockError)]
    output = Output()
    if output_format == JSON:
        output.json({"groups": [_document(group) for group in found]}, indent=2)
    else:
        for number, group in enumerate(found):
            if number:
                output.line()
            _show(output, group)
    output.flush()
    if failed and not found:
        raise failed[0]
    for error in failed:
        click.echo(f"Error: {error.message}.", err=True)
    if failed:
        click.get_current_context().exit(_EXIT_PARTLY)


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


@groups.command(short_help="Move a group to other offsets; a dry run unless --execute is given.")
@click.argument("group", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--topic", "topics", type=TopicPartitions(), multiple=True, metavar="TOPIC[:P,...]", shell_complete=topic_names,
    help="Which partitions to move.",
)  # fmt: skip
@click.option("--all-topics", is_flag=True, help="All partitions for which the group has committed something.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="Past the last record.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--to-time", "--to-datetime", type=Moment(), help="To the first record at or after this time.")
@click.option("--by-duration", type=Duration(), help="To the first record of this long ago: 1h30m, PT90M.")
@click.option("--shift-by", type=int, metavar="N", help="By N records forward, or back if negative.")
@click.option("--to-current", is_flag=True, help="To what is committed already: commits it again.")
@click.option("--execute", is_flag=True, help="Do it. The group must have no members then.")
@format_option
@cluster_command
def seek(
    cluster: Cluster,
    group: str,
    topics: tuple[NameAndPartitions, ...],
    all_topics: bool,
    execute: bool,
    output_format: str,
    **targets: Any,
) -> None:
    """Move a group: where it will go on reading.

    Shows the plan and does nothing, unless --execute is given. An offset that a partition does not have becomes the
    nearest that it has.

    \b
    Exit code: 0  planned, or done
               1  some partitions could not be moved; they are told
               4  refused: the group has members, or there is no such topic
    """
    from penstock.cli.groups_seek import Target, execute_plan, make_plan, show_plan

    if bool(topics) == all_topics:
        raise CommandError("Which partitions are meant?", "Give --topic TOPIC[:P,...], or --all-topics.")
    chosen = {name: value for name, value in targets.items() if value is not None and value is not False}
    if len(chosen) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise CommandError("Where the group shall go must be said once.", f"Give one of {names}.")
    ((kind, value),) = chosen.items()
    if kind in ("to_time", "by_duration"):
        cluster.check_times()
    with cluster.admin() as admin:
        plan = make_plan(admin, group, topics, Target(kind, int(value)))
        failures = execute_plan(admin, group, plan) if execute else {}
    show_plan(Output(), output_format, plan, failures, executed=execute)
    if failures:
        click.get_current_context().exit(_EXIT_PARTLY)


@groups.command(short_help="Delete groups without members, or their offsets of a topic.")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@click.option(
    "--topic", "topics", type=TopicPartitions(), multiple=True, metavar="TOPIC[:P,...]", shell_complete=topic_names,
    help="Delete only what is committed for these.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask; without a terminal nothing is asked anyway.")
@format_option
@cluster_command
def delete(
    cluster: Cluster, names: tuple[str, ...], topics: tuple[NameAndPartitions, ...], yes: bool, output_format: str
) -> None:
    """Delete groups without members, with all that they have committed; or, with --topic, only that of topics."""
    from penstock.cli.offsets import partitions_meant

    what = "what is committed by" if topics else "the groups"
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {what} {', '.join(names)}?", abort=True, err=True)
    with cluster.admin() as admin:
        if topics:
            partitions = partitions_meant(admin, topics)
            answers: dict[str, Any] = {}
            for name in names:
                each = admin.delete_group_offsets(name, partitions)
                answers[name] = next((error for error in each.values() if error is not None), None)
        else:
            answers = dict(admin.delete_groups(names))
    output = Output()
    deleted = [name for name, error in answers.items() if error is None]
    failed = [error for error in answers.values() if error is not None]
    if output_format == JSON:
        named = {name: str(error) for name, error in answers.items() if error is not None}
        output.json({"deleted": deleted, "failed": named}, indent=2)
    else:
        for name in deleted:
            output.line(f"Deleted {'offsets of ' if topics else ''}{printable(name)}.")
    output.flush()
    for error in failed[1:]:
        click.echo(f"Error: {error.message}.", err=True)
    if failed:
        raise failed[0]
