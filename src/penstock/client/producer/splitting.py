"""A batch that the broker found too large, as two halves.

Rule: the halves hold the same records in the same order and, if the batch was numbered, its numbers between them: the
broker has stored none of it, so what follows still follows. A half may be halved again; one record cannot.
"""

from __future__ import annotations

from penstock.client.producer.batches import ProducerBatch
from penstock.client.producer.sequences import advance
from penstock.records.batch import decode_batch
from penstock.records.kernel import BatchBuilder


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """The two halves of a closed batch of at least two records, closed; the batch is answered by them from now on."""
    builder = batch.builder
    if builder is None or batch.count < 2:
        raise ValueError(f"a batch of {batch.count} records cannot be split")
    plain = builder.build(
        codec=0, level=None, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False
    )
    records = decode_batch(plain, verify=False)
    middle = len(records) // 2
    parts: list[tuple[int, ProducerBatch, int]] = []
    for number, (first, some) in enumerate(((0, records[:middle]), (middle, records[middle:]))):
        half = BatchBuilder(max(len(plain), 61))
        for record in some:
            half.append(record.timestamp, record.key, record.value, record.headers)
        part = ProducerBatch(batch.queue, half, 0, batch.created_ms, batch.deadline_ms)
        part.close()
        part.order = (*batch.order, number)
        part.attempts = batch.attempts
        # If it is stored after all, then as the whole, in which the broker does not recognise a half.
        part.is_recognisable = batch.is_recognisable and not batch.is_uncertain
        part.is_uncertain = batch.is_uncertain
        if batch.is_numbered:
            sequence = advance(batch.numbers.base_sequence, first)
            part.numbers = batch.numbers._replace(base_sequence=sequence)
        parts.append((first, part, 0))
    batch.divide(parts)
    return [part for _, part, _ in parts]
