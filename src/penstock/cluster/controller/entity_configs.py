"""Changing the settings of users, client ids and addresses.

Kafka's tools of versions 2 and 3 write the same nodes, so a document is read, changed, and written back only if it has
not changed meanwhile. What follows from a change is decided on what the tree holds. A document without settings
stays, as Kafka leaves it: a user's may have documents of client ids below it. Kafka's tools leave a node under
/config/changes for every change; when one for an entity appears, all settings of entities are read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cluster.controller.store import ControllerStore, load_entities
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS, Decision
from penstock.cluster.entity_configs import Entity, Settings
from penstock.cluster.errors import ApiException, InvalidPath, InvalidRequest, LayoutError, MetadataUnavailable
from penstock.cluster.tree.layout import decode_config, encode_config
from penstock.cluster.tree.tree import Create, Node, Operation, Set, check_path, ensure_path

_CHECKED_AT_ONCE: Final = 1_000


class EntityChange(NamedTuple):
    """Settings to set, or to remove if the value is None. `required` must be there already."""

    entity: Entity
    settings: Mapping[str, str | None]
    required: frozenset[str] = frozenset()
    error: ApiException | None = None
    """Raised if something in `required` is missing."""


async def alter_entities(
    store: ControllerStore, changes: Sequence[EntityChange], *, validate_only: bool = False
) -> list[ApiException | None]:
    """The error of each, in order; each is made or rejected by itself. Some are stored at a time, between which other
    requests are served. ApiException if nothing could be stored.
    """
    folders = await _folders(changes)
    if not validate_only:
        with store.reading():
            for number, folder in enumerate(folders, 1):
                await ensure_path(store.tree, folder)
                if not number % _CHECKED_AT_ONCE:
                    await asyncio.sleep(0)
    errors: list[ApiException | None] = []
    while len(errors) < len(changes):
        some = changes[len(errors) : len(errors) + GROUPED_OPERATIONS]
        try:
            errors += await _alter_some(store, some, validate_only)
        except ApiException as error:
            if not errors:
                raise
            errors += [error] * (len(changes) - len(errors))
        await asyncio.sleep(0)
    return errors


async def _alter_some(
    store: ControllerStore, changes: Sequence[EntityChange], validate_only: bool
) -> list[ApiException | None]:
    errors: list[ApiException | None] = []
    operations: list[Operation] = []
    after: dict[Entity, Settings | None] = {}
    with store.reading():
        nodes = await store.tree.get_many([change.entity.path for change in changes])
    for change, node in zip(changes, nodes, strict=True):
        try:
            settings = _changed(change, node)
        except ApiException as error:
            errors.append(error.with_traceback(None))
            continue
        errors.append(None)
        path, data = change.entity.path, encode_config(settings)
        operations.append(Create(path, data) if node is None else Set(path, data, node.version))
        after[change.entity] = settings
    if operations and not validate_only:
        image = store.image
        await store.store(Decision(tuple(operations), image.with_entities(image.entities.with_changes(after))))
    return errors


async def reload_entities(store: ControllerStore) -> None:
    """Read all settings again, because a tool has left a notification under /config/changes. MetadataUnavailable."""
    with store.reading():
        found = await load_entities(store.tree)
    if found != store.image.entities:
        await store.store(Decision((), store.image.with_entities(found)))


async def _folders(changes: Sequence[EntityChange]) -> list[str]:
    """The folders of these entities. InvalidRequest if one cannot be stored."""
    folders: dict[str, None] = {}
    for number, change in enumerate(changes, 1):
        path = change.entity.path
        try:
            check_path(path)
        except InvalidPath as error:
            raise InvalidRequest(str(error)) from error
        folders[path.rpartition("/")[0]] = None
        if not number % _CHECKED_AT_ONCE:
            await asyncio.sleep(0)
    return list(folders)


def _changed(change: EntityChange, node: Node | None) -> dict[str, str]:
    """The settings after the change. ApiException."""
    try:
        settings = {} if node is None else decode_config(change.entity.path, node.data)
    except LayoutError as error:
        raise MetadataUnavailable(f"{error}; repair or delete the node first") from error
    if change.error is not None and not change.required <= settings.keys():
        raise change.error
    for name, value in change.settings.items():
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
    return settings
