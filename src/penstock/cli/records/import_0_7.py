"""`penstock import-0.7`: the data folder of a Kafka 0.7 broker into topics of any Kafka with transactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.output import JSON, CommandError, Output, format_option, printable, show_table
from penstock.cli.values import Assignment
from penstock.runtime.quantities import counted, human_bytes

if TYPE_CHECKING:
    from penstock.cli.records.log_folder_0_7 import OldPartition
    from penstock.cli.records.migration_0_7 import Outcome

_DAMAGED = 1


@click.command("import-0.7", short_help="Import the data folder of a Kafka 0.7 broker into topics.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-t", "--topic", "topics", multiple=True, metavar="NAME", help="Import this topic only. Can be repeated.")
@click.option("--rename", type=Assignment(), multiple=True, help="OLD=NEW: import topic OLD as NEW. Can be repeated.")
@click.option(
    "--source", metavar="NAME",
    help="Name of the old broker, the same in each run.  [default: the path of the folder]",
)  # fmt: skip
@click.option(
    "--partition-base", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Number to add to partition numbers, so that the partitions of further brokers stay separate.",
)  # fmt: skip
@click.option(
    "-p", "--partitions", type=click.IntRange(1), metavar="N",
    help="Partitions of topics that are created.  [default: as many as are needed]",
)  # fmt: skip
@click.option(
    "-r", "--replication-factor", type=click.IntRange(1), metavar="N", help="Replicas of topics that are created."
)
@click.option(
    "--timestamps", type=click.Choice(["now", "file"]), default="now", show_default=True,
    help="Timestamp of the records: time of the import, or of the last change of the old file. Retention uses it.",
)  # fmt: skip
@click.option("--append", is_flag=True, help="Import into partitions that already have other records.")
@click.option("--dry-run", is_flag=True, help="Read everything and show what would be imported, without a cluster.")
@format_option
@cluster_command
def import_0_7(cluster: Cluster, folder: Path, dry_run: bool, output_format: str, **options: Any) -> None:
    """Import the data folder (log.dir) of a Kafka 0.7 broker into topics.

    Topics that do not exist are created. Repeat the command to continue after an interruption, or to import what was
    written since: no message is imported twice. Readers that must not see messages of an interrupted import twice read
    with isolation.level=read_committed. Damaged messages are reported and left out. The folder is not changed.

    \b
    penstock import-0.7 /tmp/kafka-logs --dry-run
    penstock import-0.7 /tmp/kafka-logs
    penstock import-0.7 /mnt/broker-2/kafka-logs --partition-base 4

    \b
    Exit code: 0  everything was imported
               1  damaged parts were left out
               3  no broker could be reached
               4  rejected by a broker
    """
    olds = _chosen(folder, options["topics"])
    names = dict(options["rename"])
    if dry_run:
        outcomes = [_counted_only(old, names, options["partition_base"]) for old in olds]
    else:
        outcomes = _import(cluster, folder, olds, names, options)
    _show(outcomes, output_format, dry_run=dry_run)
    if any(outcome.damages for outcome in outcomes):
        click.get_current_context().exit(_DAMAGED)


def _chosen(folder: Path, topics: Sequence[str]) -> list[OldPartition]:
    from penstock.cli.records.log_folder_0_7 import find_partitions

    try:
        found, others = find_partitions([folder])
    except OSError as error:
        raise CommandError(
            f"Cannot read {folder}: {error.strerror}.", "It must be the log.dir of the broker."
        ) from None
    missing = sorted(set(topics) - {old.topic for old in found})
    if missing:
        raise CommandError(f"{folder} has no topic {missing[0]!r}.", _known(found))
    if not found:
        raise CommandError(
            f"{folder} has no partitions: no folder like views-0 with files like {0:020d}.kafka.",
            "It must be the log.dir of a Kafka 0.7 broker. Newer brokers have .log files.",
        )
    for other in others:
        click.echo(f"Ignored: {printable(str(other))} is not a partition.", err=True)
    chosen = [old for old in found if not topics or old.topic in topics]
    twice = {(old.topic, old.partition): old for old in chosen}
    for old in chosen:
        if twice[old.topic, old.partition] is not old:
            raise CommandError(
                f"{old.name} and {twice[old.topic, old.partition].name} are both partition {old.partition} of "
                f"{old.topic}.", "Move one of them to another folder.",
            )  # fmt: skip
    return chosen


def _known(found: Sequence[OldPartition]) -> str:
    names = sorted({old.topic for old in found})
    return f"It has {', '.join(names[:20])}." if names else "It has none."


def _counted_only(old: OldPartition, names: dict[str, str], base: int) -> Outcome:
    from penstock.cli.records.log_folder_0_7 import Damage
    from penstock.cli.records.migration_0_7 import Outcome
    from penstock.client.cluster_metadata import TopicPartition

    target = TopicPartition(names.get(old.topic, old.topic), old.partition + base)
    outcome = Outcome(old, target, next_position=old.first_position)
    for found in old.read():
        if isinstance(found, Damage):
            outcome.damages.append(found)
        else:
            outcome.imported += len(found.payloads)
            outcome.next_position = found.next_position
    return outcome


def _import(
    cluster: Cluster, folder: Path, olds: Sequence[OldPartition], names: dict[str, str], options: dict[str, Any]
) -> list[Outcome]:
    from penstock.cli.connection import producer_options
    from penstock.cli.records.migration_0_7 import Importer
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.consumer import Consumer
    from penstock.client.producer import Producer

    base = options["partition_base"]
    targets = {id(old): TopicPartition(names.get(old.topic, old.topic), old.partition + base) for old in olds}
    _make_topics(cluster, list(targets.values()), options)
    source = options["source"] or str(folder.resolve())
    given = {"compression_type": "lz4"} | cluster.options_for("penstock-import", producer_options(), {})
    with (
        Producer(cluster.servers, **(given | {"transactional_id": f"{_ID}-{source}"})) as producer,
        Consumer(
            bootstrap_servers=cluster.servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **cluster.connecting("penstock-import"),
        ) as consumer,
    ):
        importer = Importer(
            producer, consumer, source, append=options["append"], use_file_times=options["timestamps"] == "file"
        )
        return [importer.run(old, targets[id(old)]) for old in olds]


_ID = "import-0.7"


def _make_topics(cluster: Cluster, targets: Sequence[Any], options: dict[str, Any]) -> None:
    """Create missing topics; CommandError if an existing one has too few partitions."""
    from penstock.client.admin import TopicDescription, TopicSpec

    needed: dict[str, int] = {}
    for topic, partition in targets:
        needed[topic] = max(needed.get(topic, 0), partition + 1)
    with cluster.admin() as admin:
        existing = set(admin.list_topics(include_internal=True))
        described = admin.describe_topics(sorted(existing & needed.keys())) if existing & needed.keys() else {}
        for topic, count in needed.items():
            found = described.get(topic)
            if isinstance(found, TopicDescription) and len(found.partitions) < count:
                raise CommandError(
                    f"Topic {topic!r} has {counted(len(found.partitions), 'partition')}, and partition {count - 1} is "
                    "to be imported.",
                    f"Add partitions: penstock topics alter {topic} --partitions {count}",
                )
        for topic in sorted(needed.keys() - existing):
            partitions = max(needed[topic], options["partitions"] or 0)
            factor = options["replication_factor"] or -1
            admin.create_topic(TopicSpec(topic, partitions, factor), exist_ok=True)


def _show(outcomes: Sequence[Outcome], output_format: str, *, dry_run: bool) -> None:
    output = Output()
    if output_format == JSON:
        output.json({"dryRun": dry_run, "partitions": [_document(outcome) for outcome in outcomes]}, indent=2)
        output.flush()
        return
    rows = [
        (
            outcome.old.name, f"{outcome.target.topic}-{outcome.target.partition}", len(outcome.old.files),
            human_bytes(outcome.old.size_bytes), outcome.imported, outcome.next_position, len(outcome.damages),
        )
        for outcome in outcomes
    ]  # fmt: skip
    show_table(output, ("FROM", "TO", "FILES", "SIZE", "MESSAGES", "POSITION", "DAMAGED"), rows)
    for outcome in outcomes:
        for damage in outcome.damages:
            output.line(f"Damaged: {printable(f'{outcome.old.name}/{damage}')}")
    total = sum(outcome.imported for outcome in outcomes)
    output.line(f"Dry run: {counted(total, 'message')} found, nothing was written." if dry_run
                else f"Imported {counted(total, 'message')}.")  # fmt: skip
    output.flush()


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "folder": str(outcome.old.folder),
        "topic": outcome.target.topic,
        "partition": outcome.target.partition,
        "files": len(outcome.old.files),
        "bytes": outcome.old.size_bytes,
        "messages": outcome.imported,
        "continued": outcome.is_continued,
        "firstPosition": outcome.old.first_position,
        "nextPosition": outcome.next_position,
        "damaged": [damage._asdict() for damage in outcome.damages],
    }
