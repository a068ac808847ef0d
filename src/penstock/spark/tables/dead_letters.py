"""The dead letters' part of a commit, carried out.

Noun: a note's `dead_files` and `dead_replaces`: what comes to the dead letters, and which offsets it replaces there.

Rule: one commit decides, that of the table. It says what the dead letters shall become, and their own commit follows
it, by its number. If the driver dies in between, the next one finds the number missing and does it then. So a record
is never in both, and never in neither, however often that happens.
"""

from __future__ import annotations

from penstock.spark.tables.commits import DEAD_APPLIED, DEAD_SEQUENCE, CommitNote
from penstock.spark.tables.delta import Store
from penstock.spark.tables.errors import TableDamaged
from penstock.spark.tables.rewriting import RewriteTask, plan_removal, run_rewrite


def sequence(main: Store) -> int:
    return main.transaction(DEAD_SEQUENCE) or 0


def settle(main: Store, dead: Store) -> int:
    """Carry out what the dead letters are behind with; how many commits that were."""
    wanted = sequence(main)
    done = dead.transaction(DEAD_APPLIED) or 0
    if done >= wanted:
        return 0
    for number, note in sorted(_missing(main, done, wanted).items()):
        _apply(dead, number, note)
    return wanted - done


def _missing(main: Store, done: int, wanted: int) -> dict[int, CommitNote]:
    found: dict[int, CommitNote] = {}
    for version in range(main.version, -1, -1):
        note = main.note(version)
        if note is not None and done < note.dead_sequence <= wanted:
            found[note.dead_sequence] = note
        if len(found) == wanted - done:
            return found
    raise TableDamaged(
        f"{main.storage.uri}: the dead letters miss {wanted - done - len(found)} commits that its log no longer has",
        hint="Load their range again (penstock load --since)",
    )


def _apply(dead: Store, number: int, note: CommitNote) -> None:
    inside, across = plan_removal(dead.files(), note.dead_replaces)
    kept = [run_rewrite(RewriteTask(dead.storage, (file,), tuple(note.dead_replaces))) for file in across]

    def not_yet() -> None:
        if (dead.transaction(DEAD_APPLIED) or 0) >= number:
            raise _Done

    try:
        dead.commit(
            CommitNote(note.kind, note.topic, note.topic_id, note.spans, note.counts),
            add=[*note.dead_files, *(file for file in kept if file is not None)],
            remove=[*inside, *across],
            transactions={DEAD_APPLIED: number},
            check=not_yet,
        )
    except _Done:
        # Another driver found it missing too, and was faster.
        dead.storage.remove_files([file.path for file in kept if file is not None])


class _Done(Exception):
    pass
