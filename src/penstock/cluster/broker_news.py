"""Brokers that came and went since a controller looked the last time. Pure.

Rule: a broker is the life that its epoch names. One that is there under another epoch than before went and came,
however fast it was. What a broker may have lost in between is told by its own registration, and by the last life of it
that a controller has dealt with: that is remembered in the tree, and written in one step with the last of what follows
from it. So a controller that ends in the middle leaves a broker that has still to be dealt with, and the next one deals
with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster import paths
from penstock.cluster.broker_changes import brokers_changed, is_forgetful
from penstock.cluster.decision import Decision
from penstock.cluster.elections import elect_all
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage
from penstock.cluster.layout import UNKNOWN_EPOCH, BrokerRegistration, encode_broker_epochs
from penstock.cluster.partition_rules import RulesOf
from penstock.cluster.tree import Set


class BrokerNews(NamedTuple):
    """`image` has the brokers that are there now. Of those that `came`, `forgetful` may have lost what they did not
    sync, and `emptied` everything.
    """

    image: ClusterImage
    came: tuple[int, ...]
    went: tuple[int, ...]
    forgetful: tuple[int, ...]
    emptied: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.came or self.went)


def news_of_brokers(
    image: ClusterImage,
    found: Mapping[int, BrokerRegistration],
    dealt_with: Mapping[int, int],
    unsettled: Iterable[int] = (),
) -> BrokerNews:
    """What is new in `found`. `dealt_with` are the epochs in the tree; `unsettled` went before, and what follows from
    that is not all stored.
    """
    known = image.brokers
    is_new = {each: each not in known or known[each].epoch != found[each].epoch for each in found}
    came = tuple(each for each in sorted(found) if is_new[each] and dealt_with.get(each) != found[each].epoch)
    went = {each for each in known if each not in found or is_new[each]}
    staying = frozenset(each for each in image.leaving if each in found and not is_new[each])
    return BrokerNews(
        replace(image, brokers={each: found[each] for each in sorted(found)}, leaving=staying),
        came,
        tuple(sorted({*went, *unsettled})),
        tuple(each for each in came if is_forgetful(found[each], dealt_with.get(each, UNKNOWN_EPOCH))),
        tuple(each for each in came if found[each].is_emptied),
    )


def decide_news(news: BrokerNews, hosting: Hosting, dealt_with: Mapping[int, int], rules_of: RulesOf) -> Decision:
    """What follows for the partitions of those brokers."""
    decision = brokers_changed(hosting, news.image, news.came, news.went, news.forgetful, rules_of, news.emptied)
    return _remembered(decision, news, dealt_with)


def decide_all(news: BrokerNews, dealt_with: Mapping[int, int], rules_of: RulesOf) -> Decision:
    """The same with a look at every partition: somebody else may have left some in between."""
    decision = elect_all(news.image, news.came, rules_of, news.forgetful, news.emptied)
    return _remembered(decision, news, dealt_with)


def _remembered(decision: Decision, news: BrokerNews, dealt_with: Mapping[int, int]) -> Decision:
    if not news.came:
        return decision
    epochs = {**dealt_with, **{each: news.image.brokers[each].epoch for each in news.came}}
    operation = Set(paths.BROKER_EPOCHS, encode_broker_epochs(epochs))
    return decision._replace(operations=(*decision.operations, operation))
