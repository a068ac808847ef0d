"""Schema resolution of Avro: whether a reader's schema can read what a writer's wrote. Pure.

The rules are those of the specification's chapter "Schema Resolution", with aliases of the reader applied. Logical
types do not take part, except decimals: a number read with another scale would be another number. A reader may have
more precision than the writer, which the specification's wording leaves out and no reader objects to.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.registry.formats.avro import AvroField, AvroSchema, AvroType
from penstock.registry.formats.comparison import COMPATIBLE, Comparison, Pair, Verdict, below
from penstock.registry.formats.schema import Incompatibility, shortened

# What a reader may read besides its own type.
PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
_NAMES_SHOWN = 10

Steps = Generator[Pair[AvroType], Verdict, Verdict]


def avro_incompatibilities(reader: AvroSchema, writer: AvroSchema) -> list[Incompatibility]:
    """The differences that keep the reader from reading, with pointers into its schema."""
    comparison = Comparison(_resolve)
    return list(comparison.verdict(_pair(reader.root, writer.root)))


def _pair(reader: AvroType, writer: AvroType) -> Pair[AvroType]:
    return Pair(reader, writer, (id(reader), id(writer)))


def _resolve(reader: AvroType, writer: AvroType) -> Steps:
    if reader is writer:
        return COMPATIBLE
    if writer.kind == "union":
        return (yield from _every_branch(reader, writer))
    if reader.kind == "union":
        return (yield from _some_branch(reader, writer))
    if reader.kind in ("record", "error") and writer.kind in ("record", "error"):
        return (yield from _records(reader, writer))
    if reader.kind != writer.kind:
        promoted = writer.kind in PROMOTIONS.get(reader.kind, ())
        return _decimals(reader, writer) if promoted else _mismatch(reader, writer)
    if reader.kind in ("array", "map") and reader.element and writer.element:
        verdict = yield _pair(reader.element, writer.element)
        return below("/items" if reader.kind == "array" else "/values", verdict)
    if reader.kind == "enum":
        return _enums(reader, writer)
    if reader.kind == "fixed":
        return _fixed(reader, writer)
    return _decimals(reader, writer)


def _mismatch(reader: AvroType, writer: AvroType) -> Verdict:
    message = f"The reader's type is {reader.label}, and the writer's is {writer.label}, which it cannot read."
    return (Incompatibility("TYPE_MISMATCH", "", message),)


def _every_branch(reader: AvroType, writer: AvroType) -> Steps:
    """Each branch of a writer's union has to be readable, since any of them may have been written."""
    found: list[Incompatibility] = []
    for branch in writer.branches:
        verdict = yield _pair(reader, branch)
        if not verdict:
            continue
        if reader.kind == "union":
            found.extend(verdict)
        else:
            message = f"The writer's union has a branch {branch.label}, which the reader's {reader.label} cannot read."
            found.extend((Incompatibility("TYPE_MISMATCH", "", message), *verdict))
    return tuple(dict.fromkeys(found))


def _some_branch(reader: AvroType, writer: AvroType) -> Steps:
    nearest: Verdict = COMPATIBLE
    for index, branch in enumerate(reader.branches):
        verdict = yield _pair(branch, writer)
        if not verdict:
            return COMPATIBLE
        if branch.kind == writer.kind and branch.short_name == writer.short_name:
            nearest = below(f"/{index}", verdict)
    branches = ", ".join(each.label for each in reader.branches[:_NAMES_SHOWN])
    message = f"No branch of the reader's union ({shortened(branches)}) can read the writer's {writer.label}."
    return (Incompatibility("MISSING_UNION_BRANCH", "", message), *nearest)


def _name_mismatch(reader: AvroType, writer: AvroType) -> Verdict:
    """Names match without their namespaces; an alias of the reader matches the writer's whole name."""
    if reader.short_name == writer.short_name or writer.name in reader.aliases:
        return COMPATIBLE
    message = (
        f"The reader's {reader.kind} is named {reader.name}, and the writer's {writer.name}, "
        "which is not an alias of the reader's."
    )
    return (Incompatibility("NAME_MISMATCH", "/name", message),)


def _enums(reader: AvroType, writer: AvroType) -> Verdict:
    found = _name_mismatch(reader, writer)
    missing = sorted(writer.symbol_set - reader.symbol_set) if reader.symbol_default is None else []
    if missing:
        names = ", ".join(missing[:_NAMES_SHOWN]) + (", ..." if missing[_NAMES_SHOWN:] else "")
        message = (
            f"The writer's enum has symbols that the reader's enum {reader.name} neither has nor replaces: {names}."
        )
        found += (Incompatibility("MISSING_ENUM_SYMBOLS", "/symbols", message),)
    return found


def _fixed(reader: AvroType, writer: AvroType) -> Verdict:
    found = _name_mismatch(reader, writer)
    if reader.size != writer.size:
        message = f"The reader's fixed {reader.name} has {reader.size} bytes, and the writer's has {writer.size}."
        found += (Incompatibility("FIXED_SIZE_MISMATCH", "/size", message),)
    return found + _decimals(reader, writer)


def _decimals(reader: AvroType, writer: AvroType) -> Verdict:
    read, written = reader.decimal, writer.decimal
    if read is None or written is None or (read[1] == written[1] and read[0] >= written[0]):
        return COMPATIBLE
    message = (
        f"The reader's decimal has precision {read[0]} and scale {read[1]}, "
        f"and the writer's has precision {written[0]} and scale {written[1]}."
    )
    return (Incompatibility("DECIMAL_MISMATCH", "/scale" if read[1] != written[1] else "/precision", message),)


def _records(reader: AvroType, writer: AvroType) -> Steps:
    mismatch = _name_mismatch(reader, writer)
    if mismatch:
        return mismatch
    found: list[Incompatibility] = []
    written = {each.name: each for each in writer.fields}
    for index, each in enumerate(reader.fields):
        source = _written_field(each, written)
        if source is not None:
            verdict = yield _pair(each.type, source.type)
            found.extend(below(f"/fields/{index}/type", verdict))
        elif not each.has_default:
            message = (
                f"The reader's record {reader.name} has a field '{each.name}' without a default, "
                f"and the writer's record {writer.name} does not have that field."
            )
            found.append(Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", f"/fields/{index}", message))
    return tuple(found)


def _written_field(field: AvroField, written: dict[str, AvroField]) -> AvroField | None:
    if field.name in written:
        return written[field.name]
    return next((written[alias] for alias in field.aliases if alias in written), None)
