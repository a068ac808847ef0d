"""Who has been quiet for too long, without a timer for each.

Noun: a wheel of ticks, sixteen to the time allowed. A member lies in the slot of the tick at which it would be due.

Rule: a sign of life costs its member one assignment, `active_tick = wheel.tick`. Only when a slot comes up is each
member in it looked at, and laid into a later slot if it was active since. The wheel moves on by one tick at a time,
ticks being apart by a sixteenth of the time or more: after a standstill of the process it continues where it stood, and
nobody is due who had no chance to show life.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from penstock.runtime.clock import Clock

_TICKS: Final = 16
_NO_SLOT: Final = -1


class Member(Protocol):
    active_tick: int
    wheel_slot: int

    @property
    def busy(self) -> bool:
        """Waiting for something that is not its own to do: active, though nothing moves."""


M = TypeVar("M", bound=Member)


class IdleWheel(Generic[M]):
    """An `idle_ms` of 0 is for ever."""

    __slots__ = ("_clock", "_next_ms", "_slots", "tick", "tick_ms")

    def __init__(self, clock: Clock, idle_ms: int) -> None:
        self._clock = clock
        self.tick_ms = max(1.0, idle_ms / _TICKS) if idle_ms else 0.0
        self._slots: dict[int, set[M]] = {}
        self._next_ms = clock.monotonic_ms() + self.tick_ms
        self.tick = 0

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())

    def add(self, member: M) -> None:
        member.active_tick = self.tick
        member.wheel_slot = _NO_SLOT
        if self.tick_ms:
            self._lay(member)

    def remove(self, member: M) -> None:
        slot = self._slots.get(member.wheel_slot)
        member.wheel_slot = _NO_SLOT
        if slot is not None:
            slot.discard(member)

    def turn(self) -> list[M]:
        """Move on by a tick if it is time; those who are due, and no longer in the wheel."""
        now_ms = self._clock.monotonic_ms()
        if not self.tick_ms or now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + self.tick_ms
        self.tick = tick = self.tick + 1
        due: list[M] = []
        for member in self._slots.pop(tick, ()):
            if member.busy:
                member.active_tick = tick
            if self._due_tick(member) <= tick:
                member.wheel_slot = _NO_SLOT
                due.append(member)
            else:
                self._lay(member)
        return due

    def _due_tick(self, member: M) -> int:
        # What bears the number of a tick may have happened as late as the next began.
        return member.active_tick + _TICKS + 1

    def _lay(self, member: M) -> None:
        member.wheel_slot = self._due_tick(member)
        self._slots.setdefault(member.wheel_slot, set()).add(member)
