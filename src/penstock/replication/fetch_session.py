"""A follower's half of its fetch session with one leader (KIP-227). Pure.

Noun: what the leader remembers that this follower asks for, and what of it has to be said anew.

Rule: a request says only what changed since the last one, so that it costs what is going on and not what is followed.
What is said counts as known when it is sent: one connection carries all requests of a session, in order. So a second
request may follow the first before that is answered. It overtakes it: the leader need not go on waiting for the first.

    wants(a), wants(b); take() -> full: a, b       accepted(7)          session 7, next epoch 1
    leaves(a); take() -> epoch 1: forget a         wants(a); take() -> epoch 2: a
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

SessionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""

NO_SESSION: Final = 0
FULL: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

T = TypeVar("T")


class Said(NamedTuple, Generic[T]):
    """What a request says of the session."""

    session_id: int
    epoch: int
    named: list[T]
    forgotten: list[SessionKey]

    @property
    def is_full(self) -> bool:
        return self.epoch == FULL


class FollowerSession(Generic[T]):
    """Holds one T a partition that is asked for."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._wanted: dict[SessionKey, T] = {}
        self._known: set[SessionKey] = set()
        # In order, so that a run is the same every time.
        self._fresh: dict[SessionKey, T] = {}
        self._gone: dict[SessionKey, None] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for."""
        return not self._wanted

    @property
    def has_fresh(self) -> bool:
        """Whether something is asked for that the leader does not know of."""
        return bool(self._fresh)

    def wants(self, key: SessionKey, what: T) -> None:
        """Ask for a partition, or for another place in it."""
        self._wanted[key] = self._fresh[key] = what
        self._gone.pop(key, None)

    def leaves(self, key: SessionKey) -> None:
        """Ask for it no more."""
        self._wanted.pop(key, None)
        self._fresh.pop(key, None)
        if key in self._known:
            self._gone[key] = None

    def take(self) -> Said[T]:
        """What the next request says."""
        if not self.is_open:
            said = Said(NO_SESSION, FULL, list(self._wanted.values()), [])
            self._known = set(self._wanted)
        else:
            said = Said(self._id, self._epoch, list(self._fresh.values()), list(self._gone))
            self._known.update(self._fresh)
            self._known.difference_update(self._gone)
            self._epoch = 1 if self._epoch >= _LAST_EPOCH else self._epoch + 1
        self._fresh.clear()
        self._gone.clear()
        return said

    def accepted(self, session_id: int) -> None:
        """The leader answered a full request; id 0 says that it keeps no session, and the next is full again."""
        self._id = session_id
        self._epoch = 1 if session_id != NO_SESSION else FULL

    def reset(self) -> None:
        """The leader remembers nothing: the next request is a full one."""
        self._id, self._epoch = NO_SESSION, FULL
        self._known.clear()
        self._gone.clear()
        self._fresh = dict(self._wanted)
