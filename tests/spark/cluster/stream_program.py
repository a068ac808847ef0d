"""A driver that copies a topic to another, exactly once, until it is killed. A program: see `kills`.

python stream_program.py MASTER ADDRESS SOURCE TARGET FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(master: str, address: str, source: str, target: str, folder: str) -> None:
    from tests.spark.cluster.drivers import classic

    spark = classic(master, f"{folder}/driver")
    tell(f"application {spark.sparkContext.applicationId}")
    # Many small batches of several tasks: a kill meets every step of many commits.
    options = {
        "kafka.bootstrap.servers": address, "subscribe": source, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400", "kafkaConsumer.pollTimeoutMs": "60000",
    }  # fmt: skip
    frame = spark.readStream.format("penstock").options(**options).load()
    written = {
        "kafka.bootstrap.servers": address, "topic": target, "penstock.delivery": "exactly-once",
        "checkpointLocation": str(Path(folder, "checkpoint")),
    }  # fmt: skip
    query = frame.select("value").writeStream.format("penstock").options(**written).start()
    tell("started")
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
