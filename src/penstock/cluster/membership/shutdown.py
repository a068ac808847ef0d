"""Controlled shutdown, and the file that proves a clean one.

Before it stops, a broker asks the controller to move its leaderships. Shutdown waits while a follower is still
catching up, within the configured time. If the controller or the tree does not answer, it gives up after about 5
seconds: without the tree no other broker can take over. Leaderships that were not moved are moved when the controller
notices that the broker is gone.

`.broker-life` in each data folder holds the previous broker epoch and whether that run ended cleanly (KIP-966). A
folder without the file is new, and the broker registers as one whose disk was emptied, with the replicas that its other
folders have kept. It does so too if a folder that the file names is no longer configured. A clean shutdown is written
last of all and cleared before anything else is written. Folders that disagree count as unclean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from penstock.cluster.broker_links import LinkLost
from penstock.cluster.controller.controller import Controller
from penstock.cluster.errors import ClusterError, ConnectionLost
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree.layout import UNKNOWN_EPOCH
from penstock.log.checkpoints import atomic_write
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".broker-life"
_MAX_FILE_BYTES: Final = 64 * 1024

_RETRY_S: Final = 0.25
_ANSWER_MS: Final = 10_000
_UNREACHABLE_MS: Final = 5_000
_MIN_ANSWER_MS: Final = 1_000
_CONTROLLED_SHUTDOWN_VERSION: Final = 3

Partitions = Sequence[tuple[str, int]]


# --- the clean-shutdown file


class _StoredEpoch(msgspec.Struct):
    epoch: int
    clean: bool
    folders: tuple[str, ...] = ()
    """All data folders that the broker had, including those that had failed."""
    failed: tuple[str, ...] = ()
    """The folders that had failed."""


class PreviousBrokerEpoch:
    """`clean_epoch` and `is_emptied` as in `BrokerRegistration`.

    `new_folders` have no file. `outdated` folders had failed while the broker went on with the others, so a partition
    that is in one of these and in another folder was created again in the other.
    """

    def __init__(self, files: Files, folders: Sequence[str]) -> None:
        found = {folder: _read(files, folder) for folder in (folder.rstrip("/") or "/" for folder in folders)}
        stored = [each for each in found.values() if each is not None]
        newest = max((each.epoch for each in stored), default=UNKNOWN_EPOCH)
        distinct = {(each.epoch, each.clean) for each in stored}
        is_clean = len(distinct) == 1 and len(stored) == len(found) and stored[0].clean
        self.clean_epoch = newest if is_clean else UNKNOWN_EPOCH
        latest = [each for each in stored if each.epoch == newest]
        older = {folder for folder, each in found.items() if each is not None and UNKNOWN_EPOCH < each.epoch < newest}
        self.outdated = frozenset(older.union(*(each.failed for each in latest)).intersection(found))
        self.new_folders = frozenset(folder for folder, each in found.items() if each is None)
        # A folder may also be missing from the settings.
        self.is_emptied = bool(
            self.new_folders or {folder for each in latest for folder in each.folders} - found.keys()
        )


def read_previous_epoch(files: Files, folders: Sequence[str]) -> PreviousBrokerEpoch:
    """Before the folders are opened. A file that cannot be read counts as unclean."""
    return PreviousBrokerEpoch(files, folders)


def clear_clean_shutdown(files: Files, folders: Sequence[str]) -> None:
    """Before anything in the folders changes. OSError."""
    for folder in folders:
        stored = _read(files, folder)
        if stored is not None and stored.clean:
            _write(files, folder, _StoredEpoch(stored.epoch, False, stored.folders, stored.failed))


def write_broker_epoch(
    files: Files,
    folders: Sequence[str],
    epoch: int,
    *,
    clean: bool,
    others: Sequence[str] = (),
    failed: Sequence[str] = (),
) -> None:
    """In these folders. The broker has `others`, and some that `failed`. OSError."""
    known = tuple(sorted({*folders, *others, *failed}))
    for folder in folders:
        _write(files, folder, _StoredEpoch(epoch, clean, known, tuple(failed)))


def _read(files: Files, folder: str) -> _StoredEpoch | None:
    path = f"{folder}/{CLEAN_SHUTDOWN_FILE}"
    try:
        file = files.open(path, writable=False)
        try:
            data = file.read_at(0, _MAX_FILE_BYTES)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning(
            "clean-shutdown file unreadable, the last shutdown counts as unclean: path=%s error=%s", path, error
        )
        return _StoredEpoch(UNKNOWN_EPOCH, clean=False)
    try:
        return msgspec.json.decode(data, type=_StoredEpoch)
    except msgspec.MsgspecError as error:
        logger.warning(
            "clean-shutdown file damaged, the last shutdown counts as unclean: path=%s error=%s", path, error
        )
        return _StoredEpoch(UNKNOWN_EPOCH, clean=False)


def _write(files: Files, folder: str, stored: _StoredEpoch) -> None:
    atomic_write(files, f"{folder}/{CLEAN_SHUTDOWN_FILE}", msgspec.json.encode(stored))


# --- controlled shutdown


class StoppingBroker(Protocol):
    """What a controlled shutdown needs of a broker's membership."""

    @property
    def broker_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...

    @property
    def controller(self) -> Controller | None: ...

    async def ask_controller(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message: ...

    def tree_unreachable_ms(self) -> float | None:
        """For how long the tree has been unreachable; None if it is not known to be."""

    def note_tree_unreachable(self) -> None:
        """The tree does not answer."""


async def controlled_shutdown(broker: StoppingBroker, clock: Clock, within_ms: float) -> bool:
    """Move the broker's leaderships to other in-sync replicas; returns whether no partition needs it any more."""
    started_ms = clock.monotonic_ms()
    deadline_ms = started_ms + within_ms
    reported = 0
    while True:
        try:
            remaining = await _ask(broker)
        except (LinkLost, ClusterError) as error:
            unreachable_since_ms = clock.monotonic_ms() - (broker.tree_unreachable_ms() or 0.0)
            deadline_ms = min(deadline_ms, min(started_ms, unreachable_since_ms) + _UNREACHABLE_MS)
            if clock.monotonic_ms() + _RETRY_S * 1000 >= deadline_ms:
                logger.warning(
                    "controlled shutdown failed, leaders move when the stop is noticed: broker=%d error=%s",
                    broker.broker_id,
                    error,
                )
                return False
        else:
            if not remaining:
                return True
            if len(remaining) != reported:
                reported = len(remaining)
                first = ",".join(f"{topic}-{index}" for topic, index in remaining[:3])
                logger.info(
                    "partitions still need this broker: broker=%d partitions=%d first=%s",
                    broker.broker_id,
                    reported,
                    first,
                )
            if not _is_follower_catching_up(broker, remaining) or clock.monotonic_ms() >= deadline_ms:
                logger.warning(
                    "controlled shutdown incomplete, stopping anyway: broker=%d partitions=%d",
                    broker.broker_id,
                    reported,
                )
                return False
        await asyncio.sleep(_RETRY_S)


def _is_follower_catching_up(broker: StoppingBroker, partitions: Partitions) -> bool:
    """Whether an online replica of one of these partitions is not in sync yet."""
    image = broker.image
    for name, index in partitions:
        topic, partition = image.topics.get(name), image.partition(name, index)
        if (
            topic is not None
            and partition is not None
            and any(
                image.is_online(each, topic, index) and each not in image.shutting_down and each not in partition.isr
                for each in partition.replicas
                if each != broker.broker_id
            )
        ):
            return True
    return False


async def _ask(broker: StoppingBroker) -> Partitions:
    """The partitions that still need the broker. LinkLost, ClusterError: unknown."""
    unreachable_ms = broker.tree_unreachable_ms()
    timeout_ms = _ANSWER_MS if unreachable_ms is None else max(0.0, _UNREACHABLE_MS - unreachable_ms)
    if broker.controller is not None:
        return await _ask_own_controller(broker, broker.controller, timeout_ms)
    request = ControlledShutdownRequest(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    response = await broker.ask_controller(
        ApiKey.CONTROLLED_SHUTDOWN, _CONTROLLED_SHUTDOWN_VERSION, request, max(_MIN_ANSWER_MS, timeout_ms)
    )
    if not isinstance(response, ControlledShutdownResponse) or response.error_code:
        raise LinkLost(f"the controller rejected ControlledShutdown: {error_name(response)}")
    return [(item.topic_name, item.partition_index) for item in response.remaining_partitions]


async def _ask_own_controller(broker: StoppingBroker, controller: Controller, timeout_ms: float) -> Partitions:
    work = controller.shut_down(broker.broker_id, broker.broker_epoch)
    task = asyncio.get_running_loop().create_task(work)
    await asyncio.wait({task}, timeout=timeout_ms / 1000)
    if task.done():
        return task.result()
    # It ends with the session; asyncio must not complain about an error that is never read.
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    broker.note_tree_unreachable()
    raise ConnectionLost("the metadata tree does not answer")


def error_name(response: Message) -> str:
    """The name of a response's error code; the number if the code is unknown."""
    code = getattr(response, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
    return next((known.name for known in ErrorCode if known == code), str(code))
