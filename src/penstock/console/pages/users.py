"""Users with passwords, and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from penstock.client.admin import DEFAULT_ENTITY, QuotaEntity, UserDescription
from penstock.client.admin.users import MECHANISMS
from penstock.client.errors import UnsupportedVersion
from penstock.console.app import Handler, Invalid, Visit, needed
from penstock.console.cluster.state import page_of
from penstock.console.html import Child, Html, h, number, size, with_query
from penstock.console.pages.layout import (
    PAGE_ROWS,
    Change,
    Column,
    card,
    change_form,
    confirmed,
    empty,
    page,
    pager,
    search_form,
    select_field,
    table,
    tag,
    text_field,
)
from penstock.security.quotas import QUOTA_KEYS

_OLD_BROKERS: Final = "These brokers are too old to have users or quotas that a client can change."


async def users(visit: Visit) -> Response:
    try:
        described = await visit.account.admin.describe_users()
    except UnsupportedVersion:
        return page(visit, "Users", empty(_OLD_BROKERS))
    found = page_of(
        (each for each in described.values() if isinstance(each, UserDescription)),
        search=visit.query.get("q", ""), name=lambda user: user.name, number=visit.number("page", 1, least=1),
        size=PAGE_ROWS,
    )  # fmt: skip
    rows = [(_user_name(user), _mechanisms(user), _user_links(user), _remove(visit, user)) for user in found.rows]
    columns = [Column("User"), Column("Passwords"), Column("Rights"), Column("Remove")]
    return page(
        visit,
        "Users",
        search_form(visit, "Search users", "Search users"),
        table(columns, rows, caption="Users", cls="list") if rows else empty("No users with passwords."),
        pager(visit, found, "users"),
        card(
            "Add a user, or change a password",
            change_form(
                visit, "/users",
                h.div(
                    text_field("user", "User", required=True, maxlength=255),
                    text_field("password", "Password", type_="password", required=True, maxlength=1024,
                               autocomplete="new-password"),
                    text_field("again", "Password again", type_="password", required=True, maxlength=1024,
                               autocomplete="new-password"),
                    select_field("mechanism", "Mechanism", [(each, each) for each in sorted(MECHANISMS, reverse=True)]),
                    cls="fields",
                ),
                h.p("Open connections stay; the next login needs the new password. The same on the command line: ",
                    h.code(visit.command("users", "add", "USER")), " or ", h.code("users passwd"), "."),
                h.label(h.input(type_="checkbox", name="confirm", value="yes", required=True),
                        h.span("Yes, set this password"), cls="inline"),
                button="Set the password",
            ),
        ),
    )  # fmt: skip


def _user_name(user: UserDescription) -> Html:
    return h.span(user.name, cls="mono")


def _mechanisms(user: UserDescription) -> list[Html]:
    return [tag(f"{name}, {rounds:,} rounds") for name, rounds in user.mechanisms.items()]


def _user_links(user: UserDescription) -> Html:
    return h.a("ACLs", href=with_query("/acls", principal=f"User:{user.name}"))


def _remove(visit: Visit, user: UserDescription) -> Child:
    if not visit.may_change:
        return None
    return change_form(
        visit, "/users/remove", h.input(type_="hidden", name="user", value=user.name), button="Remove", danger=True,
        cls="row-form",
    )  # fmt: skip


async def set_password(visit: Visit) -> Response:
    """A password is not sent back to the browser, so the confirmation is in the form itself."""
    user = needed(visit.form, "user", "The user")
    password, mechanism = visit.form.get("password", ""), visit.form.get("mechanism", "")
    if not password or password != visit.form.get("again", ""):
        raise Invalid("The two passwords differ, or they are empty; nothing was changed.")
    if visit.form.get("confirm") != "yes":
        raise Invalid("The change was not confirmed; nothing was changed.")
    await visit.account.admin.set_password(user, password, mechanism=mechanism)
    return visit.go("/users", f"The password of {user} was set.")


async def remove_user(visit: Visit) -> Response:
    user = needed(visit.form, "user", "The user")
    change = Change(
        f"Remove user {user}", h.p("The passwords of ", h.strong(user), " are removed. Quotas and ACLs stay."),
        visit.command("users", "remove", user), "Remove the user", f"User {user} was removed.", "/users", danger=True,
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.delete_user(user))


# --------------------------------------------------------------------------------------------------- quotas


async def quotas(visit: Visit) -> Response:
    try:
        described = await visit.account.admin.describe_quotas()
    except UnsupportedVersion:
        return page(visit, "Quotas", empty(_OLD_BROKERS))
    found = page_of(
        described, search=visit.query.get("q", ""), name=lambda quota: str(quota.entity),
        number=visit.number("page", 1, least=1), size=PAGE_ROWS,
    )  # fmt: skip
    rows = [
        (
            str(quota.entity),
            [h.div(f"{name}: ", _quota_text(name, value)) for name, value in quota.values.items()],
            _remove_quota(visit, quota.entity),
        )
        for quota in found.rows
    ]
    columns = [Column("For"), Column("Quotas"), Column("Remove")]
    return page(
        visit,
        "Quotas",
        search_form(visit, "Search quotas", "Search quotas"),
        table(columns, rows, caption="Quotas", cls="list") if rows else empty("No quotas."),
        pager(visit, found, "entities"),
        card(
            "Set a quota",
            change_form(
                visit, "/quotas",
                h.div(
                    text_field("user", "User", hint="or default"), text_field("client", "Client id", hint="or default"),
                    text_field("ip", "IP address", hint="or default"),
                    select_field("quota", "Quota", [(each, each) for each in QUOTA_KEYS]),
                    text_field("value", "Value", required=True, inputmode="decimal"),
                    cls="fields",
                ),
                button="Set the quota",
            ),
        ),
    )  # fmt: skip


def _quota_text(name: str, value: float) -> str:
    return f"{size(value)}/s" if name.endswith("byte_rate") else number(value)


def _entity(form: Mapping[str, str]) -> QuotaEntity:
    def name(text: str) -> str | None:
        return DEFAULT_ENTITY if text == "default" else text or None

    entity = QuotaEntity(
        name(form.get("user", "").strip()), name(form.get("client", "").strip()), name(form.get("ip", "").strip())
    )
    if not entity.parts():
        raise Invalid("Name a user, a client id or an address.")
    return entity


def _entity_words(entity: QuotaEntity) -> list[str]:
    options = {"user": "--user", "client-id": "--client-id", "ip": "--ip"}
    return [
        word
        for kind, name in entity.parts().items()
        for word in (options[kind], "default" if name == DEFAULT_ENTITY else name)
    ]


def _remove_quota(visit: Visit, entity: QuotaEntity) -> Child:
    if not visit.may_change:
        return None
    names = {"user": "user", "client-id": "client", "ip": "ip"}
    fields = [
        h.input(type_="hidden", name=names[kind], value="default" if name == DEFAULT_ENTITY else name)
        for kind, name in entity.parts().items()
    ]
    return change_form(visit, "/quotas/remove", fields, button="Remove", danger=True, cls="row-form")


async def set_quota(visit: Visit) -> Response:
    entity, quota = _entity(visit.form), visit.form.get("quota", "")
    try:
        value = float(visit.form.get("value", "").replace(",", ""))
    except ValueError:
        raise Invalid(f"The value is {visit.form.get('value', '')!r}, which is not a number.") from None
    change = Change(
        f"Set {quota} of {entity}", h.p(f"{entity}: {quota} becomes ", h.strong(_quota_text(quota, value)), "."),
        visit.command("quotas", "set", f"{quota}={value:g}", *_entity_words(entity)), "Set the quota",
        f"{quota} of {entity} was set.", "/quotas",
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.alter_quota(entity, {quota: value}))


async def remove_quota(visit: Visit) -> Response:
    entity = _entity(visit.form)
    now = await visit.account.admin.describe_quotas(entity, strict=True)
    names = sorted({name for quota in now if quota.entity == entity for name in quota.values})
    if not names:
        raise Invalid(f"{entity} has no quotas.")
    change = Change(
        f"Remove the quotas of {entity}", h.p(f"{', '.join(names)} of {entity} are removed."),
        visit.command("quotas", "remove", *_entity_words(entity)), "Remove the quotas",
        f"The quotas of {entity} were removed.", "/quotas", danger=True,
    )  # fmt: skip
    return await confirmed(visit, change, lambda: visit.account.admin.alter_quota(entity, dict.fromkeys(names)))


PAGES: Final[dict[str, Handler]] = {"/users": users, "/quotas": quotas}
CHANGES: Final[dict[str, Handler]] = {
    "/users": set_password,
    "/users/remove": remove_user,
    "/quotas": set_quota,
    "/quotas/remove": remove_quota,
}
