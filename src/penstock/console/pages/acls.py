"""ACLs: the list, adding and removing one, and why somebody may or may not do something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from penstock.client.admin import (
    AclBinding,
    AclEntry,
    AclFilter,
    AsyncAdmin,
    ConfigResource,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.client.errors import BrokerError, PenstockError, UnsupportedVersion
from penstock.console.app import Handler, Invalid, Visit, needed
from penstock.console.cluster.state import page_of
from penstock.console.html import Child, Html, h, number
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Change,
    Column,
    card,
    change_form,
    check_field,
    code,
    confirmed,
    empty,
    page,
    pager,
    search_form,
    select_field,
    sorting,
    table,
    tag,
    text_field,
)
from penstock.security.acls import (
    OPERATIONS_OF,
    AclAuthorizer,
    Acls,
    member_named,
    parse_super_users,
    problem_of,
    title_of,
)
from penstock.security.principal import Principal, Session

_TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic", ResourceType.GROUP: "--group", ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}  # fmt: skip
_CLUSTER_NAME: Final = "kafka-cluster"
_SORTS: Final[Mapping[str, Callable[[AclBinding], Any]]] = {
    "principal": lambda acl: acl.entry.principal,
    "resource": lambda acl: (int(acl.pattern.type), acl.pattern.name),
    "operation": lambda acl: title_of(acl.entry.operation),
    "permission": lambda acl: int(acl.entry.permission),
}


async def acls(visit: Visit) -> Response:
    forms = [_explain_form(visit), _add_form(visit)]
    try:
        listed = await visit.account.admin.describe_acls()
    except UnsupportedVersion:
        return page(visit, "ACLs", empty("These brokers are too old to have ACLs that a client can read."))
    except BrokerError as error:
        if error.code.name != "SECURITY_DISABLED":
            raise
        return page(visit, "ACLs", empty("The brokers have no authorizer, so everybody may do everything."))
    explained = await _explained(visit, listed) if visit.query.get("who") else None
    principal = visit.query.get("principal", "")
    sort, descending = sorting(visit, _SORTS, "principal", descending=False)
    found = page_of(
        [acl for acl in listed if not principal or acl.entry.principal == principal],
        search=visit.query.get("q", ""), name=str, key=_SORTS[sort], descending=descending,
        number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    columns = [
        Column("Principal", sort="principal"), Column("", sort="permission"), Column("Operation", sort="operation"),
        Column("Resource", sort="resource"), Column("From"), Column("Remove"),
    ]  # fmt: skip
    columns[1] = columns[1]._replace(title="Effect")
    rows = [
        (
            h.span(acl.entry.principal, cls="mono"), _effect(acl.entry.permission), title_of(acl.entry.operation),
            _resource(acl.pattern), acl.entry.host, _remove_form(visit, acl),
        )
        for acl in found.rows
    ]  # fmt: skip
    content: Child = table(columns, rows, caption="ACLs", visit=visit, sort=sort, descending=descending, cls="list")
    return page(
        visit,
        "ACLs",
        explained,
        search_form(visit, "Search ACLs", "Search ACLs"),
        content if rows else empty("No ACLs."),
        pager(visit, found, "ACLs"),
        h.div(forms, cls="columns"),
    )


def _effect(permission: Permission) -> Html:
    return tag("deny", "bad") if permission is Permission.DENY else tag("allow", "good")


def _resource(pattern: ResourcePattern) -> list[Child]:
    prefix = " and all that begin so" if pattern.pattern_type is PatternType.PREFIXED else ""
    return [title_of(pattern.type), " ", h.span(pattern.name, cls="mono"), prefix]


def _fields(visit: Visit) -> list[Html]:
    operations = sorted({title_of(each) for kind in _TYPES for each in OPERATIONS_OF[kind]})
    return [
        select_field("type", "Resource", [(title_of(each), title_of(each)) for each in _TYPES],
                     visit.query.get("type", "")),
        text_field("resource", "Its name", visit.query.get("resource", ""), hint="* is all; not for the cluster"),
        select_field("operation", "Operation", [(each, each) for each in ("All", *operations)],
                     visit.query.get("operation", "Read")),
    ]  # fmt: skip


def _add_form(visit: Visit) -> Html:
    return card(
        "Add an ACL",
        change_form(
            visit, "/acls",
            h.div(
                text_field("principal", "Principal", "User:", required=True), _fields(visit),
                check_field("prefixed", "the name is a prefix"), check_field("deny", "deny instead of allow"),
                text_field("host", "From address", "*"),
                cls="fields",
            ),
            button="Add the ACL",
        ),
    )  # fmt: skip


def _explain_form(visit: Visit) -> Html:
    return card(
        "Explain",
        h.form(
            h.p("Why somebody may do something or not, and which ACL would change that."),
            h.div(text_field("who", "Principal", visit.query.get("who", "User:"), required=True), _fields(visit),
                  text_field("host", "From address", visit.query.get("host", "*")), cls="fields"),
            h.div(h.button("Explain", cls="primary"), cls="actions"),
            method="get", action="/acls", cls="form",
        ),
    )  # fmt: skip


def _remove_form(visit: Visit, acl: AclBinding) -> Child:
    if not visit.may_change:
        return None
    pattern, entry = acl
    fields = {
        "principal": entry.principal, "type": title_of(pattern.type), "resource": pattern.name,
        "operation": title_of(entry.operation), "host": entry.host,
        "prefixed": "1" if pattern.pattern_type is PatternType.PREFIXED else "",
        "deny": "1" if entry.permission is Permission.DENY else "",
    }  # fmt: skip
    inputs = [h.input(type_="hidden", name=name, value=value) for name, value in fields.items() if value]
    return change_form(visit, "/acls/remove", inputs, button="Remove", danger=True, cls="row-form")


# --------------------------------------------------------------------------------------------------- changes


def _binding(fields: Mapping[str, str], who: str) -> AclBinding:
    """The ACL of a form; Invalid."""
    try:
        kind = member_named(ResourceType, fields.get("type", ""))
        operation = member_named(Operation, fields.get("operation", ""))
    except ValueError as error:
        raise Invalid(f"{error}.") from None
    name = _CLUSTER_NAME if kind is ResourceType.CLUSTER else needed(fields, "resource", "The name of the resource")
    pattern = ResourcePattern(kind, name, PatternType.PREFIXED if fields.get("prefixed") else PatternType.LITERAL)
    permission = Permission.DENY if fields.get("deny") else Permission.ALLOW
    binding = AclBinding(pattern, AclEntry(who, fields.get("host", "").strip() or "*", operation, permission))
    problem = problem_of(binding)
    if problem is not None:
        raise Invalid(f"{problem}.")
    return binding


def _words(acl: AclBinding) -> list[str]:
    pattern, entry = acl
    words = ["-p", entry.principal, "-o", title_of(entry.operation)]
    option = _OPTIONS.get(pattern.type)
    words += [option, pattern.name] if option else ["--cluster"]
    words += ["--prefixed"] if pattern.pattern_type is PatternType.PREFIXED else []
    words += ["--host", entry.host] if entry.host != "*" else []
    return words + (["--deny"] if entry.permission is Permission.DENY else [])


async def add(visit: Visit) -> Response:
    acl = _binding(visit.form, needed(visit.form, "principal", "The principal"))
    change = Change(
        "Add an ACL", h.p("This ACL is added: ", h.strong(str(acl)), "."),
        visit.command("acls", "add", *_words(acl)), "Add the ACL", "The ACL was added.", "/acls",
        danger=acl.entry.permission is Permission.DENY,
    )  # fmt: skip

    async def apply() -> None:
        error = (await visit.account.admin.create_acls([acl]))[acl]
        if error is not None:
            raise error

    return await confirmed(visit, change, apply)


async def remove(visit: Visit) -> Response:
    acl = _binding(visit.form, needed(visit.form, "principal", "The principal"))
    pattern, entry = acl
    wanted = AclFilter(
        pattern.type, pattern.name, pattern.pattern_type, entry.principal, entry.host, entry.operation,
        entry.permission,
    )  # fmt: skip
    change = Change(
        "Remove an ACL", h.p("This ACL is removed: ", h.strong(str(acl)), "."),
        visit.command("acls", "remove", *_words(acl)), "Remove the ACL", "The ACL was removed.", "/acls", danger=True,
    )  # fmt: skip

    async def apply() -> None:
        found = (await visit.account.admin.delete_acls([wanted]))[wanted]
        if isinstance(found, PenstockError):
            raise found
        if not found:
            raise Invalid("The ACL does not exist any more; nothing was removed.")

    return await confirmed(visit, change, apply)


# --------------------------------------------------------------------------------------------------- explain


async def _authorizer(admin: AsyncAdmin, listed: list[AclBinding]) -> AclAuthorizer:
    """The rules of the cluster, as its brokers have them."""
    nodes = (await admin.describe_cluster()).nodes
    settings = await admin.describe_config(ConfigResource.broker(nodes[0].id))
    named, default = settings.get("super.users"), settings.get("allow.everyone.if.no.acl.found")
    super_users = parse_super_users((named.value if named is not None else None) or "")
    authorizer = AclAuthorizer(super_users, allow_without_acls=default is not None and default.value == "true")
    authorizer.use(Acls.of(listed))
    return authorizer


async def _explained(visit: Visit, listed: list[AclBinding]) -> Html:
    who = needed(visit.query, "who", "The principal")
    acl = _binding(dict(visit.query), who)
    kind, colon, name = who.partition(":")
    if not colon or not name:
        raise Invalid(f"{who!r} is not a principal; write User:alice.")
    authorizer = await _authorizer(visit.account.admin, listed)
    session = Session(Principal(kind, name), host=acl.entry.host)
    found = authorizer.explain(session, acl.entry.operation, acl.pattern.type, acl.pattern.name)
    what = f"{title_of(acl.entry.operation)} {title_of(acl.pattern.type)} {acl.pattern.name}"
    verdict = "may" if found.verdict.allowed else "may not"
    return card(
        f"{who} {verdict} {what}",
        h.p(tag("allowed", "good") if found.verdict.allowed else tag("denied", "bad"), " ", found.verdict.reason.value),
        h.p(found.detail) if found.detail != found.verdict.reason.value else None,
        h.p("To change that: ", found.remedy) if found.remedy else None,
        code(visit.command("acls", "add", *_words(found.needed))) if found.needed else None,
        h.p(f"{number(len(listed))} ACLs were looked at.", cls="none"),
    )


PAGES: Final[dict[str, Handler]] = {"/acls": acls}
CHANGES: Final[dict[str, Handler]] = {"/acls": add, "/acls/remove": remove}
