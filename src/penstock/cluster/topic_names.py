"""What a topic may be called.

1 to 249 of the characters a-z A-Z 0-9 . _ - and neither "." nor "..", because the name is part of a folder's name.
Metrics write '.' and '_' both as '_', so of two topics that differ in nothing else only one can be created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.log.log_dirs.identity import MAX_TOPIC_LENGTH, is_topic

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})


def check_topic_name(name: str) -> str | None:
    """None if a topic may have this name, else the reason why not."""
    if is_topic(name):
        return None
    if not name:
        return "a topic needs a name; the empty text is none"
    if name in (".", ".."):
        return f"{name!r} is no topic's name: it stands for a folder"
    if len(name) > MAX_TOPIC_LENGTH:
        return (
            f"the name has {len(name)} characters, and at most {MAX_TOPIC_LENGTH} are allowed: it begins {name[:40]!a}"
        )
    wrong = "".join(dict.fromkeys(c for c in name if not is_topic(c) and c != "."))
    return f"{name!a} contains {wrong!a}; a topic's name is made of the letters a-z and A-Z, digits, '.', '_' and '-'"


def has_collision_characters(name: str) -> bool:
    """Whether metrics may confuse this topic with another: worth a word when it is created."""
    return "." in name or "_" in name


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """The first other topic whose name differs only by '.' for '_': "page.views" for "page_views"."""
    unified = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == unified), None)


def is_internal(name: str) -> bool:
    """Whether brokers keep their own records in this topic."""
    return name in INTERNAL_TOPICS
