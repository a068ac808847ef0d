"""`Services` for stories about handlers, without a broker around them."""

from __future__ import annotations

from penstock.broker.dynamic_config import DynamicConfig
from penstock.broker.fetch_session import FetchSessions
from penstock.broker.handlers.metadata import MetadataAnswers
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.request import BrokerState, Services
from penstock.broker.settings import BrokerSettings
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.process import SystemProcess
from penstock.runtime.randomness import SeededRandom


def services_for(settings: BrokerSettings, node_id: int, *, clock: Clock, files: Files) -> Services:
    """What exists before a broker starts; the story sets the rest."""
    return Services(
        clock=clock,
        random=SeededRandom(1),
        files=files,
        config=DynamicConfig(settings, node_id),
        metrics=BrokerMetrics(SystemProcess()),
        sessions=FetchSessions(10, 1000, SeededRandom(1)),
        metadata_answers=MetadataAnswers(),
        state=BrokerState.RUNNING,
    )
