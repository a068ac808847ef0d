"""What a shell can complete that only a broker knows: the names of topics and groups, the numbers of brokers.

Rule: a shell waits while this works, so the broker gets a second at most, and whatever goes wrong is an empty answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

    from penstock.client.admin import Admin

SERVER_VARIABLE: Final = "PENSTOCK_BOOTSTRAP_SERVER"
DEFAULT_SERVER: Final = "localhost:9092"
_PATIENCE_MS: Final = 1_000


def topic_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin like this; internal ones once an underscore is typed."""
    names = _ask(ctx, lambda admin: admin.list_topics(include_internal=incomplete.startswith("_")))
    return [name for name in names if name.startswith(incomplete)]


def group_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    names = _ask(ctx, lambda admin: [group.group_id for group in admin.list_groups()])
    return [name for name in names if name.startswith(incomplete)]


def broker_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Numbers of brokers; after a comma, those that the list does not have yet."""
    given, comma, begun = incomplete.rpartition(",")
    taken = given.split(",")
    ids = _ask(ctx, lambda admin: [str(node.id) for node in admin.describe_cluster().nodes])
    return [f"{given}{comma}{each}" for each in ids if each.startswith(begun) and each not in taken]


def setting_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Settings of the topic or broker that the command line names so far."""
    from penstock.client.admin import ConfigResource

    topic, broker = ctx.params.get("topic"), ctx.params.get("broker")
    if topic is None and broker is None:
        return []
    resource = ConfigResource.topic(topic) if topic is not None else ConfigResource.broker(broker)
    names = _ask(ctx, lambda admin: list(admin.describe_config(resource)))
    return [name for name in names if name.startswith(incomplete)]


def _ask(ctx: click.Context, question: Callable[[Admin], list[str]]) -> list[str]:
    from penstock.client.admin import Admin
    from penstock.client.errors import PenstockError

    servers = ctx.params.get("bootstrap_server") or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    try:
        with Admin(servers, request_timeout_ms=_PATIENCE_MS, connect_timeout_ms=_PATIENCE_MS) as admin:
            return question(admin)
    except PenstockError:
        return []
