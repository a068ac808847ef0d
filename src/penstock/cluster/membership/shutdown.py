"""Controlled shutdown, and the file that proves a clean one.

Before it stops, a broker asks the controller to move its leaderships. Shutdown waits while a follower is still
catching up, within the configured time. If the controller or the tree does not answer, it gives up after about 5
seconds: without the tree no other broker can take over. Leaderships that were not moved are moved when the controller
notices that the broker is gone.

`.broker-life` in each data folder holds the previous broker epoch and whether that run ended cleanly (KIP-966). A
folder without the file is new, and the broker registers as one whose disk was emptied. A clean shutdown is written last
of all and cleared before anything else is written. Folders that disagree count as unclean.
"""

from __future__ import annotations

import asyncio
import contextlib
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
_MAX_FILE_BYTES: Final = 4096

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


class PreviousBrokerEpoch:
    """`clean_epoch` and `is_emptied` as in `BrokerRegistration`.

    `is_emptied` reads the folders each time: opening the logs before the registration may find damage after which the
    folders count as new (`forget_previous_epoch`).
    """

    def __init__(self, clean_epoch: int, files: Files, folders: Sequence[str]) -> None:
        self.clean_epoch = clean_epoch
        self._files = files
        self._folders = tuple(folders)

    @property
    def is_emptied(self) -> bool:
        return any(_read(self._files, folder) is None for folder in self._folders)


def read_previous_epoch(files: Files, folders: Sequence[str]) -> PreviousBrokerEpoch:
    """Before the folders are opened. A file that cannot be read counts as unclean."""
    found = [_read(files, folder) for folder in folders]
    distinct = {(stored.epoch, stored.clean) for stored in found if stored is not None}
    clean_epoch = UNKNOWN_EPOCH
    if len(distinct) == 1 and None not in found:
        epoch, clean = distinct.pop()
        clean_epoch = epoch if clean else UNKNOWN_EPOCH
    return PreviousBrokerEpoch(clean_epoch, files, folders)


def forget_previous_epoch(files: Files, folders: Sequence[str]) -> None:
    """From now on the folders count as new. OSError."""
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{CLEAN_SHUTDOWN_FILE}")
        files.sync_folder(folder)


def clear_clean_shutdown(files: Files, folders: Sequence[str]) -> None:
    """Before anything in the folders changes. OSError."""
    for folder in folders:
        stored = _read(files, folder)
        if stored is not None and stored.clean:
            _write(files, folder, _StoredEpoch(stored.epoch, clean=False))


def write_broker_epoch(files: Files, folders: Sequence[str], epoch: int, *, clean: bool) -> None:
    """OSError."""
    for folder in folders:
        _write(files, folder, _StoredEpoch(epoch, clean))


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
    """Whether a live replica of one of these partitions is not in sync yet."""
    image = broker.image
    for topic, index in partitions:
        partition = image.partition(topic, index)
        if partition is not None and any(
            each in image.brokers and each not in image.shutting_down and each not in partition.isr
            for each in partition.replicas
            if each != broker.broker_id
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
