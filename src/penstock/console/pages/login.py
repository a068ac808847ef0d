"""Logging in with a Kafka user, and out."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from penstock.console.accounts import MECHANISMS
from penstock.console.app import Visit, needed
from penstock.console.html import Child, h
from penstock.console.pages.layout import html_page, select_field, text_field
from penstock.console.security import new_session


def _target(path: str) -> str:
    """A path of this console to go on to; nothing that a browser takes for another host."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path else "/"


def _form(visit: Visit, to: str, problem: Child = None, status: int = 200) -> Response:
    options = visit.console.options
    body = h.main(
        h.form(
            h.h1("Penstock"),
            h.p(f"Log in to {options.servers} with your Kafka user. Its ACLs decide what you see and may do."),
            h.div(problem, cls="card problem", role="alert") if problem else None,
            h.input(type_="hidden", name="csrf", value=visit.csrf),
            h.input(type_="hidden", name="to", value=to),
            text_field("user", "User", autocomplete="username", required=True, autofocus=True, maxlength=255),
            text_field("password", "Password", type_="password", autocomplete="current-password", required=True,
                       maxlength=1024),
            select_field("mechanism", "Mechanism", [(each, each) for each in MECHANISMS], options.mechanism),
            h.div(h.button("Log in", cls="primary"), cls="actions"),
            method="post", action="/login", cls="card",
        ),
        id="main", cls="login",
    )  # fmt: skip
    return html_page("Log in", body, status=status)


async def page(visit: Visit) -> Response:
    if not visit.console.options.login:
        return RedirectResponse("/", 303)
    return _form(visit, _target(visit.query.get("to", "/")))


async def log_in(visit: Visit) -> Response:
    user, password = needed(visit.form, "user", "The user"), visit.form.get("password", "")
    to = _target(visit.form.get("to", "/"))
    mechanism = visit.form.get("mechanism", "")
    session = new_session()  # someone who knows the old one must not get this one
    error = await visit.console.accounts.login(session.id, user, password, mechanism)
    if error is None:
        await visit.console.accounts.logout(visit.session.id)
        response = RedirectResponse(to, 303)
        response.headers.append("set-cookie", visit.console.keys.session_cookie(visit.request, session.id))
        return response
    return _form(visit, to, [h.p(error.message), h.p(error.hint) if error.hint else None], 401)


async def log_out(visit: Visit) -> Response:
    await visit.console.accounts.logout(visit.session.id)
    return RedirectResponse("/login" if visit.console.options.login else "/", 303)
