"""Which settings topics and brokers may be given while the cluster runs: the settings' own tables, as the cluster asks.

Rule: each setting is judged by itself here; whether all of them fit together is asked where a request is handled.
"""

from __future__ import annotations

from penstock.broker.settings import Problem, Source, check_changeable, check_topic_setting
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS
from penstock.broker.settings.definitions import ConfigType
from penstock.broker.settings.layers import admit
from penstock.broker.settings.parsing import format_value
from penstock.cluster.configs import ResourceKind


class SettingsRules:
    """The rules of this version of the broker."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        if kind is ResourceKind.TOPIC:
            return check_topic_setting(name, value)
        reason = check_changeable(name)
        if reason is not None:
            return f"{name}: {reason}"
        admitted = admit(name, value, Source.DYNAMIC_BROKER, "changed")
        return f"{name}: {admitted.reason}" if isinstance(admitted, Problem) else None

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        definitions = TOPIC_DEFINITIONS if kind is ResourceKind.TOPIC else BROKER_DEFINITIONS
        definition = definitions.get(name)
        if definition is None or definition.type is not ConfigType.LIST:
            return None
        return format_value(definition, definition.default) or ""
