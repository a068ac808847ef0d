"""Which permissions a request needs: one row per API, as Kafka's brokers demand them.

A row says what the whole request needs and how it is answered if that is missing; which elements need something of
their own, and how those that may not be touched are answered while the rest is served; and what of the response is
hidden or added. Handlers see only what is permitted.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.authorization_rules.administration import ADMINISTRATION
from penstock.broker.authorization_rules.groups import GROUPS
from penstock.broker.authorization_rules.rule import OPEN, SLICE, Access, ByElement, Denial, Prepared, Rule
from penstock.broker.authorization_rules.topics import TOPICS
from penstock.broker.authorization_rules.transactions import TRANSACTIONS

__all__ = ["OPEN", "RULES", "SLICE", "Access", "ByElement", "Denial", "Prepared", "Rule"]

RULES: Final[dict[int, Rule]] = {**TOPICS, **GROUPS, **TRANSACTIONS, **ADMINISTRATION}
