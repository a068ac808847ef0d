"""Settings of brokers and topics, by Kafka's names.

    loaded = load_settings("server.properties", ["num.partitions=8"])
    loaded.settings.num_partitions                    8
    loaded.settings.where("num.partitions")           "--set"
    log_settings(loaded.settings, {"retention.ms": "60000"})

`catalogue` has all settings by name; `broker_settings` the values of a broker and where each comes from;
`topic_settings` those of a topic.
"""

from penstock.broker.settings.broker_settings import (
    BrokerSettings,
    LoadedSettings,
    Source,
    check_changeable,
    load_settings,
    settings_from,
)
from penstock.broker.settings.catalogue import TopicSettings
from penstock.broker.settings.description import Row, Synonym, describe_all_brokers, describe_broker, describe_topic
from penstock.broker.settings.listeners import Listener, unreachable_hosts, with_bound_ports
from penstock.broker.settings.server_properties import TopicPreset
from penstock.broker.settings.topic_settings import (
    check_topic_setting,
    check_topic_settings,
    log_settings,
    sound_overrides,
    topic_settings,
)
from penstock.config_def import (
    ConfigType,
    InvalidSettings,
    Notice,
    Problem,
    SettingsError,
    UnreadableFile,
    list_with,
    list_without,
)

__all__ = [
    "BrokerSettings",
    "ConfigType",
    "InvalidSettings",
    "Listener",
    "LoadedSettings",
    "Notice",
    "Problem",
    "Row",
    "SettingsError",
    "Source",
    "Synonym",
    "TopicPreset",
    "TopicSettings",
    "UnreadableFile",
    "check_changeable",
    "check_topic_setting",
    "check_topic_settings",
    "describe_all_brokers",
    "describe_broker",
    "describe_topic",
    "list_with",
    "list_without",
    "load_settings",
    "log_settings",
    "settings_from",
    "sound_overrides",
    "topic_settings",
    "unreachable_hosts",
    "with_bound_ports",
]
