"""All that a broker is told by its operator, as typed values.

Noun: an immutable set of settings. Its attributes are Kafka's names with underscores; a family of names is one
attribute, that of the finest unit (`log_retention_ms`, whichever of hours, minutes and ms was set). Settings without
effect have none.

Rule: a change gives a new object, checked as a whole, or InvalidSettings with every reason and the old object as it
was. The values that were given stay with it, so that each can tell where it comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from penstock.broker.settings.catalogue import BROKER_DEFINITIONS
from penstock.broker.settings.consistency import contradictions
from penstock.broker.settings.definitions import Value
from penstock.broker.settings.errors import InvalidSettings, Problem, shown
from penstock.broker.settings.layers import Given, Layers, Source, admit
from penstock.broker.settings.listeners import Listener
from penstock.broker.settings.old_names import TopicPreset
from penstock.broker.settings.parsing import InvalidValue, parse_list, parse_numbers
from penstock.broker.settings.resolved_listeners import resolve_listeners

_NO_PRESET: Final = TopicPreset()
# A request may name any number of settings; nobody reads on after so many problems.
_MAX_PROBLEMS: Final = 20
_COMPUTED: Final = frozenset({"listeners", "advertised_listeners", "inter_broker_listener", "layers", "presets",
                              "host_name"})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    # identity; -1: none was given
    broker_id: int
    broker_id_generation_enable: bool
    reserved_broker_max_id: int
    broker_rack: str | None
    zookeeper_connect: str | None
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int

    # sockets
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    inter_broker_listener: Listener
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_busy_poll_us: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_connection_creation_rate: int
    queued_max_requests: int
    queued_max_request_bytes: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    penstock_http_hosts: tuple[str, ...]
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_incremental_fetch_session_cache_partitions: int
    max_request_partition_size_limit: int

    # topics
    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    message_max_bytes: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int

    # logs
    log_dirs: tuple[str, ...]
    num_recovery_threads_per_data_dir: int
    penstock_strays: str
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_jitter_ms: int
    log_index_size_max_bytes: int
    log_index_interval_bytes: int
    log_segment_delete_delay_ms: int
    log_initial_task_delay_ms: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_ms: int
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_cleanup_policy: frozenset[str]
    log_cleaner_enable: bool
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_backoff_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_delete_retention_ms: int
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    log_message_timestamp_type: str
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    log_message_downconversion_enable: bool

    # replication and control
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replica_socket_receive_buffer_bytes: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_fetch_min_bytes: int
    replica_fetch_backoff_ms: int
    num_replica_fetchers: int
    replica_high_watermark_checkpoint_interval_ms: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_per_broker_percentage: int
    leader_imbalance_check_interval_seconds: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controller_socket_timeout_ms: int

    # groups and committed offsets
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_max_member_metadata_bytes: int
    group_max_metadata_bytes: int
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    offset_metadata_max_bytes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_commit_timeout_ms: int

    # transactions
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    transaction_state_log_segment_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int

    # where it all comes from
    layers: Layers = field(repr=False)
    presets: Mapping[str, TopicPreset] = field(repr=False)
    host_name: str = field(repr=False)

    # --- make

    @classmethod
    def from_layers(
        cls,
        layers: Layers,
        *,
        presets: Mapping[str, TopicPreset],
        host_name: str,
        problems: Collection[Problem] = (),
        broken: Collection[str] = (),
    ) -> BrokerSettings:
        """Settings, from what was given. `problems` are those found already, with the settings `broken` by them.

        InvalidSettings with these and all others.
        """
        found = list(problems)
        values: dict[str, Any] = {}
        for attribute, name in ATTRIBUTES.items():
            try:
                values[attribute] = _attribute(name, layers.effective(name))
            except InvalidValue as error:
                found.append(Problem(layers.where(name), name, str(error)))
        if values["zookeeper_connection_timeout_ms"] is None:
            values["zookeeper_connection_timeout_ms"] = values["zookeeper_session_timeout_ms"]
        resolved = resolve_listeners(layers, host_name, broken)
        found += resolved.problems
        found += contradictions(layers, broken)
        if found:
            raise InvalidSettings(found)
        return cls(
            **values,
            listeners=resolved.listeners,
            advertised_listeners=resolved.advertised,
            inter_broker_listener=resolved.inter_broker,
            layers=layers,
            presets=presets,
            host_name=host_name,
        )

    # --- ask

    @property
    def stands_alone(self) -> bool:
        """No ZooKeeper: one broker, which keeps the metadata itself."""
        return self.zookeeper_connect is None

    def where(self, name: str) -> str:
        """Where the value of a setting comes from: "default", "server.properties:12", "--set", ..."""
        return self.layers.where(name)

    def preset(self, topic: str) -> TopicPreset:
        """What the operator laid down for one topic; its own settings override that."""
        return self.presets.get(topic, _NO_PRESET)

    # --- change

    def with_broker_id(self, broker_id: int) -> BrokerSettings:
        """With the number that the broker was given, where its operator gave none."""
        return replace(self, broker_id=broker_id)

    def dynamic(self, *, cluster_wide: bool = False) -> dict[str, str]:
        """The changes in force: those made for all brokers, or for this one."""
        layer = self.layers.dynamic_default if cluster_wide else self.layers.dynamic_broker
        return {name: given.text for name, given in layer.items()}

    def with_changes(self, changes: Mapping[str, str | None], *, cluster_wide: bool = False) -> BrokerSettings:
        """With settings changed while the broker runs; None takes a change back. InvalidSettings."""
        source = Source.DYNAMIC_DEFAULT_BROKER if cluster_wide else Source.DYNAMIC_BROKER
        where = "changed for all brokers" if cluster_wide else "changed for this broker"
        admitted: dict[str, Given | None] = {}
        problems: list[Problem] = []
        for name, text in changes.items():
            if len(problems) == _MAX_PROBLEMS:
                break
            reason = check_changeable(name)
            given = None if reason is not None or text is None else admit(name, text, source, where)
            if reason is not None:
                problems.append(Problem("", shown(name), reason))
            elif isinstance(given, Problem):
                problems.append(Problem("", name, given.reason))
            else:
                admitted[name] = given
        if problems:
            raise InvalidSettings(problems)
        layers = self.layers.with_dynamic(admitted, cluster_wide=cluster_wide)
        return BrokerSettings.from_layers(layers, presets=self.presets, host_name=self.host_name)


def check_changeable(name: str) -> str | None:
    """None if a broker's setting may be changed while it runs, else why not.

    A name that is not known may be: as with Kafka it may be meant for something else that reads a broker's settings.
    """
    definition = BROKER_DEFINITIONS.get(name)
    if definition is not None and not definition.dynamic:
        return "cannot be changed while the broker runs; set it in the broker's file of settings and restart"
    return None


# Attribute: the setting it holds.
ATTRIBUTES: Final = {
    each.name: each.name.replace("_", ".") for each in fields(BrokerSettings) if each.name not in _COMPUTED
}


def _attribute(name: str, value: Value) -> Any:
    """The value in the form that the attribute has."""
    match name:
        case "log.dirs":
            return parse_list(str(value or ""))
        case "log.cleanup.policy":
            return frozenset(value) if isinstance(value, tuple) else frozenset({value})
        case "max.connections.per.ip.overrides":
            numbers = parse_numbers(str(value))
            if min(numbers.values(), default=0) < 0:
                raise InvalidValue("a number of connections is at least 0")
            return numbers
        case "log.retention.ms" | "log.retention.bytes":
            return max(value, -1) if isinstance(value, int) else value
    return value
