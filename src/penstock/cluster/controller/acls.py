"""Changing the stored ACLs.

The ACLs of a pattern are one document. A change reads it, changes it and writes it back if it is unchanged:
Kafka's tools of versions 2 and 3 write the same nodes. They leave a node under /kafka-acl-changes for every change;
when such a node appears, all ACLs are read again. These nodes are not deleted, because Kafka's brokers read them too.

`alter_acls` decides without I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cluster.controller.store import ControllerStore, load_acls
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS, Decision
from penstock.cluster.errors import ApiException, InvalidPath, InvalidRequest, LayoutError, MetadataUnavailable, NoNode
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import decode_acls, encode_acls
from penstock.cluster.tree.tree import Create, Delete, Node, Operation, Set, check_path, ensure_path
from penstock.security.acls import AclBinding, AclEntry, AclFilter, Acls, Entries, ResourcePattern, problem_of

MAX_DOCUMENT_BYTES: Final = 512 * 1024
"""About 5,000 ACLs of one pattern: what fits into one transaction of the tree."""

_AT_ONCE: Final = 500

Errors = dict[ResourcePattern, ApiException]
Changes = Mapping[ResourcePattern, Collection[AclEntry]]


class AclDeletion(NamedTuple):
    """The ACLs that a filter selected and that are deleted; or the error."""

    deleted: Sequence[AclBinding] = ()
    error: ApiException | None = None


class Altered(NamedTuple):
    """One decision for all patterns, and the errors of those that are not in it."""

    decision: Decision
    errors: Errors


def check_acl(binding: AclBinding) -> None:
    """InvalidRequest unless the ACL can be stored."""
    problem = problem_of(binding)
    if problem is not None:
        raise InvalidRequest(problem)
    pattern = binding.pattern
    if "/" in pattern.name:
        raise InvalidRequest(
            f"{pattern.name[:60]!r} has a slash, which names of resources with ACLs cannot have; use a prefixed "
            "pattern that ends before it"
        )
    try:
        check_path(layout.acl_path(pattern))
    except InvalidPath as error:
        raise InvalidRequest(f"the resource name {pattern.name[:60]!r} cannot be stored: {error}") from error


def alter_acls(
    image: ClusterImage, added: Changes, removed: Changes, nodes: Mapping[ResourcePattern, Node | None]
) -> Altered:
    """Add and remove entries; `nodes` is what the tree has for each pattern."""
    operations: list[Operation] = []
    entries: dict[ResourcePattern, Entries] = {}
    errors: Errors = {}
    for pattern in {**added, **removed}:
        path, node = layout.acl_path(pattern), nodes[pattern]
        try:
            before = frozenset() if node is None else decode_acls(path, node.data)
        except LayoutError as error:
            errors[pattern] = MetadataUnavailable(f"{error}; repair or delete the node first")
            continue
        after = before.difference(removed.get(pattern, ())).union(added.get(pattern, ()))
        data = encode_acls(after)
        if len(data) > MAX_DOCUMENT_BYTES:
            errors[pattern] = InvalidRequest(
                f"{pattern} has too many ACLs: {len(data)} bytes exceed {MAX_DOCUMENT_BYTES}; use groups or prefixes"
            )
            continue
        entries[pattern] = after
        if node is None:
            if after:
                operations.append(Create(path, data))
        elif not after:
            operations.append(Delete(path, node.version))
        elif after != before:
            operations.append(Set(path, data, node.version))
    is_changed = any(image.acls.entries(pattern) != found for pattern, found in entries.items())
    acls = image.acls.with_entries(entries, image.acls.problem) if is_changed else image.acls
    return Altered(Decision(tuple(operations), image.with_acls(acls) if is_changed else image), errors)


# --- for the controller


async def create_acls(store: ControllerStore, wanted: Sequence[AclBinding]) -> list[ApiException | None]:
    """The error of each, in order. ApiException if nothing is stored."""
    errors: dict[AclBinding, ApiException] = {}
    added: dict[ResourcePattern, set[AclEntry]] = {}
    for number, binding in enumerate(wanted, 1):
        if not number % _AT_ONCE:
            await asyncio.sleep(0)  # serve other requests
        try:
            check_acl(binding)
        except ApiException as error:
            errors[binding] = error
        else:
            added.setdefault(binding.pattern, set()).add(binding.entry)
    failed = await _alter(store, added, {})
    return [errors.get(binding) or failed.get(binding.pattern) for binding in wanted]


async def delete_acls(store: ControllerStore, filters: Sequence[AclFilter]) -> list[AclDeletion]:
    """Delete ACLs; returns what each filter deleted, in order. ApiException if nothing is stored."""
    if store.image.acls.problem is not None:
        await _reload(store)
    selected: list[list[AclBinding]] = []
    removed: dict[ResourcePattern, set[AclEntry]] = {}
    for wanted in filters:
        await asyncio.sleep(0)  # a filter may have to look at every ACL
        selected.append([] if wanted.problem is not None else list(store.image.acls.select(wanted)))
        for pattern, entry in selected[-1]:
            removed.setdefault(pattern, set()).add(entry)
    failed = await _alter(store, {}, removed)
    return [
        AclDeletion(error=InvalidRequest(wanted.problem))
        if wanted.problem is not None
        else AclDeletion(
            [each for each in found if each.pattern not in failed],
            next((failed[each.pattern] for each in found if each.pattern in failed), None),
        )
        for wanted, found in zip(filters, selected, strict=True)
    ]


async def follow_changes(store: ControllerStore, known: frozenset[str]) -> frozenset[str]:
    """Read the ACLs again if there are change notifications that are not `known`; returns all that there are."""
    found: set[str] = set()
    with store.reading():
        for folder in layout.ACL_CHANGES:
            try:
                found.update(f"{folder}/{name}" for name in await store.tree.children(folder))
            except NoNode:
                continue
    if not found <= known:
        await _reload(store)
    return frozenset(found)


async def _alter(store: ControllerStore, added: Changes, removed: Changes) -> Errors:
    """Some patterns at a time, between which other requests are served. ApiException if nothing is stored."""
    if store.image.acls.problem is not None:
        # Someone may have repaired them.
        await _reload(store)
    with store.reading():
        for folder in {layout.acl_folder(pattern.type, pattern.pattern_type): None for pattern in added}:
            await ensure_path(store.tree, folder)
    errors: Errors = {}
    patterns = list({**added, **removed})
    for begin in range(0, len(patterns), GROUPED_OPERATIONS):
        some = patterns[begin : begin + GROUPED_OPERATIONS]
        try:
            errors |= await _alter_some(store, added, removed, some)
        except ApiException as error:
            if not begin:
                raise
            errors |= dict.fromkeys(patterns[begin:], error)
            break
    return errors


async def _alter_some(
    store: ControllerStore, added: Changes, removed: Changes, patterns: Sequence[ResourcePattern]
) -> Errors:
    with store.reading():
        nodes = await store.tree.get_many([layout.acl_path(pattern) for pattern in patterns])
    found = dict(zip(patterns, nodes, strict=True))
    altered = alter_acls(store.image, _part(added, patterns), _part(removed, patterns), found)
    await store.store(altered.decision)
    return altered.errors


def _part(changes: Changes, patterns: Sequence[ResourcePattern]) -> Changes:
    return {pattern: changes[pattern] for pattern in patterns if pattern in changes}


async def _reload(store: ControllerStore) -> None:
    with store.reading():
        acls: Acls = await load_acls(store.tree)
    if acls != store.image.acls:
        await store.store(Decision((), store.image.with_acls(acls)))
