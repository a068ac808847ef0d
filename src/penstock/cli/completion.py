"""Shell completion: `penstock completion`, and completers that ask a broker.

The script that `penstock completion` prints calls the command itself, so it never goes out of date. Topics, groups,
transactional ids, broker ids and settings are asked of the cluster that --bootstrap-server, --profile or
PENSTOCK_BOOTSTRAP_SERVER names. A shell blocks while a completer runs, so the broker has one second to answer, and any
error is an empty list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from penstock.client.admin import Admin


SERVER_VARIABLE: Final = "PENSTOCK_BOOTSTRAP_SERVER"
PROFILE_VARIABLE: Final = "PENSTOCK_PROFILE"
DEFAULT_SERVER: Final = "localhost:9092"
_TIMEOUT_MS: Final = 1_000
_SHELLS: Final = ("bash", "zsh", "fish")


def topic_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Topics with this prefix; internal ones only if it starts with an underscore."""
    names = _ask(ctx, lambda admin: admin.list_topics(include_internal=incomplete.startswith("_")))
    return [name for name in names if name.startswith(incomplete)]


def group_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    names = _ask(ctx, lambda admin: [group.group_id for group in admin.list_groups()])
    return [name for name in names if name.startswith(incomplete)]


def transactional_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    names = _ask(ctx, lambda admin: [each.transactional_id for each in admin.list_transactions()])
    return [name for name in names if name.startswith(incomplete)]


def broker_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Broker ids; after a comma, those that are not in the list yet."""
    given, comma, begun = incomplete.rpartition(",")
    taken = given.split(",")
    ids = _ask(ctx, lambda admin: [str(node.id) for node in admin.describe_cluster().nodes])
    return [f"{given}{comma}{each}" for each in ids if each.startswith(begun) and each not in taken]


def setting_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Settings of the topic or broker named so far on the command line, or of any topic."""
    return [name for name in _settings(ctx) if name.startswith(incomplete)]


def setting_assignments(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Settings, ready for their value."""
    return [] if "=" in incomplete else [f"{name}=" for name in setting_names(ctx, parameter, incomplete)]


def _settings(ctx: click.Context) -> list[str]:
    from penstock.client.admin import ConfigResource

    topic, broker = ctx.params.get("topic"), ctx.params.get("broker")
    if broker is not None:
        return _ask(ctx, lambda admin: sorted(admin.describe_config(ConfigResource.broker(broker))))
    if ctx.params.get("all_brokers") or ctx.command_path.endswith("server start"):
        return _broker_settings()
    named = topic or next(iter(ctx.params.get("names") or ()), None)
    found = _ask(ctx, lambda admin: sorted(admin.describe_config(ConfigResource.topic(named)))) if named else []
    return found or _topic_settings()


def _topic_settings() -> list[str]:
    """Settings of topics of Penstock: a topic that does not exist yet cannot be asked."""
    from penstock.broker.settings.catalogue import TOPIC_DEFINITIONS

    return sorted(TOPIC_DEFINITIONS)


def _broker_settings() -> list[str]:
    from penstock.broker.settings.catalogue import BROKER_DEFINITIONS

    return sorted(BROKER_DEFINITIONS)


def profile_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from penstock.cli.profile import names

    return [name for name in names() if name.startswith(incomplete)]


def _ask(ctx: click.Context, question: Callable[[Admin], list[str]]) -> list[str]:
    from penstock.cli.connection import resolve_cluster, security_options
    from penstock.cli.output import CommandError
    from penstock.client.admin import Admin
    from penstock.client.errors import PenstockError

    try:
        servers, properties = resolve_cluster(
            ctx.params.get("bootstrap_server"), ctx.params.get("profile"), ctx.params.get("command_config"), {}
        )
        with Admin(
            servers, request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS, **security_options(properties)
        ) as admin:
            return question(admin)
    except (PenstockError, CommandError):
        return []


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes Tab complete commands, options, topics, groups and settings.

    \b
    bash  in ~/.bashrc:  eval "$(penstock completion bash)"
    zsh   in ~/.zshrc:   eval "$(penstock completion zsh)"
    fish  once:          penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from penstock.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"Completion is not available for {shell}.")
    made = kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not made.source(), which checks the version of bash on this machine: the script may be for another one.
    script = made.source_template % made.source_vars()
    # In fish, a description would end at its first comma.
    click.echo(script.replace('string split "," $completion', 'string split -m 1 "," $completion'))
