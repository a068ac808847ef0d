"""`penstock topics`: create, list, describe, alter, trim and delete topics.

A command about several topics does all that can be done, reports for each what could not, and ends with the exit code
of the first failure. Internal topics are shown to whoever asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster import Cluster, cluster_command, show_failures, told
from penstock.cli.options import (
    asking_options,
    change_options,
    set_option,
    topics_named,
    unset_option,
    watch_option,
)
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, printable
from penstock.cli.partitions import explained_topics
from penstock.cli.topics_trim import trim
from penstock.cli.values import COUNT, FACTOR

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
    """Create, list, describe, alter, trim and delete topics."""


topics.add_command(trim)


@topics.command(short_help="Create topics.")
@topics_named(required=True)
@click.option("-p", "--partitions", type=COUNT, metavar="N", help="[default: the broker's num.partitions]")
@click.option(
    "-r", "--replication-factor", type=FACTOR, metavar="N",
    help="[default: the broker's default.replication.factor]",
)  # fmt: skip
@set_option
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic already exists.")
@change_options
@format_option
@cluster_command
def create(
    cluster: Cluster,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignments: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Create topics.

    For example: penstock topics create views --partitions 6 --set retention.ms=86400000
    """
    from penstock.cli.topics_report import show_created, unknown_settings
    from penstock.client.admin import TopicSpec
    from penstock.client.errors import InvalidSetting, PenstockError

    configs = dict(assignments)
    specs = [TopicSpec(name, partitions or -1, replication_factor or -1, configs) for name in names]
    with cluster.admin() as admin:
        answers = admin.create_topics(specs, exist_ok=if_not_exists, validate_only=dry_run)
        refused = [error for error in answers.values() if isinstance(error, PenstockError)]
        # Which of the settings it was that the broker did not know is worth a question.
        better = unknown_settings(admin, configs) if any(isinstance(e, InvalidSetting) for e in refused) else None
    show_created(Output(), output_format, answers, dry_run=dry_run)
    if better is not None:
        raise better
    _raise_first([told(error) for error in refused], output_format)


@topics.command("list", short_help="List topics.")
@click.option("--internal", "--all", is_flag=True, help="Show internal topics too.")
@click.option("--match", metavar="REGEX", help="Only topics whose whole name matches.")
@watch_option
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
        output.line(printable(topic.name))
    if not found:
        hidden = "" if internal or not described else " (--internal shows internal ones)"
        output.nothing(f"No topic matches {match!r}." if match and described else f"There are no topics{hidden}.")


@topics.command(short_help="Show partitions, leaders, replicas, settings and sizes.")
@topics_named(required=False)
@click.option("--internal", "--all", is_flag=True, help="Show internal topics too, if no topic is named.")
@click.option("--troubled", is_flag=True, help="Only partitions without a leader or with replicas out of sync.")
@click.option(
    "--under-replicated", "--under-replicated-partitions", is_flag=True,
    help="Only partitions that have a replica out of sync; one that is just being added does not count.",
)  # fmt: skip
@click.option("--unavailable", "--unavailable-partitions", is_flag=True, help="Only partitions without a leader.")
@click.option(
    "--under-min-isr", "--under-min-isr-partitions", is_flag=True,
    help="Only partitions that reject acks=all: fewer replicas are in sync than min.insync.replicas.",
)  # fmt: skip
@watch_option
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
        missing = explained_topics(
            admin, {name: error for name, error in answers.items() if isinstance(error, PenstockError)}
        )
    output = Output()
    show_described(output, output_format, pictures, filter_of(filters))
    if not pictures and not names and output_format != JSON:
        output.nothing("There are no topics.")
    _raise_first(list(missing.values()), output_format)


@topics.command(short_help="Add partitions, change settings.")
@topics_named(required=True)
@click.option("-p", "--partitions", type=COUNT, metavar="N", help="New partition count; only more.")
@set_option
@unset_option
@change_options
@format_option
@cluster_command
def alter(
    cluster: Cluster,
    names: tuple[str, ...],
    partitions: int | None,
    assignments: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Add partitions to topics, or change their settings.

    Records of a key go to another partition once there are more of them; what is stored stays where it is.
    """
    changes: dict[str, str | None] = {**dict(assignments), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise CommandError("Nothing to alter was given.", "Give --partitions, --set or --unset.")
    output = Output()
    altered: list[dict[str, object]] = []
    failed: dict[str, PenstockError] = {}
    with cluster.admin() as admin:
        for name in names:
            error = _alter(admin, name, partitions, changes, dry_run=dry_run)
            if error is not None:
                failed[name] = error
                continue
            altered.append({"topic": name, "dryRun": dry_run, "partitions": partitions, "config": changes})
        errors = explained_topics(admin, failed)
    if output_format == JSON:
        document = {"altered": altered, "failed": {name: error.document() for name, error in errors.items()}}
        output.json(document, indent=2)
    else:
        done = ([f"{partitions} partitions"] if partitions is not None else []) + [
            f"{key} {'reset to its default' if value is None else f'= {value}'}" for key, value in changes.items()
        ]
        for each in altered:
            text = f"{each['topic']}: {', '.join(done)}{' would be accepted (dry run)' if dry_run else ''}."
            output.line(printable(text))
    output.flush()
    _raise_first(list(errors.values()), output_format)


def _alter(
    admin: Admin, name: str, partitions: int | None, changes: Mapping[str, str | None], *, dry_run: bool
) -> PenstockError | None:
    """Change one topic. Raises Refused for a setting that does not exist."""
    from penstock.cli.configs import check_names
    from penstock.client.admin import ConfigResource
    from penstock.client.errors import PenstockError

    resource = ConfigResource.topic(name)
    try:
        if changes:
            check_names(admin.describe_config(resource), changes, resource)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=dry_run)
        if changes:
            admin.alter_config(resource, changes, validate_only=dry_run)
    except PenstockError as error:
        return error
    return None


@topics.command(short_help="Delete topics and their records.")
@topics_named(required=True)
@click.option("--if-exists", is_flag=True, help="Do not fail if there is no such topic.")
@asking_options
@format_option
@cluster_command
def delete(
    cluster: Cluster, names: tuple[str, ...], if_exists: bool, dry_run: bool, execute: bool, output_format: str
) -> None:
    """Delete topics, with all their records. It cannot be undone.

    At a terminal it asks first.
    """
    from penstock.client.errors import PenstockError, UnknownTopic

    with cluster.admin() as admin:
        answers: dict[str, PenstockError | None]
        if dry_run:
            found = admin.describe_topics(names)
            answers = {name: topic if isinstance(topic, PenstockError) else None for name, topic in found.items()}
        else:
            confirm(f"Delete {', '.join(names)} with all records?", yes=execute)
            answers = dict(admin.delete_topics(names))
        failed = {name: error for name, error in answers.items() if error is not None}
        if if_exists:
            failed = {name: error for name, error in failed.items() if not isinstance(error, UnknownTopic)}
        errors = explained_topics(admin, failed)
    output = Output()
    deleted = [name for name, error in answers.items() if error is None]
    if output_format == JSON:
        documents = {name: error.document() for name, error in errors.items()}
        output.json({"dryRun": dry_run, "deleted": deleted, "failed": documents}, indent=2)
    else:
        for name in deleted:
            output.line(printable(f"{name} would be deleted (dry run)." if dry_run else f"Deleted {name}."))
    output.flush()
    _raise_first(list(errors.values()), output_format)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    import re

    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandError(
            f"{text!r} is not a regular expression: {error}.", "For example: --match 'views.*'"
        ) from None


def _raise_first(errors: list[CommandError], output_format: str) -> None:
    if errors:
        show_failures(errors[1:], output_format)
        raise errors[0]
