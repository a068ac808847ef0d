"""Exactly once: the offset is stored in the same transaction as the result, in the database of the results.

    python examples/exactly_once_sql.py localhost:9092 views results.db
    sqlite3 results.db 'SELECT count(*), count(DISTINCT value) FROM results'

A crash leaves both or neither, so reading continues exactly where the results end. A slow member that was replaced
can no longer store (StaleOwner), and a record that a rebalance delivered twice is not stored again (AlreadyStored): the
transaction is rolled back. Any DB-API 2 driver works.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing

from penstock import Consumer, SqlOffsetStore, Text
from penstock.client.offset_stores import AlreadyStored, StaleOwner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port of a broker")
    parser.add_argument("topic")
    parser.add_argument("results", help="SQLite database; a row is inserted into its table `results` for each record")
    parser.add_argument("--group", default="exactly-once")
    parser.add_argument("--idle-ms", type=int, help="stop if no record arrives for this long")
    options = parser.parse_args()

    store = SqlOffsetStore(lambda: sqlite3.connect(options.results))
    with closing(sqlite3.connect(options.results)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # readers of the results do not block this program
        database.execute("CREATE TABLE IF NOT EXISTS results (value TEXT NOT NULL)")
        store.create_table(database)
        database.commit()
        with Consumer(
            options.topic,
            bootstrap_servers=options.address,
            group_id=options.group,
            # A static member: after a restart it gets its partitions back at once instead of waiting for its session.
            group_instance_id=f"{options.group}-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            offset_store=store,
            consumer_timeout_ms=options.idle_ms,
            value=Text(),
        ) as consumer:
            for record in consumer:
                try:
                    with database:  # one transaction: commits at its end, rolls back on an error
                        database.execute("INSERT INTO results VALUES (?)", (record.value,))
                        place = (record.topic, record.partition)
                        store.save_in(database, options.group, {place: record.offset + 1})
                except (AlreadyStored, StaleOwner):
                    continue  # stored before a rebalance, or left to the new owner of the partition


if __name__ == "__main__":
    main()
