"""`penstock acls`: list, add, remove and explain access rules.

A rule allows or denies an operation on a resource to a principal. Resources are options: --topic, --group,
--transactional-id, --cluster; with --prefixed, their names are prefixes. `explain` reads the rules, the super users and
the default of the cluster, and decides as a broker does: it says which rule decided, and which one would be needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.completion import group_names, topic_names, transactional_ids
from penstock.cli.connection import Cluster, cluster_command, command_error_for
from penstock.cli.options import confirmation_options, confirmed_plan, dry_run_option, watch_option
from penstock.cli.output import EXIT_PARTLY, JSON, CommandError, Output, format_option, show_table
from penstock.runtime.quantities import counted
from penstock.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    AclAuthorizer,
    AclBinding,
    AclEntry,
    AclFilter,
    Acls,
    Explanation,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    member_named,
    parse_super_users,
    title_of,
)
from penstock.security.principal import Principal, Session

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in older versions of click

_EXIT_DENIED: Final = 1
_Command = TypeVar("_Command", bound=Callable[..., Any])

_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)


@click.group()
def acls() -> None:
    """List, add, remove and explain access rules (ACLs)."""


# --- options


class _Member(_ParamType):
    """An operation in any spelling: read, DescribeConfigs, describe-configs."""

    name = "operation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Operation, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(member_named(Operation, word) for word in str(value).split(","))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _PrincipalName(_ParamType):
    name = "principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, name = str(value).partition(":")
        if not kind or not name:
            self.fail(f"{value!r} is not a principal; write Type:name, for example User:alice or Group:ops", param, ctx)
        return str(value)


def _resource_options(command: _Command) -> _Command:
    """Resources by type, under the name `patterns`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        topics: tuple[str, ...],
        group_ids: tuple[str, ...],
        transactions: tuple[str, ...],
        cluster_itself: bool,
        prefixed: bool,
        **params: Any,
    ) -> Any:
        kind = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        patterns = [
            *(ResourcePattern(ResourceType.TOPIC, name, kind) for name in topics),
            *(ResourcePattern(ResourceType.GROUP, name, kind) for name in group_ids),
            *(ResourcePattern(ResourceType.TRANSACTIONAL_ID, name, kind) for name in transactions),
            *([ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster_itself else []),
        ]
        return command(*args, patterns=patterns, **params)

    for option in (
        click.option("--prefixed", is_flag=True, help="Treat the names as prefixes."),
        click.option("--cluster", "cluster_itself", is_flag=True, help="The cluster itself."),
        click.option("--transactional-id", "transactions", multiple=True, metavar="ID",
                     shell_complete=transactional_ids, help="Transactional id; * means all. Can be repeated."),
        click.option("-g", "--group", "group_ids", multiple=True, metavar="GROUP", shell_complete=group_names,
                     help="Group; * means all. Can be repeated."),
        click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=topic_names,
                     help="Topic; * means all. Can be repeated."),
    ):  # fmt: skip
        run = option(run)
    return run  # type: ignore[return-value]


def _rule_options(command: _Command) -> _Command:
    for option in (
        click.option("--deny", is_flag=True, help="Deny instead of allow. DENY wins over every ALLOW."),
        click.option("--host", default=WILDCARD, show_default=True, metavar="ADDRESS", help="Address of the client."),
        click.option("--producer", is_flag=True, help="What a producer needs: Write, Describe and Create on topics, "
                     "Write and Describe on transactional ids."),
        click.option("--consumer", is_flag=True, help="What a consumer needs: Read and Describe on topics, Read on "
                     "groups."),
        click.option("-o", "--operation", "operations", type=_Member(), multiple=True, metavar="OPERATION",
                     help="Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs, All and "
                     "others; several separated by commas. Can be repeated."),
        click.option("-p", "--principal", "principals", type=_PrincipalName(), multiple=True, required=True,
                     metavar="TYPE:NAME", help="User:alice, User:*, Group:ops, Role:auditor. Can be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


def _rules(
    principals: Sequence[str],
    operations: Iterable[tuple[Operation, ...]],
    patterns: Sequence[ResourcePattern],
    *,
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
) -> list[AclBinding]:
    given = [each for several in operations for each in several]
    if not patterns:
        raise CommandError("No resource was given.", "Use --topic, --group, --transactional-id or --cluster.")
    if not given and not producer and not consumer:
        raise CommandError("No operation was given.", "Use --operation, --producer or --consumer.")
    permission = Permission.DENY if deny else Permission.ALLOW
    found: dict[AclBinding, None] = {}
    for pattern in patterns:
        wanted = [*given, *_preset(pattern.type, producer=producer, consumer=consumer)]
        for operation in wanted:
            if operation is not Operation.ALL and operation not in OPERATIONS_OF[pattern.type]:
                possible = ", ".join(title_of(each) for each in OPERATIONS_OF[pattern.type])
                raise CommandError(
                    f"{title_of(operation)} is not an operation on a {title_of(pattern.type)}.",
                    f"Use All, {possible}.",
                )
            for principal in principals:
                found[AclBinding(pattern, AclEntry(principal, host, operation, permission))] = None
    if not found:
        raise CommandError("A producer needs --topic or --transactional-id, a consumer --topic and --group.")
    return list(found)


def _preset(kind: ResourceType, *, producer: bool, consumer: bool) -> list[Operation]:
    found: list[Operation] = []
    if producer and kind is ResourceType.TOPIC:
        found += _PRODUCER
    if producer and kind is ResourceType.TRANSACTIONAL_ID:
        found += (Operation.WRITE, Operation.DESCRIBE)
    if consumer and kind is ResourceType.TOPIC:
        found += _CONSUMER
    if consumer and kind is ResourceType.GROUP:
        found.append(Operation.READ)
    return found


# --- output


def _document(acl: AclBinding) -> dict[str, object]:
    pattern, entry = acl
    return {
        "resourceType": title_of(pattern.type),
        "resource": pattern.name,
        "patternType": pattern.pattern_type.name,
        "principal": entry.principal,
        "host": entry.host,
        "operation": title_of(entry.operation),
        "permission": title_of(entry.permission),
    }


def _show(output: Output, found: Sequence[AclBinding], output_format: str, key: str = "acls", **more: Any) -> None:
    if output_format == JSON:
        output.json({key: [_document(acl) for acl in found], **more}, indent=2)
        return
    rows = [
        (
            title_of(pattern.type),
            f"{pattern.name}{WILDCARD}" if pattern.pattern_type is PatternType.PREFIXED else pattern.name,
            pattern.pattern_type.name.lower(),
            entry.principal,
            title_of(entry.permission),
            title_of(entry.operation),
            entry.host,
        )
        for pattern, entry in found
    ]
    show_table(output, ("TYPE", "RESOURCE", "PATTERN", "PRINCIPAL", "PERMISSION", "OPERATION", "HOST"), rows)


# --- commands


@acls.command("list", short_help="List access rules.")
@_resource_options
@click.option("-p", "--principal", type=_PrincipalName(), metavar="TYPE:NAME", help="Only rules for this principal.")
@click.option(
    "--covering", is_flag=True, help="Show all rules that apply to the resources, including those for prefixes and *."
)
@watch_option
@format_option
@cluster_command
def list_(
    cluster: Cluster, patterns: list[ResourcePattern], principal: str | None, covering: bool, output_format: str
) -> None:
    """List the rules of the cluster, or of some resources."""
    filters = [
        AclFilter(each.type, each.name, PatternType.MATCH if covering else each.pattern_type, principal)
        for each in patterns
    ] or [AclFilter(principal=principal)]
    with cluster.admin() as admin:
        found = sorted({acl for each in filters for acl in _read(admin, each)})
    output = Output()
    if not found and output_format != JSON:
        output.nothing("No rules.")
    else:
        _show(output, found, output_format)


@acls.command(short_help="Add access rules.")
@_resource_options
@_rule_options
@dry_run_option
@format_option
@cluster_command
def add(
    cluster: Cluster,
    patterns: list[ResourcePattern],
    principals: tuple[str, ...],
    operations: tuple[tuple[Operation, ...], ...],
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Add a rule for each principal, operation and resource.

    \b
    penstock acls add -p User:alice --producer -t views
    penstock acls add -p Group:analysts --consumer -t shop. -g analysts- --prefixed
    penstock acls add -p User:bob -o delete -t '*' --deny

    \b
    Exit code: 1  some rules could not be added
               4  the brokers rejected them, or have no authorizer
    """
    wanted = _rules(principals, operations, patterns, producer=producer, consumer=consumer, host=host, deny=deny)
    output = Output()
    if dry_run:
        _show(output, wanted, output_format, "planned", added=[])
        if output_format != JSON:
            output.line("Dry run: nothing was changed.")
        return
    with cluster.admin() as admin:
        outcomes = admin.create_acls(wanted)
    errors = {acl: error for acl, error in outcomes.items() if error is not None}
    added = [acl for acl in wanted if acl not in errors]
    failed = [{**_document(acl), "error": str(error)} for acl, error in errors.items()]
    _show(output, added, output_format, "added", failed=failed)
    output.flush()
    _fail(errors, all_failed=not added)


@acls.command(short_help="Remove access rules.")
@_resource_options
@click.option("-p", "--principal", "principals", type=_PrincipalName(), multiple=True, metavar="TYPE:NAME",
              help="Only rules for this principal. Can be repeated.")  # fmt: skip
@click.option("-o", "--operation", "operations", type=_Member(), multiple=True, metavar="OPERATION",
              help="Only rules for this operation. Can be repeated.")  # fmt: skip
@click.option("--host", metavar="ADDRESS", help="Only rules for this address; * are those for all.")
@click.option("--deny/--allow", "deny", default=None, help="Only rules that deny, or that allow.")
@confirmation_options
@format_option
@cluster_command
def remove(
    cluster: Cluster,
    patterns: list[ResourcePattern],
    principals: tuple[str, ...],
    operations: tuple[tuple[Operation, ...], ...],
    host: str | None,
    deny: bool | None,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Remove the rules that match all of the options. Shows them first, and asks for confirmation at a terminal.

    Without a terminal, rules are removed only with --execute.
    """
    permission = Permission.ANY if deny is None else Permission.DENY if deny else Permission.ALLOW
    given = [each for several in operations for each in several] or [Operation.ANY]
    if not patterns and not principals:
        raise CommandError("Neither a resource nor a principal was given.", "Use --topic, --principal or others.")
    resources = [AclFilter(each.type, each.name, each.pattern_type) for each in patterns] or [AclFilter()]
    filters = [
        resource._replace(principal=principal, host=host, operation=operation, permission=permission)
        for resource in resources
        for principal in principals or (None,)
        for operation in given
    ]
    output = Output()
    with cluster.admin() as admin:
        found = sorted({acl for each in filters for acl in _read(admin, each)})
        if output_format != JSON:
            _show(output, found, output_format)
            output.flush()
        if not found:
            removed: list[AclBinding] = []
        elif confirmed_plan(f"Remove {counted(len(found), 'rule')}?", dry_run=dry_run, execute=execute):
            removed = _removed(admin, filters)
        else:
            if output_format == JSON:
                _show(output, found, output_format, "planned", removed=[])
            else:
                output.line("Nothing was changed. Use --execute to remove these rules.")
            return
    if output_format == JSON:
        _show(output, removed, output_format, "removed")
    else:
        output.line(f"Removed {counted(len(removed), 'rule')}." if removed else "No rules match.")


def _removed(admin: Admin, filters: Sequence[AclFilter]) -> list[AclBinding]:
    from penstock.client.errors import PenstockError

    removed: list[AclBinding] = []
    for outcome in admin.delete_acls(filters).values():
        if isinstance(outcome, PenstockError):
            raise command_error_for(outcome)
        removed += outcome
    return sorted(set(removed))


@acls.command(short_help="Say why a request is allowed or denied.")
@click.argument("principal", type=_PrincipalName(), metavar="TYPE:NAME")
@click.argument("operations", type=_Member(), metavar="OPERATION")
@_resource_options
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of the client.")
@click.option("--member", "memberships", type=_PrincipalName(), multiple=True, metavar="TYPE:NAME",
              help="A group or role of the principal: Group:ops. Can be repeated.")  # fmt: skip
@format_option
@cluster_command
def explain(
    cluster: Cluster,
    principal: str,
    operations: tuple[Operation, ...],
    patterns: list[ResourcePattern],
    host: str,
    memberships: tuple[str, ...],
    output_format: str,
) -> None:
    """Say whether a principal may do something, which rule decides, and which one would be needed.

    \b
    penstock acls explain User:alice read --topic views

    \b
    Exit code: 0  allowed
               1  denied
    """
    if not patterns:
        raise CommandError("No resource was given.", "Use --topic, --group, --transactional-id or --cluster.")
    session = Session(_principal(principal), host=host, groups=frozenset(map(_principal, memberships)))
    with cluster.admin() as admin:
        authorizer = _authorizer_of(admin)
    found = [
        (operation, pattern, authorizer.explain(session, operation, pattern.type, pattern.name))
        for pattern in patterns
        for operation in operations
    ]
    output = Output()
    if output_format == JSON:
        output.json(
            {"principal": principal, "host": host, "explanations": [_explained(*each) for each in found]}, indent=2
        )
    else:
        for operation, pattern, explanation in found:
            _show_explanation(output, principal, operation, pattern, explanation)
    output.flush()
    if not all(explanation.verdict.allowed for _, _, explanation in found):
        click.get_current_context().exit(_EXIT_DENIED)


def _principal(text: str) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind, name)


def _authorizer_of(admin: Admin) -> AclAuthorizer:
    """The rules of the cluster, as its brokers have them."""
    from penstock.client.admin import ConfigResource
    from penstock.client.errors import PenstockError

    try:
        rules = admin.describe_acls()
        broker = admin.describe_cluster().nodes[0].id
        settings = admin.describe_config(ConfigResource.broker(broker))
    except PenstockError as error:
        raise command_error_for(error) from error
    default = settings.get("allow.everyone.if.no.acl.found")
    named = settings.get("super.users")
    super_users = parse_super_users((named.value if named is not None else None) or "")
    is_open = default is not None and default.value == "true"
    authorizer = AclAuthorizer(super_users, allow_without_acls=is_open)
    authorizer.use(Acls.of(rules))
    return authorizer


def _explained(operation: Operation, pattern: ResourcePattern, explanation: Explanation) -> dict[str, object]:
    verdict = explanation.verdict
    return {
        "resourceType": title_of(pattern.type),
        "resource": pattern.name,
        "operation": title_of(operation),
        "allowed": verdict.allowed,
        "reason": verdict.reason.name,
        "text": verdict.reason.value,
        "rule": None if verdict.acl is None else _document(verdict.acl),
        "needed": None if explanation.needed is None else _document(explanation.needed),
    }


def _show_explanation(
    output: Output, principal: str, operation: Operation, pattern: ResourcePattern, explanation: Explanation
) -> None:
    verdict = explanation.verdict
    word = output.style("allowed", "green") if verdict.allowed else output.style("denied", "red")
    output.line(f"{title_of(operation)} on {pattern} by {principal}: {word}")
    output.line(f"  Reason: {verdict.reason.value}.")
    if verdict.acl is not None:
        output.line(f"  Rule: {verdict.acl}.")
    if explanation.remedy is not None:
        output.line(f"  To allow it, {explanation.remedy}.")


def _read(admin: Admin, wanted: AclFilter) -> list[AclBinding]:
    from penstock.client.errors import PenstockError

    try:
        return admin.describe_acls(wanted)
    except PenstockError as error:
        raise command_error_for(error) from error


def _fail(errors: Mapping[AclBinding, PenstockError], *, all_failed: bool) -> None:
    if not errors:
        return
    if all_failed:
        raise command_error_for(next(iter(errors.values())))
    for acl, error in errors.items():
        click.echo(f"Not added: {acl}: {command_error_for(error).message}", err=True)
    click.get_current_context().exit(EXIT_PARTLY)
