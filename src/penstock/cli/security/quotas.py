"""`penstock quotas`: how much of the cluster users, client ids and addresses may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.options import dry_run_option, watch_option
from penstock.cli.output import JSON, CommandError, Output, format_option, show_table

if TYPE_CHECKING:
    from penstock.client.admin import Quota, QuotaEntity

_KEYS = """\b
    producer_byte_rate        bytes produced per second
    consumer_byte_rate        bytes consumed per second
    request_percentage        time of each broker's event loop, in percent
    controller_mutation_rate  partitions created or deleted per second
    connection_creation_rate  connections per second from an address"""


@click.group(epilog=_KEYS)
def quotas() -> None:
    """Manage quotas of users, client ids and addresses."""


def _whose(command: Any) -> Any:
    for option in (
        click.option("--ip", metavar="ADDRESS", help='An IP address, or "default".'),
        click.option("--client-id", metavar="ID", help='A client id, or "default".'),
        click.option("--user", metavar="USER", help='A user, or "default" for all without a quota of their own.'),
    ):
        command = option(command)
    return command


@quotas.command("list", short_help="List quotas.")
@_whose
@watch_option
@format_option
@cluster_command
def list_quotas(cluster: Cluster, user: str | None, client_id: str | None, ip: str | None, output_format: str) -> None:
    """List all quotas, or those of a user, a client id or an address."""
    with cluster.admin() as admin:
        found = admin.describe_quotas(_entity(user, client_id, ip))
    output = Output()
    if output_format == JSON:
        output.json({"quotas": [_document(each) for each in found]}, indent=2)
        return
    if not found:
        output.nothing("No quotas.")
        return
    show_table(output, ("USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"), [
        (each.entity.user, each.entity.client_id, each.entity.ip, key, _number(value))
        for each in found for key, value in sorted(each.values.items())
    ])  # fmt: skip


@quotas.command("set", short_help="Set quotas.")
@click.argument("values", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@_whose
@dry_run_option
@format_option
@cluster_command
def set_quotas(
    cluster: Cluster,
    values: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Set quotas of a user, a client id, both, or an address.

    Example: penstock quotas set producer_byte_rate=1048576 --user alice
    """
    changes: dict[str, float | None] = {}
    for text in values:
        name, _, value = text.partition("=")
        try:
            changes[name] = float(value)
        except ValueError:
            hint = "Write QUOTA=NUMBER, as in producer_byte_rate=1048576."
            raise CommandError(f"{text!r} is not a quota.", hint) from None
    _alter(cluster, _required(user, client_id, ip), changes, dry_run, output_format)


@quotas.command(short_help="Remove quotas.")
@click.argument("names", nargs=-1, metavar="[QUOTA]...")
@_whose
@dry_run_option
@format_option
@cluster_command
def remove(
    cluster: Cluster,
    names: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Remove quotas of a user, a client id, both, or an address; without QUOTA, all of them."""
    entity = _required(user, client_id, ip)
    if not names:
        with cluster.admin() as admin:
            found = [each for each in admin.describe_quotas(entity, strict=True) if each.entity == entity]
        if not found:
            raise CommandError(f"There are no quotas of {entity}.", "`penstock quotas list` shows all.")
        names = tuple(found[0].values)
    _alter(cluster, entity, dict.fromkeys(names), dry_run, output_format)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> QuotaEntity | None:
    from penstock.client.admin.users import DEFAULT_ENTITY, QuotaEntity

    names = [DEFAULT_ENTITY if name == "default" else name for name in (user, client_id, ip)]
    return QuotaEntity(*names) if any(name is not None for name in names) else None


def _required(user: str | None, client_id: str | None, ip: str | None) -> QuotaEntity:
    entity = _entity(user, client_id, ip)
    if entity is None:
        raise CommandError(
            "No user, client id or address was given.", "Use --user, --client-id, both of them, or --ip."
        )
    return entity


def _alter(
    cluster: Cluster, entity: QuotaEntity, changes: dict[str, float | None], dry_run: bool, output_format: str
) -> None:
    with cluster.admin() as admin:
        admin.alter_quota(entity, changes, validate_only=dry_run)
    output = Output()
    if output_format == JSON:
        output.json({"entity": entity.parts(), "changes": changes, "dryRun": dry_run}, indent=2)
    elif dry_run:
        output.line("Dry run: nothing was changed.")
    else:
        output.line(f"Quotas of {entity} changed: {', '.join(changes)}.")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)


def _document(quota: Quota) -> dict[str, object]:
    return {"entity": quota.entity.parts(), "values": dict(sorted(quota.values.items()))}
