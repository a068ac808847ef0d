"""`penstock server start`: run a broker as a service.

Options become settings by Kafka's names, which override those of the file. The broker is imported when it runs, so
that help does not wait for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completion import setting_assignments
from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import CommandError
from penstock.cli.registry.registry import registry_beside, registry_options, registry_words

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.settings import BrokerSettings

logger = logging.getLogger(__name__)


class DataFolder(click.Path):
    """A folder; it need not exist."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = os.path.abspath(os.fsdecode(super().convert(value, param, ctx)))
        if "," in path:
            self.fail(f"{path!r} contains a comma, which separates the folders of log.dirs.", param, ctx)
        return path


def _check_address(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """HOST:PORT, [IPv6]:PORT or :PORT."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT. Examples: 127.0.0.1:9092, or :9092 for all addresses.")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise click.BadParameter(f"{value!r}: an IPv6 address needs brackets, as in [::1]:9092.")
    return value


@click.group()
def server() -> None:
    """Run a broker as a service."""


@server.command(short_help="Run a broker in the foreground until SIGTERM or Ctrl-C.")
@click.option(
    "--data-dir", "data_dirs", type=DataFolder(), multiple=True, metavar="FOLDER",
    help="Data folder (log.dirs). Repeat for each disk.  [default: penstock-data]",
)  # fmt: skip
@click.option(
    "--listen", callback=_check_address, metavar="HOST:PORT",
    help="Address for clients (listeners); port 0 is any free port.  [default: :9092, all addresses]",
)  # fmt: skip
@click.option("--config", metavar="FILE", help="File of settings, in the format of Kafka's server.properties.")
@click.option(
    "-c", "--set", "assignments", multiple=True, metavar="NAME=VALUE", shell_complete=setting_assignments,
    help="A setting; overrides the file. Can be repeated.",
)  # fmt: skip
@click.option(
    "--http-port", type=click.IntRange(0, 65_535), default=8092, show_default=True,
    help="Port of the console, /metrics and /health; 0 disables them.",
)  # fmt: skip
@click.option(
    "--http-host", default="127.0.0.1", show_default=True, help="Address of the console, /metrics and /health."
)
@registry_options
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="Number of brokers on this host, with consecutive ids and ports. Needs zookeeper.connect.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True,
    help="Level of the log on standard error.",
)  # fmt: skip
def start(
    data_dirs: tuple[str, ...],
    listen: str | None,
    config: str | None,
    assignments: tuple[str, ...],
    http_port: int,
    http_host: str,
    registry_port: int,
    registry_host: str,
    registry_config: str | None,
    workers: int,
    log_level: str,
) -> None:
    """Run a broker in the foreground; with --workers, several.

    The first SIGTERM or Ctrl-C stops it cleanly, a second one immediately. Records acknowledged with acks=all survive
    either, and a crash.

    \b
    Exit code: 0  stopped cleanly
               1  could not start; the message says what to do
               2  invalid options or settings; every problem is listed
    """
    from penstock.cli.server.broker_process import run_broker, warn_about_unreachable_hosts

    log_to_stderr(log_level)
    wanted = _with_options(assignments, data_dirs, listen)
    settings = _settings(config, wanted)
    if workers > 1:
        registry = registry_words(registry_host, registry_port, registry_config)
        _run_workers(settings, workers, config, wanted, http_host, http_port, log_level, registry)
        return
    warn_about_unreachable_hosts(settings.advertised_listeners)
    run_broker(
        settings,
        http_host=http_host,
        http_port=http_port or None,
        on_started=lambda broker: _log_where(broker, http_host),
        on_stopping=lambda: None,
        advise_on_port=_advise_on_port,
        companion=registry_beside(registry_host, registry_port, registry_config),
    )


def _run_workers(
    settings: BrokerSettings,
    count: int,
    config: str | None,
    assignments: Sequence[str],
    http_host: str,
    http_port: int,
    log_level: str,
    registry: Sequence[str],
) -> None:
    from penstock.cli.server.local_cluster import supervise, worker_programs

    programs = worker_programs(
        settings,
        count,
        config=config,
        assignments=assignments,
        http_host=http_host,
        http_port=http_port,
        log_level=log_level,
        registry=registry,
    )
    code = supervise(
        [programs],
        level=log_level,
        on_serving=lambda _: logger.info("workers started: count=%d", count),
        on_stopping=lambda: logger.info("stopping workers one by one; a second signal kills them"),
    )
    click.get_current_context().exit(code)


def _with_options(assignments: Sequence[str], data_dirs: Sequence[str], listen: str | None) -> list[str]:
    """The options as settings, added to those of --set. CommandError if both set the same."""
    given = {text.partition("=")[0].strip() for text in assignments}
    options = (
        ("--data-dir", "log.dirs", ",".join(data_dirs)),
        ("--listen", "listeners", f"PLAINTEXT://{listen}" if listen else ""),
    )
    wanted = list(assignments)
    for option, name, value in options:
        if not value:
            continue
        if name in given:
            raise CommandError(f"{option} and --set {name} set the same.", "Use one of them.")
        wanted.append(f"{name}={value}")
    return wanted


def _settings(config: str | None, assignments: Sequence[str]) -> BrokerSettings:
    from penstock.broker.settings import InvalidSettings, UnreadableFile, load_settings
    from penstock.cli.server.broker_process import SettingsRejected

    try:
        loaded = load_settings(config, assignments)
    except UnreadableFile as error:
        raise CommandError(f"{error}.", "--config needs a file in the format of Kafka's server.properties.") from None
    except InvalidSettings as error:
        raise SettingsRejected(error) from None
    for notice in loaded.notices:
        logger.warning("questionable setting: name=%s where=%s reason=%s", notice.name, notice.where, notice.text)
    return loaded.settings


def _log_where(broker: Broker, http_host: str) -> None:
    from penstock.cli.server.broker_process import http_url

    logger.info("data folders: log.dirs=%s", ",".join(broker.settings.log_dirs))
    if broker.http_port is not None:
        url = http_url(http_host, broker.http_port)
        logger.info("http started: metrics=%s/metrics health=%s/health", url, url)


def _advise_on_port(port: int) -> str:
    from penstock.cli.server.broker_process import free_port_after

    free = free_port_after(port)
    example = f", such as --listen 127.0.0.1:{free}" if free else ""
    return f"Stop that process (`ss -ltnp` shows it), or use another port{example}."
