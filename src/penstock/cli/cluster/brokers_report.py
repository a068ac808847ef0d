"""What `penstock brokers` prints: each broker with its address, leaders, replicas and replicas out of sync.

A broker that is offline but still has replicas is shown as offline: it is the one that an operator looks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.cli.output import Output, printable, show_table
from penstock.cli.topics.configs import LAYERS
from penstock.cli.topics.partitions import DETAILS_TIMEOUT_MS, all_partitions
from penstock.client.admin import Admin, ConfigEntry, ConfigResource, LogDirectory
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.errors import PenstockError
from penstock.runtime.quantities import counted, human_bytes

_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker. `node` is None if it is offline; `folders` are its disks, or the error of the request."""

    id: int
    node: Node | None
    is_controller: bool
    leads: int
    preferred: int
    replicas: int
    out_of_sync: tuple[TopicPartition, ...]
    folders: tuple[LogDirectory, ...] | PenstockError | None

    @property
    def size_bytes(self) -> int | None:
        if self.folders is None or isinstance(self.folders, PenstockError):
            return None
        return sum(sum(folder.sizes.values()) for folder in self.folders)


def collect(admin: Admin) -> tuple[str | None, list[BrokerState]]:
    """The cluster's id, and all of its brokers."""
    found = admin.describe_cluster()
    partitions = all_partitions(admin)
    disks = admin.describe_log_dirs([node.id for node in found.nodes], timeout_ms=DETAILS_TIMEOUT_MS)
    nodes = {node.id: node for node in found.nodes}
    controller = found.controller.id if found.controller else None
    leads = Counter(part.leader.id for part in partitions.values() if part.leader is not None)
    preferred = Counter(part.replicas[0] for part in partitions.values() if part.replicas)
    replicas = Counter(broker for part in partitions.values() for broker in part.replicas)
    lacking: dict[int, list[TopicPartition]] = {}
    for key, part in partitions.items():
        for broker in part.replicas:
            if broker not in part.isr:
                lacking.setdefault(broker, []).append(key)
    pictures = [
        BrokerState(
            broker,
            nodes.get(broker),
            broker == controller,
            leads[broker],
            preferred[broker],
            replicas[broker],
            tuple(lacking.get(broker, ())),
            disks.get(broker),
        )
        for broker in sorted(nodes.keys() | replicas.keys())
    ]
    return found.cluster_id, pictures


def settings_of(admin: Admin, pictures: Iterable[BrokerState]) -> dict[int, dict[str, ConfigEntry]]:
    """The settings that differ from their default, of brokers that answer."""
    wanted = [ConfigResource.broker(picture.id) for picture in pictures if picture.node is not None]
    return {
        int(resource.name): {name: entry for name, entry in sorted(found.items()) if entry.source != "default"}
        for resource, found in admin.describe_configs(wanted, timeout_ms=DETAILS_TIMEOUT_MS).items()
        if not isinstance(found, PenstockError)
    }


# --- showing


def show_list(output: Output, cluster_id: str | None, pictures: Sequence[BrokerState]) -> None:
    output.line(f"Cluster {cluster_id or '(no id)'}")
    rows = [
        (
            each.id,
            f"{each.node.host}:{each.node.port}" if each.node else "(offline)",
            each.node.rack if each.node else None,
            each.is_controller,
            each.leads,
            each.replicas,
            len(each.out_of_sync),
            None if each.size_bytes is None else human_bytes(each.size_bytes),
        )
        for each in pictures
    ]
    titles = ("BROKER", "ADDRESS", "RACK", "CONTROLLER", "LEADS", "REPLICAS", "OUT OF SYNC", "DATA")
    show_table(output, titles, rows)


def show_described(output: Output, each: BrokerState, settings: Mapping[str, ConfigEntry] | None) -> None:
    where = "offline" if each.node is None else f"{each.node.host}:{each.node.port}"
    facts = [
        where,
        f"rack {each.node.rack}" if each.node and each.node.rack else "",
        "controller" if each.is_controller else "",
        f"leads {counted(each.leads, 'partition')} (preferred leader of {each.preferred:,})",
        f"holds {counted(each.replicas, 'replica')}",
        "" if each.size_bytes is None else human_bytes(each.size_bytes),
    ]
    title = output.style(f"broker {each.id}", "cyan", bold=True)
    output.line(f"{title}: {printable(', '.join(filter(None, facts)))}")
    if each.out_of_sync:
        some = ", ".join(map(str, each.out_of_sync[:_SHOWN_MAX]))
        more = f" and {len(each.out_of_sync) - _SHOWN_MAX} more" if len(each.out_of_sync) > _SHOWN_MAX else ""
        output.line(f"  not in sync: {some}{more}")
    if isinstance(each.folders, PenstockError):
        output.line(f"  disks unknown: {each.folders.message}")
    elif each.folders is not None:
        for folder in each.folders:
            free = f", {human_bytes(folder.usable_bytes)} free" if folder.usable_bytes >= 0 else ""
            state = f", offline: {folder.error}" if folder.error else ""
            output.line(printable(f"  {folder.path}: {counted(len(folder.sizes), 'partition')}{free}{state}"))
    if settings:
        rows = [(entry.name, entry.value, LAYERS.get(entry.source, entry.source)) for entry in settings.values()]
        show_table(output, ("SETTING", "VALUE", "FROM"), rows, "  ")


def document(each: BrokerState) -> dict[str, object]:
    """A broker in the output of `list`."""
    return {
        "id": each.id,
        "host": each.node.host if each.node else None,
        "port": each.node.port if each.node else None,
        "rack": each.node.rack if each.node else None,
        "online": each.node is not None,
        "controller": each.is_controller,
        "leads": each.leads,
        "preferredLeaderOf": each.preferred,
        "replicas": each.replicas,
        "outOfSync": len(each.out_of_sync),
        "bytes": each.size_bytes,
    }


def full_document(each: BrokerState, settings: Mapping[str, ConfigEntry] | None) -> dict[str, object]:
    """A broker in the output of `describe`."""
    folders = None if isinstance(each.folders, PenstockError) else each.folders
    return {
        **document(each),
        "outOfSync": [{"topic": key.topic, "partition": key.partition} for key in each.out_of_sync],
        "folders": None
        if folders is None
        else [
            {
                "path": folder.path,
                "online": folder.error is None,
                "partitions": len(folder.sizes),
                "bytes": sum(folder.sizes.values()),
                "freeBytes": folder.usable_bytes if folder.usable_bytes >= 0 else None,
            }
            for folder in folders
        ],
        "settings": None if settings is None else {name: entry.value for name, entry in settings.items()},
    }
