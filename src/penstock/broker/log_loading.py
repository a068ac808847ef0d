"""Opening the logs at the start of a broker, beside its event loop.

Noun: a loading: so many logs of so many are open, and so many bytes had to be walked for that.

Rule: the loop stays free, so that whoever asks over HTTP hears how far it is, and whoever watches the log is told every
few seconds. Whoever stops the start waits for the logs that are being opened just now, and for no more. A broker with a
log that is damaged, of a partition that others have, comes as one whose disk was emptied: it is in sync with nobody, so
it may cut the damage off and copy what is behind anew. Where others depend on it alone it stays who it is, and only the
damaged log is offline.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from penstock.cluster.image import ClusterImage
from penstock.log.checkpoints import TopicPartition
from penstock.log.folders.directory import Progress
from penstock.log.folders.manager import LogManager
from penstock.log.settings import LogSettings
from penstock.runtime.clock import Clock
from penstock.runtime.workers import Outcome, Workers

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 3.0


class LoadingStopped(Exception):
    """The start was given up."""


class LogLoading:
    """One start's loading of all logs."""

    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._guard = threading.Lock()
        self._stopped = False
        self._settings: dict[str, LogSettings] = {}
        self.total = logs.unread
        self.done = 0
        self.walked_bytes = 0

    async def run(
        self,
        workers: Workers,
        settings_for: Callable[[str], LogSettings],
        threads: int,
    ) -> None:
        """Open all logs; raises what LogManager.load raises."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()

        def settings_of(topic: str) -> LogSettings:
            # Working them out costs as much as opening a log, and a topic may have thousands.
            settings = self._settings.get(topic)
            if settings is None:
                settings = self._settings[topic] = settings_for(topic)
            return settings

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                finished.set_result(None)
            else:
                finished.set_exception(outcome.error)

        workers.run(lambda: self._logs.read_all(settings_of, now_ms, self._note, threads), done)
        try:
            while not (await asyncio.wait({finished}, timeout=TOLD_EVERY_S))[0]:
                logger.info("opening logs: %s", self._so_far(began_ms))
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait({finished})
            finished.exception()
            raise
        finished.result()
        self._logs.loaded(now_ms)
        if self.total:
            logger.info("logs are open: %s", self._so_far(began_ms))

    def settle_damage(self, image: ClusterImage, me: int) -> bool:
        """Whether the broker `me` of the cluster `image` has to come as one whose disk was emptied."""
        logs = {(each.topic, each.partition): each.log for each in self._logs.logs()}
        damaged = {key: log.damage for key, log in logs.items() if log.damage is not None}
        unsound = [key for directory in self._logs.directories for key in directory.unsound]
        shared = [key for key in (*damaged, *unsound) if _has_others(image, key, me)]
        for key, damage in damaged.items():
            if key not in shared and not damage.ends_log and damage.position >= logs[key].active.size:
                logs[key].forget_damage()  # it lost its end, and nobody can give it back
        if not shared:
            return False
        needed = _needed_alone(image, me)
        if needed is not None:
            for key in (key for key in shared if key in damaged):
                reason = f"{damaged[key].error()}; it is not repaired, for nobody else has all of {needed}"
                self._logs.directory_of(*key).take_offline(key, reason)
            return False
        for key in shared:
            if key in damaged:
                damaged[key].is_told = True
        logger.error(
            "damage was found in %d partitions that others hold too (%s): this broker is in sync with none of its "
            "partitions until it has asked their leaders",
            len(shared), ", ".join(f"{topic}-{index}" for topic, index in shared[:10]),
        )  # fmt: skip
        return True

    def _note(self, step: Progress) -> None:
        """In any thread."""
        with self._guard:
            self.done += 1
            if step.opened is not None:
                self.walked_bytes += step.opened.walked_bytes
        if self._stopped:
            raise LoadingStopped

    def _so_far(self, began_ms: float) -> str:
        took_s = (self._clock.monotonic_ms() - began_ms) / 1000
        return f"{self.done} of {self.total}, {self.walked_bytes / 1e6:.0f} MB walked, {took_s:.1f} s"


def _has_others(image: ClusterImage, key: TopicPartition, me: int) -> bool:
    partition = image.partition(*key)
    return partition is not None and any(broker != me for broker in partition.replicas)


def _needed_alone(image: ClusterImage, me: int) -> str | None:
    """A partition of which this broker alone is known to have all that was committed."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if {*partition.isr, *partition.elr} == {me} and topic.name not in image.deleting:
                return f"{topic.name}-{index}"
    return None
