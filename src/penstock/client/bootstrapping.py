"""The first connection: from what the user wrote to a broker that answers.

Rule: all addresses are tried, in any order, the next one soon after the last; the first that answers as a broker wins.
If none does, the error has an attempt for each. An answer is not enough: at least one of the addresses that the
brokers advertise must be reachable too, since all work goes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from penstock.client.addresses import Address, ZooKeeperAddress
from penstock.client.connection import Connection
from penstock.client.diagnosis import HINTS, Unusable
from penstock.client.errors import Attempt, BootstrapError, Cause, PenstockError
from penstock.client.links import first_of
from penstock.client.opening import Way, open_connection
from penstock.client.zookeeper import broker_addresses
from penstock.runtime.randomness import Random

T = TypeVar("T")

STAGGER_MS = 250


class Seed(NamedTuple):
    """A broker that was found, and where."""

    address: Address
    connection: Connection


async def find_seed(bootstrap: tuple[Address, ...] | ZooKeeperAddress, way: Way, random: Random) -> Seed:
    """Raises BootstrapError."""
    if isinstance(bootstrap, ZooKeeperAddress):
        try:
            addresses = await broker_addresses(bootstrap, way.connect_timeout_ms, with_tls=way.ssl is not None)
        except Unusable as error:
            raise BootstrapError([error.attempt]) from error
    else:
        addresses = bootstrap
    order = list(addresses)
    random.shuffle(order)
    outcome = await first_of(
        [lambda address=address: open_connection(address, way) for address in order],  # type: ignore[misc]
        stagger_ms=STAGGER_MS,
        discard=Connection.close,
    )
    if isinstance(outcome, tuple):
        return Seed(order[outcome[0]], outcome[1])
    failures = dict(zip(order, outcome, strict=True))
    raise BootstrapError([attempt_of(str(address), failures[address]) for address in addresses])


def attempt_of(address: str, error: PenstockError) -> Attempt:
    if isinstance(error, Unusable):
        return error.attempt._replace(address=address)
    return Attempt(address, Cause.OTHER, error.message, error.hint)


def unreachable_cluster(seed: Address, failures: Sequence[tuple[str, PenstockError]]) -> BootstrapError:
    """The bootstrap address works, none of the advertised ones does."""
    return BootstrapError(
        [
            Attempt(
                address,
                Cause.ADVERTISED,
                f"{seed} answers, but the broker advertises {address}, which cannot be used from here: "
                f"{error.reason if isinstance(error, Unusable) else error.message}",
                HINTS[Cause.ADVERTISED],
            )
            for address, error in failures
        ]
    )
