"""`penstock users`: users who log in with SCRAM.

A password is read from a prompt, or with --password-from from a file or an environment variable. It is never an
argument: arguments are visible to all users of the machine. With --login-file a random password is written, with
the connection settings of the command itself, to a file for the user's own commands and clients.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.options import confirmation_options, watch_option
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, printable, show_table
from penstock.cli.security.security import properties_text, write_private

if TYPE_CHECKING:
    from penstock.client.admin import UserDescription

_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_PASSWORD_BYTES: Final = 24


@click.group()
def users() -> None:
    """Manage users who log in with SCRAM."""


def _password_options(command: Any) -> Any:
    for option in (
        click.option(
            "--password-from", metavar="SOURCE", help="file:PATH or env:NAME; without it, the password is prompted for."
        ),
        click.option(
            "--mechanism", type=click.Choice(_MECHANISMS), default=_MECHANISMS[0], show_default=True,
            help="SCRAM mechanism of the password.",
        ),
        click.option("--iterations", type=int, default=8192, show_default=True, help="4096 to 16384."),
    ):  # fmt: skip
        command = option(command)
    return command


@users.command("list", short_help="List users and their mechanisms.")
@watch_option
@format_option
@cluster_command
def list_users(cluster: Cluster, output_format: str) -> None:
    """List the users who have a SCRAM credential. Passwords cannot be shown: they are not stored."""
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        found = [each for each in admin.describe_users().values() if not isinstance(each, PenstockError)]
    output = Output()
    if output_format == JSON:
        output.json({"users": [_document(each) for each in found]}, indent=2)
        return
    if not found:
        output.nothing("No users.")
        return
    show_table(output, ("USER", "MECHANISM", "ITERATIONS"), [
        (each.name, mechanism, count) for each in found for mechanism, count in sorted(each.mechanisms.items())
    ])  # fmt: skip


@users.command(short_help="Add a user.")
@click.argument("name", metavar="USER")
@click.option(
    "--login-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the user's login to this new file, for --command-config. "
    "Without --password-from, a random password is generated.",
)  # fmt: skip
@_password_options
@format_option
@cluster_command
def add(
    cluster: Cluster,
    name: str,
    login_file: Path | None,
    password_from: str | None,
    mechanism: str,
    iterations: int,
    output_format: str,
) -> None:
    """Add a user with a password.

    Example: penstock users add alice --login-file alice.properties
    """
    from penstock.client.errors import PenstockError

    if login_file is not None and password_from is None:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
    else:
        password = _password(password_from)
    text = None if login_file is None else _login_text(cluster, name, password, mechanism)
    with cluster.admin() as admin:
        known = admin.describe_users([name])[name]
        if not isinstance(known, PenstockError) and mechanism in known.mechanisms:
            raise CommandError(
                f"User {name!r} already has a password for {mechanism}.", "`penstock users passwd` changes it."
            )
        if login_file is not None and text is not None:
            # Before the password is set: without the file it would be lost.
            write_private(login_file, text.encode())
        try:
            admin.set_password(name, password, mechanism=mechanism, iterations=iterations)
        except PenstockError as error:
            if login_file is not None and error.retriable:
                click.echo(f"The user may have been added. Its login stays in {printable(str(login_file))}.", err=True)
            elif login_file is not None:
                login_file.unlink()
            raise
    _done(f"User {name} added.", {"user": name, "mechanism": mechanism, "added": True}, output_format)


@users.command(short_help="Change the password of a user.")
@click.argument("name", metavar="USER")
@_password_options
@format_option
@cluster_command
def passwd(
    cluster: Cluster, name: str, password_from: str | None, mechanism: str, iterations: int, output_format: str
) -> None:
    """Change the password of a user. Open connections stay; the next login needs the new password."""
    from penstock.client.errors import PenstockError

    password = _password(password_from)
    with cluster.admin() as admin:
        known = admin.describe_users([name])[name]
        if isinstance(known, PenstockError):
            raise known
        admin.set_password(name, password, mechanism=mechanism, iterations=iterations)
    _done(f"Password of {name} changed.", {"user": name, "mechanism": mechanism, "changed": True}, output_format)


@users.command(short_help="Remove a user.")
@click.argument("name", metavar="USER")
@click.option("--mechanism", type=click.Choice(_MECHANISMS), help="Remove only the password of this mechanism.")
@confirmation_options
@format_option
@cluster_command
def remove(
    cluster: Cluster, name: str, mechanism: str | None, dry_run: bool, execute: bool, output_format: str
) -> None:
    """Remove the passwords of a user. Quotas and ACLs of the user stay."""
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        known = admin.describe_users([name])[name]
        if isinstance(known, PenstockError):
            raise known
        mechanisms = [mechanism] if mechanism else sorted(known.mechanisms)
        document = {"user": name, "mechanisms": mechanisms, "dryRun": dry_run}
        if dry_run:
            text = f"Would remove {', '.join(mechanisms)} of {name}. Dry run: nothing was changed."
            _done(text, document, output_format)
            return
        confirm(f"Remove the passwords of {name}?", yes=execute)
        admin.delete_user(name, mechanisms)
    _done(f"User {name} removed.", document, output_format)


def _login_text(cluster: Cluster, name: str, password: str, mechanism: str) -> str:
    """The file of a user's login: the connection settings of this command, with another user. CommandError."""
    from penstock.security.credentials import format_jaas

    given: Mapping[str, str] = cluster.properties
    if not given.get("security.protocol", "").upper().startswith("SASL_"):
        raise CommandError(
            "--login-file needs a connection with SASL: the file has the settings of this one.",
            "Use the --command-config of a user, such as admin.properties of `penstock security init`.",
        )
    kept = {key: text for key, text in given.items() if key.startswith("ssl.") and not key.startswith("ssl.key")}
    properties = {
        "bootstrap.servers": cluster.servers,
        "security.protocol": given["security.protocol"],
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": format_jaas("SCRAM", {"username": name, "password": password}),
        **kept,
    }
    return f"# The login of {name}, made by `penstock users add`.\n{properties_text(properties)}"


def _password(source: str | None) -> str:
    if source is None:
        if not sys.stdin.isatty():
            raise CommandError(
                "The password cannot be prompted for without a terminal.", "Use --password-from file:PATH or env:NAME."
            )
        text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return text
    from penstock.security.credentials import CredentialsError, resolve

    if not source.startswith(("file:", "env:")):
        raise CommandError(
            "--password-from must be file:PATH or env:NAME.", "A password on the command line is visible to others."
        )
    try:
        password = resolve(source)
    except CredentialsError as error:
        raise CommandError(f"The password cannot be read: {error}.") from None
    if not password:
        raise CommandError("The password is empty.")
    return password


def _document(user: UserDescription) -> dict[str, object]:
    return {"name": user.name, "mechanisms": dict(sorted(user.mechanisms.items()))}


def _done(text: str, document: dict[str, object], output_format: str) -> None:
    output = Output()
    if output_format == JSON:
        output.json(document, indent=2)
    else:
        output.line(text)
