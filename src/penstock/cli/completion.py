"""`penstock completion`: the script that makes a shell complete this command.

Rule: the script asks the command itself, so it never goes out of date. Topics, groups and settings are asked of the
broker that --bootstrap-server or PENSTOCK_BOOTSTRAP_SERVER names, which has a second to answer.
"""

from __future__ import annotations

from typing import Final

import click

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script for a shell, after which Tab completes commands, options, topics, groups and settings.

    \b
    bash  in ~/.bashrc:  eval "$(penstock completion bash)"
    zsh   in ~/.zshrc:   eval "$(penstock completion zsh)"
    fish  once:          penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from penstock.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    made = kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not made.source(): that would ask the bash of this machine for its version, and the script may be for another.
    script = made.source_template % made.source_vars()
    # In fish, what is told about a word would end at its first comma.
    click.echo(script.replace('string split "," $completion', 'string split -m 1 "," $completion'))
