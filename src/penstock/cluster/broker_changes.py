"""What becomes of partitions when brokers come and go, or when what their topics demand changes. Pure.

Rule: a broker that came back is one that went and another that came, however fast it was: what it knew in its former
life, it may not know any more. Only partitions of those brokers are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.cluster.decision import Decision
from penstock.cluster.elections import elect
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage
from penstock.cluster.layout import UNKNOWN_EPOCH, BrokerRegistration
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import RulesOf


def brokers_changed(
    hosting: Hosting,
    image: ClusterImage,
    came: Collection[int],
    went: Collection[int],
    forgetful: Collection[int],
    rules_of: RulesOf,
    emptied: Collection[int] = (),
) -> Decision:
    """`image` has the brokers that are live now; `came` those that are new or back, `forgetful` those of them that
    did not stop cleanly, `emptied` those whose disk is another one. The operations are independent of one another:
    they may be done in parts.
    """
    changes = Changes(image)
    live = image.brokers.keys()
    for topic, indexes in hosting.of({*came, *went}):
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            after = elect(partition, live, came, image.controller_epoch, rules, forgetful, emptied)
            if after is not None:
                changes.put(topic.name, index, after)
    return changes.decision()


def rules_changed(decided: Decision, topics: Iterable[str], rules_of: RulesOf) -> Decision:
    """A decision on settings, and with it what they make of these topics: all or none of it may happen.

    When fewer replicas than before may commit, who left may lack what they commit from now on: it is no longer
    eligible, and must not be from the moment on at which the setting counts. Where anybody may lead from now on,
    somebody does. A leader must not take an ISR from anywhere but the image, in which a setting comes before what was
    decided by it.
    """
    image = decided.image
    changes = Changes(image)
    for name in topics:
        topic = image.topics.get(name)
        if topic is None or name in image.deleting:
            continue
        rules = rules_of(name)
        for index, partition in enumerate(topic.partitions):
            after = elect(partition, image.brokers.keys(), (), image.controller_epoch, rules)
            if after is not None:
                changes.put(name, index, after)
    more = changes.decision()
    return Decision((*decided.operations, *more.operations), more.image, (*decided.unclean, *more.unclean))


def is_forgetful(registration: BrokerRegistration, known_epoch: int) -> bool:
    """Whether a broker that came may have lost what was not synced: its data folders do not say that the life before
    this one ended in good order. `known_epoch` is that life's, as far as the controller has seen it.
    """
    if registration.clean_epoch == UNKNOWN_EPOCH:
        return True
    return known_epoch not in (UNKNOWN_EPOCH, registration.clean_epoch)
