"""A search index that keeps its offsets with its segments.

    python examples/search_index.py [localhost:9092] --topic documents --index index --query "kafka log"

The index is a folder of segments, each a file with the postings of some documents and the offset at which reading
continues after them. A segment becomes part of the index by one rename, so index and offsets are never apart: what was
in memory when the process died is read from the topic again. To rebuild the index, delete the folder. To go back,
delete the newest segments. No offset is committed anywhere else.

Without an address the program runs a broker of its own and writes some documents first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from penstock import Admin, Broker, Consumer, Producer, Text, TopicPartition

DOCUMENTS = {
    "1": "Kafka keeps a log for each partition",
    "2": "A search index finds documents by words",
    "3": "The log is the index of a partition's history",
}


class Index:
    """Words to the documents that have them, in memory and in segments on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._segments = 0
        self._words: dict[str, set[str]] = defaultdict(set)
        self._documents: dict[str, str] = {}
        self._unflushed: dict[str, str] = {}
        self.offsets: dict[int, int] = {}
        """By partition, where reading continues after all that is on disk or in memory."""
        for path in sorted(folder.glob("*.segment")):
            segment = json.loads(path.read_text())
            for name, text in segment["documents"].items():
                self._put(name, text)
            self.offsets |= {int(partition): offset for partition, offset in segment["offsets"].items()}
            self._segments = int(path.stem) + 1

    def add(self, name: str, text: str, partition: int, next_offset: int) -> None:
        self._put(name, text)
        self._unflushed[name] = text
        self.offsets[partition] = next_offset

    def _put(self, name: str, text: str) -> None:
        for word in _words(self._documents.get(name, "")):
            self._words[word].discard(name)  # a newer version of the document
        self._documents[name] = text
        for word in _words(text):
            self._words[word].add(name)

    def flush(self) -> None:
        """Write what is in memory as the next segment, with the offsets that belong to it."""
        if not self._unflushed:
            return
        path = self._folder / f"{self._segments:08d}.segment"
        temporary = path.with_suffix(".new")
        with open(temporary, "w") as file:
            json.dump({"documents": self._unflushed, "offsets": self.offsets}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._segments += 1
        self._unflushed = {}

    def search(self, query: str) -> list[str]:
        """The documents that have all words of the query."""
        found = [self._words.get(word, set()) for word in _words(query)]
        return sorted(set.intersection(*found)) if found else []

    def __len__(self) -> int:
        return len(self._documents)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def update(index: Index, address: str, topic: str, flush_every: int) -> None:
    """Index the topic up to its present end."""
    with Admin(address) as admin:
        partitions = [TopicPartition(topic, each.index) for each in admin.describe_topic(topic).partitions]
    with Consumer(bootstrap_servers=address, key=Text(), value=Text(), auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        for where in partitions:
            if where.partition in index.offsets:
                consumer.seek(where, index.offsets[where.partition])
            else:
                consumer.seek_to_beginning(where)
        ends = consumer.end_offsets(partitions)
        count = 0
        while any(consumer.position(where) < end for where, end in ends.items()):
            for records in consumer.poll(timeout=0.5).values():
                for record in records:
                    index.add(record.key or "", record.value or "", record.partition, record.offset + 1)
                    count += 1
                    if count % flush_every == 0:
                        index.flush()
                        print(f"{count} documents, {len(index)} in the index", flush=True)
        index.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--topic", default="documents")
    parser.add_argument("--index", type=Path, default=Path("index"))
    parser.add_argument("--flush-every", type=int, default=1_000, help="documents per segment")
    parser.add_argument("--query", default="log")
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.address or some_documents(stack.enter_context(Broker()), options.topic)
        index = Index(options.index)
        print(f"{len(index)} documents in the index, continuing at {index.offsets or 'the beginning'}", flush=True)
        update(index, address, options.topic, options.flush_every)
    print(f"{options.query!r} is in: {', '.join(index.search(options.query)) or 'no document'}")


def some_documents(broker: Broker, topic: str) -> str:
    broker.create_topic(topic, 2)
    with Producer(broker.address) as producer:
        for name, text in DOCUMENTS.items():
            producer.send(topic, text, key=name)
    return broker.address


if __name__ == "__main__":
    main()
