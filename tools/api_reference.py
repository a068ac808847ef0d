"""Writes docs/api.md, the reference of the Python interface, from signatures and docstrings.

    python tools/api_reference.py            write the page
    python tools/api_reference.py --check    exit with 1 if the page is not what would be written

The page holds every public name of `penstock` with its public methods. Classes of the compiled kernel are described
from its Python twin, so that the page is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.client.admin.core import AdminSettings
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.producer.settings import ProducerSettings
from penstock.client.settings import ClientSettings
from penstock.records import python_kernel

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "api.md"
_WIDTH: Final = 100
_HEAD: Final = """# API reference

Written from the docstrings by `python tools/api_reference.py`; do not edit. [The Python clients](clients.md) shows how
they are used, [Coming from another client](coming-from.md) what they are called elsewhere. Every name here is imported
from `penstock`.
"""
_SECTIONS: Final = {
    "Producing": (
        "Producer", "AsyncProducer", "Delivery", "RecordMetadata", "ProducerRecord", "ProducerInterceptor",
        "RoundRobinPartitioner", "RandomPartitioner", "QueuedProducer", "EventHandler", "Event",
        "producer_from_properties",
    ),
    "Consuming": (
        "Consumer", "AsyncConsumer", "ConsumerRecord", "RecordBatch", "TopicPartition", "RebalanceListener",
        "MessageStreams", "SimpleConsumer", "consumer_from_properties",
        "MessageStreams", "SimpleConsumer", "ZooKeeperConsumer",
    ),
    "Transactions": ("PreparedTransaction", "GroupMetadata"),
    "Offsets": ("OffsetAndMetadata", "SqlOffsetStore", "ZooKeeperOffsetStore"),
    "Serializers": ("Bytes", "Text", "Json", "Avro", "Protobuf", "RegistryClient", "RegistrySchema"),
    "Administration": ("Admin", "AsyncAdmin", "TopicSpec", "ConfigResource"),
    "A broker in a program": ("Broker",),
    "Errors": ("PenstockError",),
}  # fmt: skip
_TWINS: Final[dict[str, type]] = {"ConsumerRecord": python_kernel.ConsumerRecord}
_OPTIONS: Final[dict[str, tuple[str, type]]] = {
    "Producer": ("`Producer` and `AsyncProducer`", ProducerSettings),
    "Consumer": ("`Consumer` and `AsyncConsumer`", ConsumerSettings),
    "SimpleConsumer": ("`SimpleConsumer`", ClientSettings),
    "Admin": ("`Admin` and `AsyncAdmin`", AdminSettings),
}
_NOT_MADE_BY_USERS: Final = {"Delivery", "RecordBatch"}
_NOT_CLASSES: Final = {"__version__", "errors"}


def page() -> str:
    """The whole page."""
    listed = {name for names in _SECTIONS.values() for name in names}
    missing = set(penstock.__all__) - listed - _NOT_CLASSES
    if missing or listed - set(penstock.__all__):
        raise SystemExit(f"sections and penstock.__all__ differ: {sorted(missing | listed - set(penstock.__all__))}")
    parts = [_HEAD]
    for title, names in _SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _class_parts(name, _TWINS.get(name) or getattr(penstock, name))
            if name in _OPTIONS:
                parts += _options(*_OPTIONS[name])
        if title == "Errors":
            parts += _errors()
    return "\n".join(parts).rstrip("\n") + "\n"


def _class_parts(name: str, kind: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not isinstance(kind, type):
        yield f"```python\n{_signature(name, kind, skips_self=False)}\n```\n"
        yield _doc(kind)
        return
    if name not in _NOT_MADE_BY_USERS:
        yield f"```python\n{_signature(name, kind, skips_self=False)}\n```\n"
    yield _doc(kind)
    constructor = kind.__dict__.get("__init__")
    if constructor is not None and constructor.__doc__ and constructor.__doc__ != object.__init__.__doc__:
        yield _doc(constructor)
    for member, value in _members(kind):
        if isinstance(value, property):
            yield f"- **`{member}`**\n\n  {_inline(value)}\n"
        else:
            function = getattr(value, "__func__", value)
            mark = "await " if inspect.iscoroutinefunction(function) else ""
            yield f"- **`{mark}{_signature(member, function)}`**\n\n  {_inline(function)}\n"


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that our own classes define, in the order in which they are written."""
    seen: set[str] = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("penstock"):
            continue
        for name, value in vars(owner).items():
            is_function = inspect.isfunction(inspect.unwrap(value))  # `send` is compiled
            is_ours = is_function or isinstance(value, (property, classmethod, staticmethod))
            if is_ours and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _signature(name: str, function: Callable[..., Any], *, skips_self: bool = True) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    if skips_self and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(_parameter(parameter))
    returned = inspect.signature(function).return_annotation if skips_self else inspect.Signature.empty
    end = "" if returned in (inspect.Signature.empty, None, "None") else f" -> {_named(returned)}"
    line = f"{name}({', '.join(words)}){end}"
    if skips_self or len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = 1 if parameter.kind is parameter.VAR_POSITIONAL else 2 if parameter.kind is parameter.VAR_KEYWORD else 0
    word = "*" * stars + parameter.name
    if parameter.annotation is not parameter.empty:
        word += f": {_named(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        word += f" = {_shown(parameter.default)}"
    return word


def _named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))


def _shown(value: object) -> str:
    text = repr(value)
    return "..." if "object at 0x" in text or text.startswith("<") else text


def _doc(documented: Any) -> str:
    text = inspect.getdoc(documented) or ""
    if not text or (isinstance(documented, type) and text.startswith(f"{documented.__name__}(")):
        raise SystemExit(f"{documented} has no docstring")
    return text.strip() + "\n"


def _inline(documented: Any) -> str:
    text = _doc(documented.fget if isinstance(documented, property) else documented)
    return "\n  ".join(line if line.strip() else "" for line in text.strip().splitlines()).replace("\n  \n", "\n\n")


def _options(clients: str, settings: Any) -> Iterator[str]:
    """The options of a client with their types and defaults."""
    yield f"Options of {clients}:\n"
    options = [field for field in dataclasses.fields(settings) if field.init]
    types = [str(each.type).replace(" | ", " or ") for each in options]  # a bar would end the cell
    rows = [
        f"| `{each.name}` | `{kind}` | `{_shown(each.default)}` |" for each, kind in zip(options, types, strict=True)
    ]
    yield "\n".join(["| option | type | default |", "|---|---|---|", *rows]) + "\n"


def _errors() -> Iterator[str]:
    """The tree of errors, each with the first line of its docstring."""
    from penstock import errors

    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)}
    kinds = {kind for kind in kinds if kind.__module__.startswith("penstock") and kind is not penstock.PenstockError}
    rows = [f"- **`errors.{kind.__name__}`** {_doc(kind).splitlines()[0]}" for kind in kinds]
    yield "\n".join(sorted(rows)) + "\n"


def main(arguments: list[str]) -> int:
    written = page()
    if "--check" in arguments:
        return 0 if PAGE.exists() and PAGE.read_text() == written else 1
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
