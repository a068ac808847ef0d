"""`penstock schemas`: what a schema registry has, and changes to it. Any registry with Confluent's REST API will do."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.connection import Rejected, Unreachable
from penstock.cli.options import confirmation_options, watch_option
from penstock.cli.output import (
    JSON,
    CommandError,
    Output,
    confirm,
    format_option,
    printable,
    sentence,
    show_table,
)
from penstock.cli.values import Assignment
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    from penstock.client.serializers import RegistryClient, RegistrySchema

REGISTRY_VARIABLE: Final = "PENSTOCK_REGISTRY"
DEFAULT_REGISTRY: Final = "http://127.0.0.1:8081"
_LEVELS: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
_MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
_BY_SUFFIX: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_EXIT_INCOMPATIBLE: Final = 1
_SCHEMA_BYTES: Final = 4 * 1024 * 1024
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def schemas() -> None:
    """Manage the schemas of a registry: subjects, versions, compatibility."""


def _registry_command(command: _Command) -> _Command:
    """Adds the options of the registry, passes its client first, and reports its errors."""

    @functools.wraps(command)
    def run(*args: Any, registry: str, registry_token: str | None, registry_ca: str | None, **params: Any) -> Any:
        from penstock.client.errors import PenstockError, RegistryRequestFailed, RegistryUnreachable
        from penstock.client.serializers import RegistryClient

        try:
            client = RegistryClient(registry, token=_token(registry_token), ssl=_tls(registry_ca))
            return command(*args, client, **params)
        except RegistryUnreachable as error:
            raise Unreachable(sentence(error.message), sentence(error.hint)) from None
        except RegistryRequestFailed as error:
            raise Rejected(sentence(error.message), code=str(error.error_code)) from None
        except PenstockError as error:
            raise CommandError(sentence(error.message), sentence(error.hint)) from None

    for option in (
        click.option("--registry-ca", metavar="FILE", help="Certificates (PEM) of the authority of an HTTPS registry."),
        click.option("--registry-token", metavar="SOURCE", help="Token to show: file:PATH or env:NAME."),
        click.option(
            "-r", "--registry", envvar=REGISTRY_VARIABLE, default=DEFAULT_REGISTRY, metavar="URL",
            help=f"Address of the registry, several with commas; http://USER:PASSWORD@HOST:PORT works.  "
            f"[env: {REGISTRY_VARIABLE}; default: {DEFAULT_REGISTRY}]",
        ),
    ):  # fmt: skip
        run = option(run)
    return run  # type: ignore[return-value]


def _token(source: str | None) -> str | None:
    from penstock.cli.registry.registry import secret_of

    return secret_of("--registry-token", source)


def _tls(authority: str | None) -> Any:
    if authority is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"--registry-ca {authority}: {error}.", "Give a PEM file of certificates.") from None


@schemas.command("list", short_help="List subjects, or the versions of one.")
@click.argument("subject", required=False)
@click.option("--prefix", default="", help="Only subjects that start with this; :.context: lists a context.")
@click.option("--deleted", is_flag=True, help="Include what was deleted and not yet removed.")
@watch_option
@format_option
@_registry_command
def list_schemas(registry: RegistryClient, subject: str | None, prefix: str, deleted: bool, output_format: str) -> None:
    """List all subjects with their latest version; with SUBJECT, its versions."""
    path = f"/schemas?deleted={_flag(deleted)}&subjectPrefix={_quoted(prefix or ':*:')}"
    path += "" if subject else "&latestOnly=true"
    found: list[dict[str, Any]] = []
    if subject:
        wanted = f"/subjects/{_quoted(subject)}/versions"
        numbers = registry.request("GET", f"{wanted}?deleted={_flag(deleted)}")
        found += [registry.request("GET", f"{wanted}/{number}?deleted={_flag(deleted)}") for number in numbers]
    else:
        # The registry sends a thousand at a time.
        while page := registry.request("GET", f"{path}&offset={len(found)}&limit=1000"):
            found += page
    output = Output()
    if output_format == JSON:
        output.json({"schemas": found}, indent=2)
        return
    titles = ("SUBJECT", "VERSION", "ID", "TYPE", "REFERENCES", "STATE")
    show_table(output, titles, [
        (each["subject"], each["version"], each["id"], each.get("schemaType", "AVRO"),
         len(each.get("references") or ()) or None, "deleted" if each.get("deleted") else None)
        for each in found
    ])  # fmt: skip
    if not found:
        output.nothing("No subjects.")


@schemas.command(short_help="Print a schema, by subject and version, id or GUID.")
@click.argument("subject", required=False)
@click.option("--version", "number", default="latest", show_default=True, help="Version of the subject.")
@click.option("--id", "schema_id", type=int, help="Id of the schema, instead of a subject.")
@click.option("--guid", help="GUID of the schema, instead of a subject.")
@click.option("--deleted", is_flag=True, help="Accept a version that was deleted.")
@format_option
@_registry_command
def get(
    registry: RegistryClient,
    subject: str | None,
    number: str,
    schema_id: int | None,
    guid: str | None,
    deleted: bool,
    output_format: str,
) -> None:
    """Print the text of a schema; with --format json, all that the registry knows about it."""
    if sum(each is not None for each in (subject, schema_id, guid)) != 1:
        raise CommandError("Name a schema by SUBJECT, --id or --guid.", "Use exactly one of them.")
    if schema_id is not None:
        path = f"/schemas/ids/{schema_id}"
    elif guid is not None:
        path = f"/schemas/guids/{_quoted(guid)}"
    else:
        path = f"/subjects/{_quoted(subject or '')}/versions/{_quoted(number)}?deleted={_flag(deleted)}"
    found = registry.request("GET", path)
    output = Output()
    if output_format == JSON:
        output.json(found, indent=2)
        return
    output.line(_indented(found["schema"]) if found.get("schemaType", "AVRO") != "PROTOBUF" else found["schema"])


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _schema_options(command: _Command) -> _Command:
    for option in (
        click.option("--normalize", is_flag=True, help="Normalize the schema first: order and spelling do not count."),
        click.option(
            "--reference", "references", type=Assignment(), multiple=True, metavar="NAME=SUBJECT:VERSION",
            help="A name that the schema uses, and what it stands for. Can be repeated.",
        ),
        click.option(
            "--type", "kind", type=click.Choice(_TYPES, case_sensitive=False),
            help="Type of the schema.  [default: by the file's ending .avsc, .json or .proto, else AVRO]",
        ),
        click.argument("file", type=click.Path(path_type=Path, allow_dash=True)),
        click.argument("subject"),
    ):  # fmt: skip
        command = option(command)
    return command


def _schema(file: Path, kind: str | None, references: tuple[tuple[str, str], ...]) -> RegistrySchema:
    from penstock.client.serializers import RegistrySchema, SchemaReference

    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            data = source.read(_SCHEMA_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"{file}: {error}.", "Give a file with the text of a schema.") from None
    if len(data) > _SCHEMA_BYTES:
        raise CommandError(f"{file} is larger than {_SCHEMA_BYTES:,} bytes.", "A schema must fit into a record.")
    found = []
    for name, target in references:
        subject, _, version = target.rpartition(":")
        if not subject or not version.isdigit():
            raise CommandError(f"--reference {name}={target} has no version.", "Write NAME=SUBJECT:VERSION.")
        found.append(SchemaReference(name, subject, int(version)))
    return RegistrySchema(text, (kind or _BY_SUFFIX.get(file.suffix.lower(), "AVRO")).upper(), tuple(found))


@schemas.command(short_help="Register a schema under a subject.")
@_schema_options
@format_option
@_registry_command
def register(
    registry: RegistryClient,
    subject: str,
    file: Path,
    kind: str | None,
    references: tuple[tuple[str, str], ...],
    normalize: bool,
    output_format: str,
) -> None:
    """Register the schema in FILE (- is standard input) under SUBJECT, unless it is there already.

    \b
    penstock schemas register views-value view.avsc
    penstock schemas register views-value view.proto --reference page.proto=page.proto:1
    """
    found = registry.register(subject, _schema(file, kind, references), normalize=normalize)
    output = Output()
    if output_format == JSON:
        output.json(
            {"subject": subject, "version": found.version, "id": found.id, "guid": found.guid or None}, indent=2
        )
        return
    output.line(f"{printable(subject)}: version {found.version}, id {found.id}.")


@schemas.command(short_help="Check whether a schema is compatible with those of a subject.")
@_schema_options
@click.option("--version", "number", help="Check against this version only.  [default: all that the level asks for]")
@format_option
@_registry_command
def check(
    registry: RegistryClient,
    subject: str,
    file: Path,
    kind: str | None,
    references: tuple[tuple[str, str], ...],
    normalize: bool,
    number: str | None,
    output_format: str,
) -> None:
    """Check whether the schema in FILE could be registered under SUBJECT. Registers nothing.

    \b
    Exit code: 1  it is not compatible; the reasons are printed
    """
    schema = _schema(file, kind, references)
    path = f"/compatibility/subjects/{_quoted(subject)}/versions"
    path += f"/{_quoted(number)}" if number else ""
    found = registry.request("POST", f"{path}?verbose=true&normalize={_flag(normalize)}", schema.document())
    output = Output()
    if output_format == JSON:
        output.json({"compatible": found["is_compatible"], "messages": found.get("messages") or []}, indent=2)
    elif found["is_compatible"]:
        output.line("Compatible.")
    else:
        output.line("Not compatible.")
        for each in found.get("messages") or ():
            output.paragraph(printable(each), indent="  ")
    output.flush()
    if not found["is_compatible"]:
        click.get_current_context().exit(_EXIT_INCOMPATIBLE)


@schemas.command(short_help="Delete a subject or a version.")
@click.argument("subject")
@click.option("--version", "number", help="Delete only this version.")
@click.option("--permanent", is_flag=True, help="Remove for ever what was deleted before.")
@confirmation_options
@format_option
@_registry_command
def delete(
    registry: RegistryClient,
    subject: str,
    number: str | None,
    permanent: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Delete SUBJECT, or one version of it. Readers still find the schema by its id, until --permanent removes it."""
    path = f"/subjects/{_quoted(subject)}" + (f"/versions/{_quoted(number)}" if number else "")
    what = f"version {number} of {subject}" if number else f"subject {subject}"
    if dry_run:
        versions = [number] if number else registry.request("GET", f"{path}/versions?deleted={_flag(permanent)}")
        Output().line(f"Would delete {printable(what)}: {counted(len(versions), 'version')}.")
        return
    effect = "Records written with it can no longer be read." if permanent else "It can no longer be written with."
    confirm(f"Delete {printable(what)}? {effect}", yes=execute)
    found = registry.request("DELETE", f"{path}?permanent={_flag(permanent)}")
    deleted = found if isinstance(found, list) else [found]
    output = Output()
    if output_format == JSON:
        output.json({"subject": subject, "versions": deleted, "permanent": permanent}, indent=2)
        return
    output.line(f"Deleted {printable(what)}: {counted(len(deleted), 'version')}.")


@schemas.command(short_help="Show or change compatibility and other settings.")
@click.argument("subject", required=False)
@click.option("--compatibility", type=click.Choice(_LEVELS, case_sensitive=False), help="What later schemas must keep.")
@click.option("--compatibility-group", metavar="PROPERTY",
              help="Compare only schemas with the same value of this property of their metadata.")  # fmt: skip
@click.option("--alias", help="Another subject that this name stands for.")
@click.option("--normalize/--no-normalize", default=None, help="Normalize schemas when they are registered.")
@click.option("--unset", is_flag=True, help="Remove all settings of the subject.")
@format_option
@_registry_command
def config(
    registry: RegistryClient,
    subject: str | None,
    compatibility: str | None,
    compatibility_group: str | None,
    alias: str | None,
    normalize: bool | None,
    unset: bool,
    output_format: str,
) -> None:
    """Show the settings that apply to SUBJECT, or to all; with options, change them. :.context: is a context."""
    given = {
        "compatibility": compatibility,
        "compatibilityGroup": compatibility_group,
        "alias": alias,
        "normalize": normalize,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if unset and changed:
        raise CommandError("--unset removes all settings.", "Use it without other options.")
    path = "/config" + (f"/{_quoted(subject)}" if subject else "")
    if unset:
        registry.request("DELETE", path)
    elif changed:
        registry.request("PUT", path, changed)
    found = registry.request("GET", f"{path}?defaultToGlobal=true")
    output = Output()
    if output_format == JSON:
        output.json(found, indent=2)
        return
    show_table(output, ("SETTING", "VALUE"), [(name, _shown(value)) for name, value in sorted(found.items())])


def _shown(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value


@schemas.command(short_help="Show or change the mode: READWRITE, READONLY, IMPORT.")
@click.argument("subject", required=False)
@click.option("--to", "wanted", type=click.Choice(_MODES, case_sensitive=False), help="The mode to set.")
@click.option("--force", is_flag=True, help="Set IMPORT although there are schemas.")
@click.option("--unset", is_flag=True, help="Remove the mode of the subject.")
@format_option
@_registry_command
def mode(
    registry: RegistryClient, subject: str | None, wanted: str | None, force: bool, unset: bool, output_format: str
) -> None:
    """Show the mode that applies to SUBJECT, or to all; with --to, change it."""
    if unset and wanted:
        raise CommandError("--to and --unset contradict each other.", "Use one of them.")
    path = "/mode" + (f"/{_quoted(subject)}" if subject else "")
    if unset:
        registry.request("DELETE", path)
    elif wanted:
        registry.request("PUT", f"{path}?force={_flag(force)}", {"mode": wanted})
    found = registry.request("GET", f"{path}?defaultToGlobal=true")
    output = Output()
    if output_format == JSON:
        output.json(found, indent=2)
        return
    output.line(found["mode"])


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _flag(value: bool) -> str:
    return "true" if value else "false"
