"""`penstock transactions`: what coordinators and partitions know of transactions, and fencing.

`list`, `describe` and `fence` ask the coordinators of transactional ids; `producers` asks partitions. Transactions that
no coordinator completes are the business of `find-hanging` and `abort`, in hanging.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.completion import broker_ids
from penstock.cli.connection import Cluster, Rejected, cluster_command, command_error_for, error_document, show_failures
from penstock.cli.options import confirmation_options, topic_arguments, transactional_id_arguments, watch_option
from penstock.cli.output import (
    EXIT_PARTLY,
    JSON,
    CommandError,
    Output,
    confirm,
    format_option,
    printable,
    show_found,
    show_table,
)
from penstock.cli.transactions.hanging import abort, find_hanging
from penstock.cli.values import Duration, NameAndPartitions, now_ms
from penstock.runtime.quantities import counted, duration_text, time_text

if TYPE_CHECKING:
    from penstock.client.admin import Admin, FencedProducer, ProducerState, TransactionDescription
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError

_SHOWN_PARTITIONS: Final = 10
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip


@click.group()
def transactions() -> None:
    """List, describe, fence and abort transactions, and find those that hang.

    A producer with a transactional id writes its records in transactions. The coordinator of the id commits or aborts
    each one by a marker in every partition. Until then readers with isolation level read_committed wait at the first
    record of the transaction.

    A transaction hangs if a partition has it as open but the coordinator does not know it, or has completed it without
    this partition. Its marker will never be written, so those readers wait forever. `find-hanging` finds such
    transactions and prints the command that aborts each of them.
    """


transactions.add_command(find_hanging)
transactions.add_command(abort)


# --- list


@transactions.command("list", short_help="List transactional ids and their states.")
@click.option(
    "--state", "states", type=click.Choice(STATES, case_sensitive=False), multiple=True,
    help="Show only ids in this state. Can be repeated.",
)  # fmt: skip
@click.option(
    "--producer-id", "producer_ids", type=click.IntRange(min=0), multiple=True, metavar="N",
    help="Show only ids of this producer. Can be repeated.",
)  # fmt: skip
@click.option("--open-for", "open_for_ms", type=Duration(), help="Show only transactions open for longer: 30s, 15m.")
@click.option("--match", metavar="REGEX", help="Show only ids that match as a whole.")
@watch_option
@format_option
@cluster_command
def list_(
    cluster: Cluster,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    open_for_ms: int | None,
    match: str | None,
    output_format: str,
) -> None:
    """List the transactional ids of the cluster, with the state of the last transaction of each.

    Every broker is asked for the ids that it coordinates. --open-for needs Kafka 3.8, --match Kafka 4.1, or a Penstock
    broker.
    """
    with cluster.admin() as admin:
        found = admin.list_transactions(states or None, producer_ids or None, open_for_ms, match)
    output = Output()
    if output_format == JSON:
        listed = [
            {
                "transactionalId": each.transactional_id,
                "producerId": each.producer_id,
                "state": each.state,
                "coordinator": each.coordinator.id,
            }
            for each in found
        ]
        output.json({"transactions": listed}, indent=2)
        return
    rows = [(each.transactional_id, each.producer_id, each.state, each.coordinator.id) for each in found]
    show_table(output, ("TRANSACTIONAL ID", "PRODUCER", "STATE", "COORDINATOR"), rows)
    if not rows:
        is_filtered = bool(states or producer_ids or match) or open_for_ms is not None
        output.nothing("No transactional id matches." if is_filtered else "No transactional ids.")


# --- describe


@transactions.command(short_help="Show the current transaction of transactional ids.")
@transactional_id_arguments
@watch_option
@format_option
@cluster_command
def describe(cluster: Cluster, names: tuple[str, ...], output_format: str) -> None:
    """Show transactional ids: state, producer id and epoch, time-out, and the current transaction with its partitions.

    Only partitions that have no marker yet are shown.

    \b
    Exit code: 1  one of several ids could not be described
               4  the transactional id does not exist
    """
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_transactions(names)
        found = [each for each in answers.values() if not isinstance(each, PenstockError)]
        failed = _id_errors(admin, {name: each for name, each in answers.items() if isinstance(each, PenstockError)})
    show_found(found, failed, output_format, title="transactions", document=_document, show=_show)


def _id_errors(admin: Admin, errors: Mapping[str, PenstockError]) -> dict[str, CommandError]:
    """The errors of transactional ids by name; for a missing one, with the nearest that exists."""
    from difflib import get_close_matches

    from penstock.client.errors import UnknownTransactionalId

    is_unknown = any(isinstance(error, UnknownTransactionalId) for error in errors.values())
    there = [each.transactional_id for each in admin.list_transactions()] if is_unknown else []

    def one(name: str, error: PenstockError) -> CommandError:
        if not isinstance(error, UnknownTransactionalId):
            return command_error_for(error)
        near = get_close_matches(name, there, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`penstock transactions list` shows the transactional ids."
        return Rejected(f"Transactional id {name!r} does not exist.", hint, code=error.code.name)

    return {name: one(name, error) for name, error in errors.items()}


def _show(output: Output, each: TransactionDescription) -> None:
    facts = [
        each.state, f"producer {each.producer_id} epoch {each.producer_epoch}",
        f"time-out {duration_text(each.timeout_ms / 1000)}",
    ]  # fmt: skip
    if each.coordinator is not None:
        facts.append(f"coordinator {each.coordinator.id}")
    output.line(f"{output.style(printable(each.transactional_id), 'cyan', bold=True)}: {', '.join(facts)}")
    if each.start_time_ms is not None and each.partitions:
        age = duration_text(max(0, now_ms() - each.start_time_ms) / 1000)
        output.line(f"  began {time_text(each.start_time_ms)}, {age} ago")
    show_table(output, ("TOPIC", "PARTITION"), each.partitions, "  ")


def _document(each: TransactionDescription) -> dict[str, object]:
    return {
        "transactionalId": each.transactional_id,
        "state": each.state,
        "producerId": each.producer_id,
        "producerEpoch": each.producer_epoch,
        "timeoutMs": each.timeout_ms,
        "startTime": each.start_time_ms,
        "coordinator": each.coordinator.id if each.coordinator else None,
        "partitions": [{"topic": topic, "partition": index} for topic, index in each.partitions],
    }


# --- producers


@transactions.command(short_help="Show the producers of partitions and their open transactions.")
@topic_arguments(required=True, partitions=True)
@click.option(
    "--broker", "--broker-id", "broker_id", type=click.IntRange(min=0), metavar="ID", shell_complete=broker_ids,
    help="Ask the replica on this broker, not the leader.",
)  # fmt: skip
@click.option("--open", "only_open", is_flag=True, help="Show only producers with an open transaction.")
@watch_option
@format_option
@cluster_command
def producers(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    broker_id: int | None,
    only_open: bool,
    output_format: str,
) -> None:
    """Show the producers that partitions remember: idempotent and transactional ones, with their last sequence number
    and the start offset of an open transaction.

    \b
    Exit code: 1  some partitions could not be read
               4  the topic does not exist
    """
    from penstock.cli.topics.partitions import named_partitions
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_producers(named_partitions(admin, names), broker_id=broker_id)
    failed = {key: found for key, found in answers.items() if isinstance(found, PenstockError)}
    described = {
        key: [each for each in found if not only_open or each.transaction_start_offset is not None]
        for key, found in answers.items()
        if not isinstance(found, PenstockError)
    }
    if failed and not described:
        raise next(iter(failed.values()))
    _show_producers(Output(), output_format, described, failed)
    show_failures(failed.values(), output_format)
    if failed:
        click.get_current_context().exit(EXIT_PARTLY)


def _show_producers(
    output: Output,
    output_format: str,
    described: Mapping[TopicPartition, Sequence[ProducerState]],
    failed: Mapping[TopicPartition, PenstockError],
) -> None:
    if output_format == JSON:
        documents = [
            {"topic": key.topic, "partition": key.partition, "producers": [_producer(each) for each in found]}
            for key, found in described.items()
        ]
        failures = [{"topic": key.topic, "partition": key.partition, "error": error_document(error)}
                    for key, error in failed.items()]  # fmt: skip
        output.json({"partitions": documents, "failed": failures}, indent=2)
        return
    rows = [
        (
            key.topic, key.partition, each.producer_id, each.producer_epoch, each.last_sequence,
            time_text(each.last_timestamp), each.coordinator_epoch, each.transaction_start_offset,
        )
        for key, found in described.items()
        for each in found
    ]  # fmt: skip
    titles = (
        "TOPIC",
        "PARTITION",
        "PRODUCER",
        "EPOCH",
        "LAST SEQUENCE",
        "LAST RECORD",
        "COORDINATOR EPOCH",
        "OPEN FROM",
    )
    show_table(output, titles, rows)
    if not rows:
        output.nothing("No producers.")
    output.flush()


def _producer(each: ProducerState) -> dict[str, object]:
    return {
        "producerId": each.producer_id,
        "producerEpoch": each.producer_epoch,
        "lastSequence": each.last_sequence if each.last_sequence >= 0 else None,
        "lastTimestamp": each.last_timestamp if each.last_timestamp >= 0 else None,
        "coordinatorEpoch": each.coordinator_epoch,
        "transactionStartOffset": each.transaction_start_offset,
    }


# --- fence


@transactions.command(short_help="Fence the producers of transactional ids and abort their transactions.")
@transactional_id_arguments
@confirmation_options
@format_option
@cluster_command
def fence(cluster: Cluster, names: tuple[str, ...], dry_run: bool, execute: bool, output_format: str) -> None:
    """Fence the producers of transactional ids. An open transaction is aborted in all its partitions.

    A running producer with the id fails at its next request and must be restarted. A transaction whose commit has begun
    is committed first. Asks for confirmation at a terminal.

    \b
    Exit code: 4  the transactional id does not exist, or could not be fenced
    """
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        described = admin.describe_transactions(names)
        # Fencing an id that does not exist would create it.
        known = [each for each in described.values() if not isinstance(each, PenstockError)]
        errors = {name: each for name, each in described.items() if isinstance(each, PenstockError)}
        outcomes: dict[str, FencedProducer | PenstockError] = {}
        if known and not dry_run:
            confirm(f"Fence {_and_abort(known)}?", yes=execute)
            outcomes = admin.fence_producers([each.transactional_id for each in known])
            errors |= {name: each for name, each in outcomes.items() if isinstance(each, PenstockError)}
        failed = _id_errors(admin, errors)
    fenced = {each.transactional_id: outcomes.get(each.transactional_id) for each in known}
    _show_fenced(Output(), output_format, {k: v for k, v in fenced.items() if k not in failed}, failed, known, dry_run)
    first, *others = failed.values() or [None]
    show_failures([error for error in others if error is not None], output_format)
    if first is not None:
        raise first


def _and_abort(known: Iterable[TransactionDescription]) -> str:
    """ "a, b (open in views-0, views-1)"."""
    return ", ".join(f"{each.transactional_id}{_open_in(each)}" for each in known)


def _open_in(each: TransactionDescription) -> str:
    if not each.partitions:
        return ""
    more = len(each.partitions) - _SHOWN_PARTITIONS
    shown = ", ".join(map(str, each.partitions[:_SHOWN_PARTITIONS]))
    others = f" and {counted(more, 'other')}" if more > 0 else ""
    return f" ({each.state} in {shown}{others})"


def _show_fenced(
    output: Output,
    output_format: str,
    fenced: Mapping[str, Any],
    failed: Mapping[str, CommandError],
    known: Sequence[TransactionDescription],
    dry_run: bool,
) -> None:
    by_id = {each.transactional_id: each for each in known}
    if output_format == JSON:
        documents = [
            {
                **_document(by_id[name]),
                "producerId": outcome.producer_id if outcome is not None else by_id[name].producer_id,
                "producerEpoch": outcome.producer_epoch if outcome is not None else by_id[name].producer_epoch,
            }
            for name, outcome in fenced.items()
        ]
        errors = {name: error.document() for name, error in failed.items()}
        output.json({"dryRun": dry_run, "fenced": documents, "failed": errors}, indent=2)
    else:
        for name, outcome in fenced.items():
            shown = printable(f"{name}{_open_in(by_id[name])}")
            if outcome is None:
                output.line(f"{shown} would be fenced (dry run).")
            else:
                output.line(f"Fenced {shown}. Producer {outcome.producer_id} is now at epoch {outcome.producer_epoch}.")
    output.flush()
