"""What a topic may be called.

1 to 249 of the characters a-z A-Z 0-9 . _ - and neither "." nor "..", because the name is part of a folder's name.
Metrics write '.' and '_' both as '_', so of two topics that differ in nothing else only one can be created
(`ClusterImage.colliding_topic`).
"""

from __future__ import annotations

from penstock.log.log_dirs.identity import MAX_TOPIC_LENGTH, is_topic


def check_topic_name(name: str) -> str | None:
    """None if a topic may have this name, else the reason why not."""
    if is_topic(name):
        return None
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"{name!r} cannot be a topic name, because it names a folder"
    if len(name) > MAX_TOPIC_LENGTH:
        return f"topic name {name[:40]!a}... has {len(name)} characters; at most {MAX_TOPIC_LENGTH} are allowed"
    wrong = "".join(dict.fromkeys(c for c in name if not is_topic(c) and c != "."))
    return f"topic name {name!a} contains {wrong!a}; allowed are a-z, A-Z, 0-9, '.', '_' and '-'"
