"""`penstock log`: inspect the files of a log.

This module has the options and checks the paths; `dump` and `verify` print. They are imported when a command runs, so
that help does not wait for them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from penstock.cli.output import CommandError, Output, format_option

if TYPE_CHECKING:
    from penstock.log.inspection.log_files import PathKind
    from penstock.runtime.files import Files

# Longer than a broker's write takes, even on a busy machine.
_PAUSE_S = 0.05

_PATHS = "a .log, .index, .timeindex, .txnindex or .snapshot file, or a partition's folder"


@click.group()
def log() -> None:
    """Inspect the files of a log.

    Nothing is changed or locked, so both commands can run while a broker uses the files.
    """


@log.command(short_help="Print batches, records and index entries.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--records", is_flag=True, help="Include the records of each batch.")
@click.option("--max-records", type=click.IntRange(min=1), metavar="N", help="Stop after N records; implies --records.")
@click.option("--from-offset", type=click.IntRange(min=0), metavar="N", help="Start at offset N.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Stop before offset N.")
@click.option(
    "--value-format", type=click.Choice(["text", "hex", "base64", "none"]), default="text", show_default=True,
    help="Notation of keys, values and header values. text is UTF-8 with other bytes escaped.",
)  # fmt: skip
@format_option
def dump(
    paths: tuple[str, ...],
    records: bool,
    max_records: int | None,
    from_offset: int | None,
    to_offset: int | None,
    value_format: str,
    output_format: str,
) -> None:
    """Print the contents of files of a log.

    PATH is a .log, .index, .timeindex, .txnindex or .snapshot file, or the folder of a partition. The fields of a batch
    are those of Kafka's DumpLogSegments. Older formats (magic 0 and 1) are supported. With --format json each line is
    one JSON object.

    \b
    Exit code: 0  no damage
               1  damage found; it is printed where it is
               2  the path is not part of a log
    """
    from penstock.cli.log.dump import Dump
    from penstock.log.inspection.dump import NO_LIMIT, Window
    from penstock.log.inspection.log_files import PathKind

    files = _files()
    targets = [(path, _kind(files, path)) for path in map(_folder_path, paths)]
    for path, kind in targets:
        if kind is PathKind.LOG_DIRECTORY:
            raise CommandError(f"{path} is a data folder.", f"Name one of its partitions, or {_PATHS}.")
    window = Window(
        from_offset or 0,
        NO_LIMIT if to_offset is None else to_offset,
        records=records or max_records is not None,
        pause=_pause,
    )
    dumping = Dump(files, Output(), window, output_format, value_format, max_records)
    click.get_current_context().exit(dumping.run(targets))


@log.command(short_help="Verify checksums, offsets and indexes.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--deep", is_flag=True, help="Also decompress and decode every record.")
@format_option
def verify(paths: tuple[str, ...], deep: bool, output_format: str) -> None:
    """Verify checksums, the order of offsets and leader epochs, indexes, snapshots and checkpoints.

    PATH is a data folder, the folder of a partition, or one of its files. Damage is reported with file, byte and
    offset, what around it is sound, and what to do.

    \b
    Exit code: 0  sound
               1  damaged, or in a format that Penstock does not store
               2  the path is not part of a log
    """
    from penstock.cli.log.verify import run

    files = _files()
    targets = [(path, _kind(files, path)) for path in map(_folder_path, paths)]
    click.get_current_context().exit(run(files, targets, Output(), output_format, deep=deep, pause=_pause))


def _pause() -> None:
    time.sleep(_PAUSE_S)


def _files() -> Files:
    from penstock.runtime.files import PosixFiles

    return PosixFiles()


def _folder_path(path: str) -> str:
    """The path without trailing slashes; reports append names to it."""
    return path.rstrip("/") or path[:1]


def _kind(files: Files, path: str) -> PathKind:
    from penstock.log.inspection.log_files import PathKind, kind_of

    expected = f"Give {_PATHS}; `verify` also takes a data folder."
    try:
        kind = kind_of(files, path)
    except PermissionError:
        raise CommandError(f"{path}: permission denied.", "Run the command as the user of the broker.") from None
    except OSError as error:
        raise CommandError(f"{path}: {(error.strerror or str(error)).lower()}.", expected) from None
    if kind is PathKind.OTHER:
        what = "is not a data folder or a partition's folder" if files.is_folder(path) else "is not a file of a log"
        raise CommandError(f"{path} {what}.", expected)
    return kind
