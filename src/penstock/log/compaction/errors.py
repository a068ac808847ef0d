"""Why a compaction did not come to its end. Whatever was installed before stays; nothing of the rest counts."""

from __future__ import annotations

from penstock.log.errors import LogError


class CompactionError(LogError):
    """Base of what stops a compaction without any harm to the log."""


class CompactionCancelled(CompactionError):
    """The caller asked it to stop."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the compaction of {folder} was cancelled")
        self.folder = folder


class CompactionOvertaken(CompactionError):
    """The log was cut or trimmed meanwhile: what was cleaned is not what it holds now. Begin anew."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the compaction of {folder} was overtaken: {reason}")
        self.folder = folder
        self.reason = reason


class CompactionFailed(CompactionError):
    """The disk failed while a segment was read or its copy written, or a batch is too large to be opened up."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be compacted: {reason}")
        self.path = path
        self.reason = reason
