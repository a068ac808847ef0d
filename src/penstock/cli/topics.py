"""`penstock topics`: make, list, describe, alter and delete topics.

Rule: commands about several topics do all that can be done, tell for each what could not, and end with the code of the
first failure. Internal topics are shown to whoever asks for them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster import Cluster, Refused, cluster_command
from penstock.cli.completing import topic_names
from penstock.cli.output import JSON, CommandError, Output, format_option
from penstock.cli.values import Assignment

if TYPE_CHECKING:
    import re

    from penstock.client.admin import Admin
    from penstock.client.errors import PenstockError

_EXIT_CODES = """\b
    Exit code: 0  done
               2  the options make no sense
               3  no broker could be reached
               4  refused; the message says why"""


@click.group(epilog=_EXIT_CODES)
def topics() -> None:
    """Make, list, describe, alter and delete topics."""


@topics.command(short_help="Make topics.")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="[default: the broker's num.partitions]"
)
@click.option(
    "-r", "--replication-factor", type=click.IntRange(min=1), metavar="N",
    help="[default: the broker's default.replication.factor]",
)  # fmt: skip
@click.option("-c", "--config", "configs", type=Assignment(), multiple=True, help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="Be content with a topic that is there already.")
@click.option("--dry-run", is_flag=True, help="Only ask whether it would be allowed.")
@format_option
@cluster_command
def create(
    cluster: Cluster,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    output_format: str,
) -> None:
    """Make topics.

    For example: penstock topics create views --partitions 6 --config retention.ms=86400000
    """
    from penstock.cli.topics_report import show_created, unknown_settings
    from penstock.client.admin import TopicSpec
    from penstock.client.errors import InvalidSetting, PenstockError

    specs = [
        TopicSpec(name, partitions or -1, replication_factor or -1, dict(configs)) for name in dict.fromkeys(names)
    ]
    with cluster.admin() as admin:
        answers = admin.create_topics(specs, exist_ok=if_not_exists, validate_only=dry_run)
        refused = [error for error in answers.values() if isinstance(error, PenstockError)]
        # Which of the settings it was that the broker did not know is worth a question.
        better = unknown_settings(admin, dict(configs)) if any(isinstance(e, InvalidSetting) for e in refused) else None
    show_created(Output(), output_format, answers, dry_run=dry_run)
    if better is not None:
        raise better
    _raise_first(refused)


@topics.command("list", short_help="List topics.")
@click.option("--internal", "--all", is_flag=True, help="Show internal topics too.")
@click.option("--match", metavar="REGEX", help="Only topics whose whole name matches.")
@format_option
@cluster_command
def list_(cluster: Cluster, internal: bool, match: str | None, output_format: str) -> None:
    """List topics: their names, a line each; with --format json their numbers of partitions and replicas too."""
    from penstock.cli.topics_report import is_internal, topic_summary
    from penstock.client.admin import TopicDescription

    pattern = _pattern(match)
    with cluster.admin() as admin:
        described = admin.describe_topics()
    output = Output()
    found = [
        topic
        for name, topic in sorted(described.items())
        if isinstance(topic, TopicDescription)
        and (internal or not is_internal(topic))
        and (pattern is None or pattern.fullmatch(name))
    ]
    if output_format == JSON:
        output.json({"topics": [topic_summary(topic) for topic in found]}, indent=2)
        return
    for topic in found:
        output.line(topic.name)


@topics.command(short_help="Show partitions, leaders, replicas, settings and sizes.")
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@click.option("--internal", "--all", is_flag=True, help="Show internal topics too, if no topic is named.")
@click.option("--troubled", is_flag=True, help="Only partitions without a leader or with replicas out of sync.")
@click.option(
    "--under-replicated", "--under-replicated-partitions", is_flag=True,
    help="Only partitions that have a replica out of sync; one that is just being added does not count.",
)  # fmt: skip
@click.option("--unavailable", "--unavailable-partitions", is_flag=True, help="Only partitions that nobody leads.")
@click.option(
    "--under-min-isr", "--under-min-isr-partitions", is_flag=True,
    help="Only partitions that refuse acks=all: fewer are in sync than min.insync.replicas.",
)  # fmt: skip
@format_option
@cluster_command
def describe(cluster: Cluster, names: tuple[str, ...], internal: bool, output_format: str, **filters: bool) -> None:
    """Show topics: partitions, leaders, replicas, those in sync, offsets and sizes, and settings of their own.

    Without TOPIC, all of them. ISR are the replicas in sync; ELR those that are not, but may lead, since they have all
    that was acknowledged. With several of the filters, what fits one of them is shown; internal topics too.
    """
    from penstock.cli.topics_report import collect, filter_of, is_internal, show_described
    from penstock.client.admin import TopicDescription
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_topics(names or None, include_eligible=True)
        internal = internal or bool(names) or any(filters.values())
        found = [
            topic
            for _, topic in sorted(answers.items())
            if isinstance(topic, TopicDescription) and (internal or not is_internal(topic))
        ]
        pictures = collect(admin, found)
        missing = [error for error in answers.values() if isinstance(error, PenstockError)]
        better = _nearest_topic(admin, names) if missing else None
    show_described(Output(), output_format, pictures, filter_of(filters))
    if better is not None:
        raise better
    _raise_first(missing)


@topics.command(short_help="Add partitions, change settings.")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(min=1), metavar="N", help="How many there shall be; only more.")
@click.option("-c", "--config", "configs", type=Assignment(), multiple=True, help="A setting to change.")
@click.option(
    "--delete-config", "deleted", multiple=True, metavar="NAME", help="A setting to give back to its default."
)
@click.option("--dry-run", is_flag=True, help="Only ask whether it would be allowed.")
@format_option
@cluster_command
def alter(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    deleted: tuple[str, ...],
    dry_run: bool,
    output_format: str,
) -> None:
    """Add partitions to a topic, or change its settings.

    Records of a key go to another partition once there are more of them; what is stored stays where it is.
    """
    from penstock.cli.configs import check_names
    from penstock.client.admin import ConfigResource

    changes: dict[str, str | None] = {**dict(configs), **dict.fromkeys(deleted)}
    if partitions is None and not changes:
        raise CommandError("Nothing to alter was given.", "Give --partitions, --config or --delete-config.")
    resource = ConfigResource.topic(name)
    done: list[str] = []
    with cluster.admin() as admin:
        if changes:
            check_names(admin.describe_config(resource), changes, resource)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=dry_run)
            done.append(f"{partitions} partitions")
        if changes:
            admin.alter_config(resource, changes, validate_only=dry_run)
            done += [
                f"{key} {'back to its default' if value is None else f'= {value}'}" for key, value in changes.items()
            ]
    output = Output()
    if output_format == JSON:
        output.json({"topic": name, "dryRun": dry_run, "partitions": partitions, "config": changes}, indent=2)
    else:
        output.line(f"{name}: {', '.join(done)}{' would be accepted (dry run)' if dry_run else ''}.")


@topics.command(short_help="Delete topics and their records.")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@click.option("--if-exists", is_flag=True, help="Be content if there is no such topic.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; without a terminal nothing is asked anyway.")
@format_option
@cluster_command
def delete(cluster: Cluster, names: tuple[str, ...], if_exists: bool, yes: bool, output_format: str) -> None:
    """Delete topics, with all their records. It cannot be undone."""
    from penstock.client.errors import UnknownTopic

    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True, err=True)
    with cluster.admin() as admin:
        answers = admin.delete_topics(names)
        missing = {name for name, error in answers.items() if isinstance(error, UnknownTopic)}
        better = _nearest_topic(admin, names) if missing and not if_exists else None
    output = Output()
    deleted = [name for name, error in answers.items() if error is None]
    if output_format == JSON:
        failed = {name: str(error) for name, error in answers.items() if error is not None}
        output.json({"deleted": deleted, "failed": failed}, indent=2)
    else:
        for name in deleted:
            output.line(f"Deleted {name}.")
    output.flush()
    if better is not None:
        raise better
    _raise_first([error for name, error in answers.items() if error and not (if_exists and name in missing)])


def _pattern(text: str | None) -> re.Pattern[str] | None:
    import re

    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandError(f"{text!r} is no regular expression: {error}.", "For example: --match 'views.*'") from None


def _nearest_topic(admin: Admin, names: tuple[str, ...]) -> Refused | None:
    """A topic that does not exist, and the one that was perhaps meant."""
    from difflib import get_close_matches

    there = admin.list_topics(include_internal=True)
    for name in names:
        near = get_close_matches(name, there, n=1) if name not in there else []
        if near:
            return Refused(f"There is no topic {name!r}.", f"Did you mean {near[0]}?")
    return None


def _raise_first(errors: list[PenstockError]) -> None:
    if errors:
        for further in errors[1:]:
            click.echo(f"Error: {further.message}.", err=True)
        raise errors[0]
