"""`penstock brokers`: the brokers of a cluster, their disks, and the protocol versions that they serve.

A broker that cannot be asked is reported with the reason; the others are still shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.completion import broker_ids
from penstock.cli.connection import Cluster, Rejected, cluster_command, error_document, show_failures
from penstock.cli.options import watch_option
from penstock.cli.output import EXIT_PARTLY, JSON, Output, format_option, show_table
from penstock.runtime.quantities import human_bytes

if TYPE_CHECKING:
    from penstock.client.admin import LogDirectory


class ListedByDefault(click.Group):
    """A group whose default command is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListedByDefault)
def brokers() -> None:
    """Show the brokers of the cluster. `list` is the default."""


@brokers.command("list", short_help="List the brokers of the cluster.")
@watch_option
@format_option
@cluster_command
def list_(cluster: Cluster, output_format: str) -> None:
    """Show the brokers: address, rack, controller, leaders, replicas, replicas out of sync, data size.

    An offline broker is listed while partitions have replicas on it.
    """
    from penstock.cli.cluster import brokers_report as report

    with cluster.admin() as admin:
        cluster_id, pictures = report.collect(admin)
    output = Output()
    if output_format == JSON:
        output.json({"cluster": cluster_id, "brokers": [report.document(each) for each in pictures]}, indent=2)
        return
    report.show_list(output, cluster_id, pictures)


@brokers.command(short_help="Show brokers in detail.")
@click.argument("wanted", nargs=-1, type=int, metavar="[BROKER]...", shell_complete=broker_ids)
@watch_option
@format_option
@cluster_command
def describe(cluster: Cluster, wanted: tuple[int, ...], output_format: str) -> None:
    """Show brokers in detail: address, rack, leaders, replicas, replicas out of sync, data folders, settings.

    Without ID, all brokers.

    \b
    Exit code: 1  a broker is offline or did not answer
               4  the broker does not exist
    """
    from penstock.cli.cluster import brokers_report as report

    with cluster.admin() as admin:
        cluster_id, pictures = report.collect(admin)
        unknown = sorted(set(wanted) - {each.id for each in pictures})
        if unknown:
            there = ", ".join(str(each.id) for each in pictures)
            raise Rejected(f"Broker {unknown[0]} does not exist.", f"The brokers are {there}.")
        chosen = [each for each in pictures if not wanted or each.id in wanted]
        settings = report.settings_of(admin, chosen)
    output = Output()
    if output_format == JSON:
        documents = [report.full_document(each, settings.get(each.id)) for each in chosen]
        output.json({"cluster": cluster_id, "brokers": documents}, indent=2)
    else:
        for number, each in enumerate(chosen):
            if number:
                output.line()
            report.show_described(output, each, settings.get(each.id))
    output.flush()
    if any(each.node is None or each.id not in settings for each in chosen):
        click.get_current_context().exit(EXIT_PARTLY)


@brokers.command(short_help="Show data folders, sizes and free space.")
@click.argument("wanted", nargs=-1, type=int, metavar="[BROKER]...", shell_complete=broker_ids)
@click.option("--topics", "by_topic", is_flag=True, help="Show the size of each topic in each folder.")
@watch_option
@format_option
@cluster_command
def disks(cluster: Cluster, wanted: tuple[int, ...], by_topic: bool, output_format: str) -> None:
    """Show the data folders of brokers, their sizes, and the free space.

    \b
    Exit code: 1  a folder is offline, or a broker did not answer
    """
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_log_dirs(wanted or None)
    output = Output()
    failed = {broker: error for broker, error in answers.items() if isinstance(error, PenstockError)}
    found = [
        (broker, folder)
        for broker, folders in sorted(answers.items())
        if not isinstance(folders, PenstockError)
        for folder in folders
    ]
    if output_format == JSON:
        document = {
            "folders": [_folder(broker, folder) for broker, folder in found],
            "failed": {str(broker): error_document(error) for broker, error in failed.items()},
        }
        output.json(document, indent=2)
    else:
        rows = [
            (
                broker, folder.path, len(folder.sizes), human_bytes(sum(folder.sizes.values())),
                _known(folder.usable_bytes), _known(folder.total_bytes), "offline" if folder.error else "online",
            )
            for broker, folder in found
        ]  # fmt: skip
        show_table(output, ("BROKER", "FOLDER", "PARTITIONS", "DATA", "FREE", "DISK", "STATE"), rows)
        if by_topic:
            output.line()
            sizes = ((broker, folder.path, topic, human_bytes(size)) for broker, folder in found
                     for topic, size in sorted(_by_topic(folder).items()))  # fmt: skip
            show_table(output, ("BROKER", "FOLDER", "TOPIC", "DATA"), list(sizes))
    output.flush()
    show_failures(failed.values(), output_format)
    if failed or any(folder.error for _, folder in found):
        click.get_current_context().exit(EXIT_PARTLY)


def _known(size: int) -> str | None:
    return None if size < 0 else human_bytes(size)


def _by_topic(folder: LogDirectory) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for partition, size in folder.sizes.items():
        sizes[partition.topic] = sizes.get(partition.topic, 0) + size
    return sizes


def _folder(broker: int, folder: LogDirectory) -> dict[str, object]:
    return {
        "broker": broker,
        "path": folder.path,
        "online": folder.error is None,
        "partitions": len(folder.sizes),
        "bytes": sum(folder.sizes.values()),
        "freeBytes": folder.usable_bytes if folder.usable_bytes >= 0 else None,
        "totalBytes": folder.total_bytes if folder.total_bytes >= 0 else None,
        "topics": _by_topic(folder),
    }


@brokers.command(short_help="Show the APIs and versions that brokers support.")
@click.argument("wanted", nargs=-1, type=int, metavar="[BROKER]...", shell_complete=broker_ids)
@format_option
@cluster_command
def versions(cluster: Cluster, wanted: tuple[int, ...], output_format: str) -> None:
    """Show the APIs of each broker, their versions, and the version that this command would use."""
    import asyncio

    from penstock.wire.protocol import APIS

    async def ask() -> dict[int, dict[int, tuple[int, int]]]:
        async with cluster.async_admin() as admin:
            asked = wanted or [node.id for node in (await admin.describe_cluster()).nodes]
            return {broker: (await admin.cluster.to(broker)).versions for broker in asked}

    found = asyncio.run(ask())
    output = Output()
    rows = []
    for broker, served in found.items():
        for key, (lowest, highest) in sorted(served.items()):
            api = APIS.get(key)
            agreed = None
            if api is not None and lowest <= api.versions.highest and highest >= api.versions.lowest:
                agreed = min(highest, api.versions.highest)
            rows.append((broker, key, api.name if api else f"api {key}", lowest, highest, agreed))
    if output_format == JSON:
        names = ("broker", "key", "api", "lowest", "highest", "used")
        output.json({"versions": [dict(zip(names, row, strict=True)) for row in rows]}, indent=2)
        return
    show_table(output, ("BROKER", "KEY", "REQUEST", "LOWEST", "HIGHEST", "USED"), rows)
