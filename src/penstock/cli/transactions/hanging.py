"""`penstock transactions find-hanging` and `abort`: transactions that no coordinator completes.

A partition is asked for its open transactions, and the coordinators for those of the same producers. Both are asked
twice before a transaction counts as hanging. `abort` checks this again before it writes the marker that is missing,
and rejects a transaction that its coordinator still completes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.completion import broker_ids
from penstock.cli.connection import Cluster, Rejected, cluster_command, error_document, show_failures
from penstock.cli.options import confirmation_options, topic_arguments, watch_option
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, show_table
from penstock.cli.values import Duration, NameAndPartitions, now_ms
from penstock.runtime.quantities import counted, duration_text, time_text

if TYPE_CHECKING:
    from penstock.client.admin import Admin, OpenTransaction, PartitionDescription
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import NoOpenTransaction, PenstockError, TransactionOngoing

_EXIT_FOUND: Final = 1
_INT16_MAX: Final = 2**15 - 1
_WITHOUT_CHECK: Final = ("producer_id", "producer_epoch", "coordinator_epoch")


class _Timeout(Duration):
    """A duration; a number alone is minutes, as in Kafka's tool."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            value = f"{value.strip()}m"
        return super().convert(value, param, ctx)


# --- find-hanging


@click.command("find-hanging", short_help="Find transactions that will never complete.")
@topic_arguments(required=False, partitions=True)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, metavar="P",
    help="Search only this partition of the topic. Can be repeated.",
)  # fmt: skip
@click.option(
    "--broker", "--broker-id", "broker_id", type=click.IntRange(min=0), metavar="ID", shell_complete=broker_ids,
    help="Search only the replicas on this broker.",
)  # fmt: skip
@click.option(
    "--max-transaction-timeout", "timeout_ms", type=_Timeout(), default="15m", metavar="DURATION",
    help="Search only transactions without a record for this long; a number alone is minutes.  [default: 15m]",
)  # fmt: skip
@watch_option
@format_option
@cluster_command
def find_hanging(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    partitions: tuple[int, ...],
    broker_id: int | None,
    timeout_ms: int,
    output_format: str,
) -> None:
    """Find hanging transactions, and print the command that aborts each.

    A transaction hangs if a partition has it as open, but its coordinator does not know it or has completed it without
    this partition. Late writes of old producers and bugs of clients or brokers cause this. Readers with isolation level
    read_committed get nothing from its first record on, and compaction stops there, until the transaction is aborted.

    Without TOPIC, all topics are searched, including internal ones. A transaction whose coordinator is going to
    complete it does not hang, however old it is: `penstock transactions list --open-for 15m` shows those.

    \b
    Exit code: 0  nothing hangs
               1  hanging transactions were found, or some partitions could not be searched
    """
    chosen = with_partitions(names, partitions)
    with cluster.admin() as admin:
        searched = _searched(admin, chosen, broker_id)
        led = [key for key, part in searched.items() if broker_id is not None or part.leader is not None]
        answers = admin.open_transactions(led, idle_ms=timeout_ms, broker_id=broker_id) if led else {}
    failed: dict[TopicPartition, PenstockError] = {}
    hanging: list[OpenTransaction] = []
    for key in searched:
        found = answers.get(key, _leaderless(key))
        if isinstance(found, tuple):
            hanging += [item for item in found if item.is_hanging]
        else:
            failed[key] = found
    if failed and len(failed) == len(searched):
        raise next(iter(failed.values()))
    _show_hanging(Output(), output_format, hanging, failed, len(searched))
    show_failures(failed.values(), output_format)
    click.get_current_context().exit(_EXIT_FOUND if hanging or failed else 0)


def with_partitions(names: Sequence[NameAndPartitions], indexes: tuple[int, ...]) -> tuple[NameAndPartitions, ...]:
    """The topics, with the partitions of --partition, which needs exactly one TOPIC."""
    if not indexes:
        return tuple(names)
    if len(names) != 1 or names[0].partitions is not None:
        raise CommandError("--partition needs one TOPIC.", "Give --topic TOPIC --partition P, or TOPIC:P.")
    return (NameAndPartitions(names[0].topic, indexes),)


def _searched(
    admin: Admin, names: Sequence[NameAndPartitions], broker_id: int | None
) -> dict[TopicPartition, PartitionDescription]:
    from penstock.cli.topics.partitions import all_partitions, named_partitions

    if broker_id is not None and broker_id not in [node.id for node in admin.describe_cluster().nodes]:
        raise Rejected(f"Broker {broker_id} does not exist or is offline.", "`penstock brokers` shows the brokers.")
    found = named_partitions(admin, names) if names else all_partitions(admin)
    return {key: part for key, part in found.items() if broker_id is None or broker_id in part.replicas}


def _leaderless(key: TopicPartition) -> PenstockError:
    from penstock.client.errors import error_for
    from penstock.wire.protocol import ErrorCode

    return error_for(ErrorCode.LEADER_NOT_AVAILABLE, where=str(key))


def cluster_words() -> list[str]:
    """The options of this command line that name the cluster; passwords are not repeated."""
    params = click.get_current_context().params
    spelled = {
        "bootstrap_server": "--bootstrap-server", "profile": "--profile", "zookeeper": "--zookeeper",
        "command_config": "--command-config",
    }  # fmt: skip
    words = [word for name, option in spelled.items() if params.get(name) for word in (option, params[name])]
    for name, value in params.get("command_property") or ():
        words += ["--command-property", f"{name}={value}"] if "password" not in name else []
    return words


def _show_hanging(
    output: Output,
    output_format: str,
    hanging: Sequence[OpenTransaction],
    failed: Mapping[TopicPartition, PenstockError],
    searched: int,
) -> None:
    from penstock.client.diagnosis import abort_command

    words = cluster_words()
    if output_format == JSON:
        document = {
            "searched": searched - len(failed),
            "hanging": [{**_document(item), "abortCommand": abort_command(item, *words)} for item in hanging],
            "failed": [
                {"topic": key.topic, "partition": key.partition, "error": error_document(error)}
                for key, error in failed.items()
            ],
        }
        output.json(document, indent=2)
        output.flush()
        return
    _show_table(output, hanging)
    if hanging:
        output.line()
        output.line("These transactions will never complete. To abort them:")
        for item in hanging:
            output.line(f"  {abort_command(item, *words)}")
    else:
        output.nothing(f"No hanging transactions in {counted(searched - len(failed), 'partition')}.")
    output.flush()


def _show_table(output: Output, found: Sequence[OpenTransaction]) -> None:
    now = now_ms()
    rows = [
        (
            item.partition.topic, item.partition.partition, item.start_offset, item.producer.producer_id,
            item.producer.producer_epoch, item.producer.coordinator_epoch, time_text(item.producer.last_timestamp),
            duration_text(max(0, now - item.producer.last_timestamp) / 1000), item.transactional_id, item.state,
        )
        for item in found
    ]  # fmt: skip
    titles = (
        "TOPIC", "PARTITION", "START OFFSET", "PRODUCER", "EPOCH", "COORDINATOR EPOCH", "LAST RECORD", "AGE",
        "TRANSACTIONAL ID", "STATE",
    )  # fmt: skip
    show_table(output, titles, rows)


def _document(item: OpenTransaction) -> dict[str, object]:
    producer = item.producer
    return {
        "topic": item.partition.topic,
        "partition": item.partition.partition,
        "startOffset": item.start_offset,
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "lastTimestamp": producer.last_timestamp if producer.last_timestamp >= 0 else None,
        "transactionalId": item.transactional_id,
        "state": item.state,
    }


# --- abort


@click.command(short_help="Abort a hanging transaction in one partition.")
@topic_arguments(required=True, partitions=True)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, metavar="P",
              help="The partition, if TOPIC does not name it.")  # fmt: skip
@click.option("--start-offset", type=click.IntRange(min=0), metavar="N", help="Start offset of the transaction.")
@click.option("--producer-id", type=click.IntRange(min=0), metavar="N",
              help="Producer id, instead of the start offset.")  # fmt: skip
@click.option("--producer-epoch", type=click.IntRange(0, _INT16_MAX), metavar="N", help="Epoch of that producer.")
@click.option("--coordinator-epoch", type=click.IntRange(-1, 2**31 - 1), metavar="N",
              help="Coordinator epoch; only brokers before Kafka 3.0 need it.")  # fmt: skip
@confirmation_options
@format_option
@cluster_command
def abort(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    partitions: tuple[int, ...],
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Abort a hanging transaction in one partition: its records are never shown to readers of committed records.

    `penstock transactions find-hanging` finds these transactions and prints this command for each. A transaction that
    its coordinator is going to complete is rejected: abort it with `penstock transactions fence ID`, in all its
    partitions at once.

    Brokers before Kafka 3.0 cannot say what is open: give --producer-id, --producer-epoch and --coordinator-epoch as
    `penstock log dump` shows them. There nothing is checked. Asks for confirmation at a terminal.

    \b
    Exit code: 4  no such transaction is open, or it does not hang
    """
    from penstock.cli.topics.partitions import named_partitions
    from penstock.client.errors import NoOpenTransaction, TransactionOngoing

    meant = _meant(start_offset, producer_id, producer_epoch, coordinator_epoch)
    with cluster.admin() as admin:
        found = list(named_partitions(admin, with_partitions(names, partitions)))
        if len(found) != 1:
            raise CommandError(
                "A transaction is aborted in one partition at a time.", "Give TOPIC:P, or --partition P."
            )
        (key,) = found
        try:
            item = _checked(admin, key, meant)
            which = f"the transaction of producer {item.producer.producer_id if item else producer_id} in {key}"
            if item is not None:
                which += f" that starts at offset {item.start_offset}"
            if not dry_run:
                confirm(f"Abort {which}?", yes=execute)
                admin.abort_transaction(key.topic, key.partition, **meant)
        except (NoOpenTransaction, TransactionOngoing) as error:
            raise _refused(error) from None
    _show_aborted(Output(), output_format, key, item, which, dry_run=dry_run)


def _show_aborted(
    output: Output, output_format: str, key: TopicPartition, item: OpenTransaction | None, which: str, *, dry_run: bool
) -> None:
    if output_format == JSON:
        document = _document(item) if item is not None else {"topic": key.topic, "partition": key.partition}
        output.json({"dryRun": dry_run, "aborted": [document]}, indent=2)
    else:
        output.line(f"{which[0].upper()}{which[1:]} would be aborted (dry run)." if dry_run else f"Aborted {which}.")
    output.flush()


def _meant(
    start_offset: int | None, producer_id: int | None, producer_epoch: int | None, coordinator_epoch: int | None
) -> dict[str, int]:
    given = {
        "start_offset": start_offset,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "coordinator_epoch": coordinator_epoch,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    by_producer = {"producer_id", "producer_epoch"}
    if ("start_offset" in chosen) == bool(by_producer & set(chosen)) or len(by_producer & set(chosen)) == 1:
        raise CommandError(
            "The transaction is not named.", "Give --start-offset N, or --producer-id N and --producer-epoch N."
        )
    return chosen


def _checked(admin: Admin, key: TopicPartition, meant: Mapping[str, int]) -> OpenTransaction | None:
    """The transaction, which must hang; None if the broker is too old to say."""
    from penstock.client.errors import NoOpenTransaction, PenstockError, TransactionOngoing, UnsupportedVersion

    found = admin.open_transactions([key])[key]
    if isinstance(found, UnsupportedVersion) and len(meant) == len(_WITHOUT_CHECK):
        return None
    if isinstance(found, PenstockError):
        raise found
    which = {name: value for name, value in meant.items() if name != "coordinator_epoch"}
    for item in found:
        has = {
            "start_offset": item.start_offset,
            "producer_id": item.producer.producer_id,
            "producer_epoch": item.producer.producer_epoch,
        }
        if all(has[name] == value for name, value in which.items()):
            if not item.is_hanging:
                raise TransactionOngoing(key, item.transactional_id or "", item.state or "")
            return item
    raise NoOpenTransaction(key, "with " + " and ".join(f"{name.replace('_', ' ')} {which[name]}" for name in which))


def _refused(error: NoOpenTransaction | TransactionOngoing) -> Rejected:
    """The error in the words of the command line."""
    from penstock.client.diagnosis import fence_command
    from penstock.client.errors import NoOpenTransaction

    key = error.partition
    if isinstance(error, NoOpenTransaction):
        hint = f"`penstock transactions producers --open {key.topic}:{key.partition}` shows the open ones."
        return Rejected(f"{error.message}.", hint)
    name = error.transactional_id
    return Rejected(
        f"The transaction of {name} in {key} does not hang: its coordinator has it as {error.state}.",
        f"To abort it in all its partitions: {fence_command(name, *cluster_words())}",
    )
