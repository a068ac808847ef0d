"""`penstock profile`: named clusters, with their address and the client properties that they need.

A profile is a file of client properties, as --command-config takes it, in the user's configuration folder
(`$XDG_CONFIG_HOME/penstock/profiles/NAME.properties`, by default below `~/.config`). It may hold passwords, so only
its owner can read it. The name of the profile in use is kept beside the profiles.

The profile in use applies only where a command names no other cluster: an address given by --bootstrap-server never
gets its properties. A profile named by --profile or PENSTOCK_PROFILE always applies, and the command line overrides
it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from penstock.cli.completion import profile_names
from penstock.cli.options import confirmation_options
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, printable, show_table
from penstock.cli.values import Assignment
from penstock.runtime.quantities import counted

SERVERS: Final = "bootstrap.servers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX: Final = ".properties"
_SECRET = re.compile(r"password|secret|jaas|token", re.IGNORECASE)
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


# --- files


def folder() -> Path:
    """The folder of the profiles; it need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "penstock" / "profiles"


def names() -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(path.stem for path in folder().iterdir() if path.suffix == _SUFFIX)
    return []


def in_use() -> str | None:
    """The profile chosen by `penstock profile use`; None if there is none or its file was deleted."""
    try:
        name = (folder().parent / "profile").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if _NAME.fullmatch(name) and _path(name).exists() else None


def properties_of(name: str) -> dict[str, str]:
    """The properties of a profile. CommandError if it does not exist or cannot be read."""
    from penstock.cli.connection import client_properties

    return client_properties(str(_existing(name)), {})


def _path(name: str) -> Path:
    return folder() / f"{name}{_SUFFIX}"


def _existing(name: str) -> Path:
    from difflib import get_close_matches

    if _NAME.fullmatch(name) and _path(name).exists():
        return _path(name)
    there = names()
    near = get_close_matches(name, there, n=1)
    hint = f"The profiles are {', '.join(there)}." if there else f"Create it with `penstock profile create {name}`."
    raise CommandError(f"Profile {name!r} does not exist.", f"Did you mean {near[0]}?" if near else hint)


def _write(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read."""
    path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE)
    try:
        os.fchmod(descriptor, _PRIVATE_FILE)  # whatever an earlier draft had
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
    finally:
        os.close(descriptor)
    os.replace(draft, path)


def _use(name: str | None) -> None:
    chosen = folder().parent / "profile"
    if name is None:
        chosen.unlink(missing_ok=True)
    else:
        _write(chosen, f"{name}\n")


def _text(properties: Mapping[str, str]) -> str:
    """The properties in the format of a file."""
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    return "".join(f"{name}={value.translate(escapes)}\n" for name, value in properties.items())


def _checked(properties: Mapping[str, str]) -> dict[str, str]:
    """The same properties. CommandError for an unknown one or an invalid value."""
    from penstock.cli.connection import client_properties, security_options

    found = client_properties(None, dict(properties))
    security_options(found)
    return found


def _chosen(name: str | None) -> str:
    """The given profile, else the one in use."""
    name = name or in_use()
    if name is None:
        raise CommandError("No profile is in use.", "Give a NAME; `penstock profile list` shows the profiles.")
    return name


# --- commands


@click.group()
def profile() -> None:
    """Manage named clusters: address and client properties.

    \b
    penstock profile create staging -b kafka-1:9093 --set security.protocol=SSL --set ssl.ca.location=/etc/ca.pem
    penstock topics list                     # in staging, which is now in use
    penstock topics list --profile local     # in another cluster
    """


@profile.command(short_help="Create a profile and use it.")
@click.argument("name")
@click.option("-b", "--bootstrap-server", "servers", metavar="HOST:PORT,...", help="Address of the cluster.")
@click.option(
    "-c", "--set", "assignments", type=Assignment(), multiple=True, help="A client property. Can be repeated."
)
@click.option("--from", "file", metavar="FILE", help="Copy the properties of a file, as --command-config takes it.")
@click.option("--replace", is_flag=True, help="Replace an existing profile.")
@click.option("--use/--no-use", "is_used", default=True, help="Whether commands use it from now on.  [default: --use]")
@format_option
def create(
    name: str,
    servers: str | None,
    assignments: tuple[tuple[str, str], ...],
    file: str | None,
    replace: bool,
    is_used: bool,
    output_format: str,
) -> None:
    """Create a profile: the address of a cluster and its client properties."""
    from penstock.cli.connection import client_properties

    if _NAME.fullmatch(name) is None:
        raise CommandError(f"{name!r} is not a valid profile name.", "Use at most 64 letters, digits, dots, - and _.")
    if _path(name).exists() and not replace:
        raise CommandError(
            f"Profile {name!r} already exists.", "Use --replace, or change it with `penstock profile edit`."
        )
    given = {**({SERVERS: servers} if servers is not None else {}), **dict(assignments)}
    properties = _checked(client_properties(file, given))
    if SERVERS not in properties:
        raise CommandError("The profile has no address.", "Add --bootstrap-server HOST:PORT,...")
    _write(_path(name), _text(properties))
    if is_used:
        _use(name)
    _report(
        output_format,
        {"created": name, "inUse": in_use()},
        f"Created profile {name}{', now in use' if is_used else ''}.",
    )


@profile.command(short_help="Choose the profile that commands use.")
@click.argument("name", required=False, shell_complete=profile_names)
@click.option("--none", "is_none", is_flag=True, help="Do not use a profile.")
@format_option
def use(name: str | None, is_none: bool, output_format: str) -> None:
    """Choose the profile for commands that name no other cluster."""
    if (name is None) != is_none:
        raise CommandError("No profile was given.", "Give a NAME, or --none to use no profile.")
    if name is not None:
        _existing(name)
    _use(name)
    _report(output_format, {"inUse": name}, f"Profile {name} is in use." if name else "No profile is in use.")


@profile.command("list", short_help="List profiles.")
@format_option
def list_(output_format: str) -> None:
    """List the profiles and show which one is in use."""
    used = in_use()
    rows = [(each, properties_of(each).get(SERVERS), each == used) for each in names()]
    output = Output()
    if output_format == JSON:
        titles = ("name", "bootstrapServers", "inUse")
        output.json({"profiles": [dict(zip(titles, row, strict=True)) for row in rows]}, indent=2)
        return
    show_table(output, ("PROFILE", "SERVERS", "IN USE"), rows)
    if not rows:
        output.nothing("No profiles. Create one with `penstock profile create NAME -b HOST:PORT`.")


@profile.command(short_help="Show a profile.")
@click.argument("name", required=False, shell_complete=profile_names)
@click.option("--secrets", is_flag=True, help="Show passwords.")
@format_option
def show(name: str | None, secrets: bool, output_format: str) -> None:
    """Show the properties of a profile, by default of the one in use."""
    name = _chosen(name)
    properties = {
        key: value if secrets or _SECRET.search(key) is None else "(hidden)"
        for key, value in properties_of(name).items()
    }
    output = Output()
    if output_format == JSON:
        document = {"name": name, "file": str(_path(name)), "inUse": name == in_use(), "properties": properties}
        output.json(document, indent=2)
        return
    output.line(f"{output.style(name, 'cyan', bold=True)}: {printable(str(_path(name)))}")
    for key, value in properties.items():
        output.line(f"  {printable(f'{key} = {value}')}")


@profile.command(short_help="Change a profile in an editor or by options.")
@click.argument("name", required=False, shell_complete=profile_names)
@click.option("-b", "--bootstrap-server", "servers", metavar="HOST:PORT,...", help="Address of the cluster.")
@click.option(
    "-c", "--set", "assignments", type=Assignment(), multiple=True, help="A client property. Can be repeated."
)
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a property. Can be repeated.")
@format_option
def edit(
    name: str | None,
    servers: str | None,
    assignments: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    output_format: str,
) -> None:
    """Change a profile, by default the one in use.

    Without options, its file is opened in $VISUAL or $EDITOR. Invalid changes are rejected and the profile is not
    changed.
    """
    name = _chosen(name)
    path = _existing(name)
    changes = {**({SERVERS: servers} if servers is not None else {}), **dict(assignments)}
    if changes or unset:
        properties = {**properties_of(name), **changes}
        missing = [each for each in unset if each not in properties]
        if missing:
            raise CommandError(
                f"Profile {name} has no property {missing[0]!r}.", "`penstock profile show` shows its properties."
            )
        text = _text(_checked({key: value for key, value in properties.items() if key not in unset}))
    else:
        text = _edited(path)
    is_changed = text != path.read_text(encoding="utf-8")
    if is_changed:
        _write(path, text)
    _report(
        output_format,
        {"name": name, "changed": is_changed},
        f"Changed profile {name}." if is_changed else "Nothing changed.",
    )


def _edited(path: Path) -> str:
    """The file's text after an editor session. CommandError if it is invalid."""
    from penstock.properties_file import parse_properties

    text = click.edit(path.read_text(encoding="utf-8"), extension=_SUFFIX)
    if text is None:
        return path.read_text(encoding="utf-8")
    parsed = parse_properties(text, path.name)
    if parsed.problems:
        raise CommandError(f"{parsed.problems[0]}.", "The profile was not changed.")
    _checked({item.name: item.value.strip() for item in parsed.properties})
    return text


@profile.command(short_help="Delete profiles.")
@click.argument("wanted", metavar="NAME...", nargs=-1, required=True, shell_complete=profile_names)
@confirmation_options
@format_option
def delete(wanted: tuple[str, ...], dry_run: bool, execute: bool, output_format: str) -> None:
    """Delete profiles. The clusters are not affected."""
    paths = {name: _existing(name) for name in wanted}
    if not dry_run:
        confirm(f"Delete {counted(len(paths), 'profile')} ({', '.join(paths)})?", yes=execute)
        if in_use() in paths:
            _use(None)
        for path in paths.values():
            path.unlink(missing_ok=True)
    done = f"{', '.join(paths)} would be deleted (dry run)." if dry_run else f"Deleted {', '.join(paths)}."
    _report(output_format, {"dryRun": dry_run, "deleted": list(paths)}, done)


def _report(output_format: str, document: Mapping[str, object], text: str) -> None:
    output = Output()
    if output_format == JSON:
        output.json(document, indent=2)
    else:
        output.line(printable(text))
    output.flush()
