"""What clients take as keyword arguments, for type checkers, and the settings that they become."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from penstock.client.admin.core import AdminSettings
from penstock.client.consumer.settings import ConsumerOptions, ConsumerSettings
from penstock.client.producer.settings import ProducerOptions, ProducerSettings
from penstock.client.settings import ClientOptions, ClientSettings


def spelt(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ClientOptions, ClientSettings),
        (ClientOptions, AdminSettings),
        (ProducerOptions, ProducerSettings),
        (ConsumerOptions, ConsumerSettings),
    ],
)
def test_the_options_of_a_client_are_the_fields_of_its_settings_with_the_same_types(
    options: Any, settings: type[ClientSettings]
) -> None:
    declared = {name: spelt(annotation) for name, annotation in options.__annotations__.items()}
    taken = {each.name: spelt(each.type) for each in fields(settings) if each.init}
    assert declared == taken
