"""`penstock configs`: settings of topics and brokers, where their values come from, and changes to them.

A name that the broker does not know is rejected with the nearest known one, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completion import broker_ids, setting_names, topic_names
from penstock.cli.connection import Cluster, Rejected, cluster_command
from penstock.cli.options import dry_run_option, set_option, unset_option, watch_option
from penstock.cli.output import JSON, CommandError, Output, format_option, printable, sentence, show_table

if TYPE_CHECKING:
    from penstock.client.admin import Admin, ConfigEntry, ConfigResource

# Kafka's default for "not set": flush.messages, flush.ms, max.compaction.lag.ms.
_LONG_MAX = str(2**63 - 1)
_MIN_INSYNC = "min.insync.replicas"
_MOST_TOPICS = 1000
# Kafka takes these for brokers without describing them.
_UNLISTED = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)

LAYERS = {
    "topic": "topic",
    "dynamic broker": "this broker, dynamic",
    "dynamic default": "all brokers, dynamic",
    "static": "broker's file",
    "default": "default",
}


@click.group()
def configs() -> None:
    """Show and change the settings of topics and brokers."""


def _whose(command: Any) -> Any:
    """--topic, --broker or --all-brokers."""
    for option in (
        click.option("--all-brokers", is_flag=True, help="Change settings for all brokers."),
        click.option("--broker", type=int, metavar="ID", shell_complete=broker_ids, help="Settings of a broker."),
        click.option("-t", "--topic", metavar="TOPIC", shell_complete=topic_names, help="Settings of a topic."),
    ):
        command = option(command)
    return command


def _resource(topic: str | None, broker: int | None, all_brokers: bool) -> ConfigResource:
    from penstock.client.admin import ConfigResource

    if (topic is not None) + (broker is not None) + all_brokers != 1:
        raise CommandError("No topic or broker was given.", "Use one of --topic TOPIC, --broker ID and --all-brokers.")
    return ConfigResource.topic(topic) if topic is not None else ConfigResource.broker(broker)


@configs.command(short_help="Show settings and where their values come from.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=setting_names)
@_whose
@click.option("--all", "everything", is_flag=True, help="Include settings at their default.")
@click.option("--docs", is_flag=True, help="Show the documentation of each setting.")
@watch_option
@format_option
@cluster_command
def describe(
    cluster: Cluster,
    names: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    everything: bool,
    docs: bool,
    output_format: str,
) -> None:
    """Show the settings of a topic or a broker, and where each value comes from.

    Without NAME, only settings that differ from their default; with --all, all of them. "(not set)" is Kafka's
    largest number, which means no limit.
    """
    resource = _resource(topic, broker, all_brokers)
    with cluster.admin() as admin:
        settings = _described(admin, resource)
    check_names(settings, names, resource)
    shown = [
        entry
        for name, entry in sorted(settings.items())
        if (name in names if names else everything or entry.source != "default")
    ]
    output = Output()
    if output_format == JSON:
        output.json({"resource": str(resource), "settings": [_document(entry) for entry in shown]}, indent=2)
        return
    if not shown:
        output.line(f"{resource}: all {len(settings)} settings have their default; --all shows them.")
        return
    rows = [(entry.name, _value(entry), LAYERS.get(entry.source, entry.source)) for entry in shown]
    if docs:
        for entry, row in zip(shown, rows, strict=True):
            output.line(output.style(printable(f"{row[0]} = {row[1]}"), bold=True) + f"  ({row[2]})")
            output.paragraph(printable(entry.documentation or "The broker has no documentation for it."), "    ")
        return
    show_table(output, ("SETTING", "VALUE", "FROM"), rows)


@configs.command(short_help="Change settings.")
@_whose
@set_option
@unset_option
@dry_run_option
@format_option
@cluster_command
def alter(
    cluster: Cluster,
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    assignments: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Change settings of a topic or of brokers at run time, and show them before and after.

    Example: penstock configs alter --topic views --set retention.ms=86400000
    """
    resource = _resource(topic, broker, all_brokers)
    changes: dict[str, str | None] = {**dict(assignments), **dict.fromkeys(unset)}
    if not changes:
        raise CommandError("No change was given.", "Use --set NAME=VALUE or --unset NAME.")
    with cluster.admin() as admin:
        before = _described(admin, resource)
        known = {**_settings_of_a_broker(admin), **before} if all_brokers else before
        check_names(known, [name for name in changes if not _is_free(resource, name)], resource)
        admin.alter_config(resource, changes, validate_only=dry_run)
        after = before if dry_run else admin.describe_config(resource)
        if resource.kind == "broker":
            _warn_of_min_insync(admin, changes.get(_MIN_INSYNC))
    output = Output()
    rows = [
        (name, _value(before.get(name)), (value or "(default)") if dry_run else _value(after.get(name)))
        for name, value in changes.items()
    ]
    if output_format == JSON:
        found = [{"name": name, "before": old, "after": new} for name, old, new in rows]
        output.json({"resource": str(resource), "dryRun": dry_run, "changes": found}, indent=2)
        return
    show_table(output, ("SETTING", "BEFORE", "AFTER"), rows)
    if dry_run:
        output.line("Dry run: the change is valid; nothing was changed.")


def _settings_of_a_broker(admin: Admin) -> Mapping[str, ConfigEntry]:
    """The settings of one broker: all that can be set. The default broker lists only those that were altered."""
    from penstock.client.admin import ConfigResource

    nodes = admin.describe_cluster().nodes
    return admin.describe_config(ConfigResource.broker(nodes[0].id)) if nodes else {}


def _is_free(resource: ConfigResource, name: str) -> bool:
    """Whether a broker takes the name without listing it: settings of a listener, and Kafka's throttles."""
    return resource.kind == "broker" and (name.startswith("listener.name.") or name in _UNLISTED)


def _warn_of_min_insync(admin: Admin, value: str | None) -> None:
    """Name the topics that a new default of min.insync.replicas leaves without a successful acks=all."""
    from penstock.client.admin import ConfigResource
    from penstock.client.errors import PenstockError

    needed = int(value) if value is not None and value.isdigit() else 1
    if needed < 2:
        return
    topics = [each for each in admin.describe_topics().values() if not isinstance(each, PenstockError)]
    few = {
        ConfigResource.topic(each.name): each.name
        for each in sorted(topics, key=lambda each: each.name)
        if any(len(partition.replicas) < needed for partition in each.partitions)
    }
    settings = admin.describe_configs(list(few)[:_MOST_TOPICS])
    names = []
    for resource, found in settings.items():
        entry = None if isinstance(found, PenstockError) else found.get(_MIN_INSYNC)
        if entry is not None and entry.source != "topic":
            names.append(few[resource])
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        click.echo(
            f"Warning: no write with acks=all can succeed in {printable(shown)}: fewer than {needed} replicas. "
            f"To require fewer: penstock configs alter --topic {printable(names[0])} --set {_MIN_INSYNC}=N.",
            err=True,
        )


def _described(admin: Admin, resource: ConfigResource) -> Mapping[str, ConfigEntry]:
    """The settings of a topic or broker. Rejected, with the nearest name, for a topic that does not exist."""
    from penstock.cli.topics.partitions import topic_errors
    from penstock.client.errors import UnknownTopic

    try:
        return admin.describe_config(resource)
    except UnknownTopic as error:
        raise topic_errors(admin, {resource.name: error})[resource.name] from None


def check_names(settings: Mapping[str, ConfigEntry], names: Iterable[str], whose: object) -> None:
    """Raise for an unknown setting, with the nearest known name."""
    from difflib import get_close_matches

    for name in names:
        if name not in settings:
            near = get_close_matches(name.lower(), list(settings), n=1)
            raise Rejected(
                sentence(f"{whose} has no setting {name!r}"),
                f"Did you mean {near[0]}?" if near else "`penstock configs describe` with --all shows the settings.",
            )


def _value(entry: ConfigEntry | None) -> str | None:
    if entry is None:
        return None
    if entry.is_sensitive and entry.value is None:
        return "(hidden)"
    return "(not set)" if entry.value == _LONG_MAX else entry.value


def _document(entry: ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source,
        "default": entry.is_default,
        "readOnly": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
    }
