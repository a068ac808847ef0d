"""The layout of a message in one version: its fields, their order and their types.

`layout(message, version)` is the only place that interprets annotations. It returns plain values, from which the codec
is compiled and tests generate messages.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec

from penstock.wire.errors import SchemaError, UnknownVersion
from penstock.wire.protocol import ALL_VERSIONS, NO_VERSIONS, VersionRange
from penstock.wire.types import (
    BOOL,
    BYTES,
    FLOAT64,
    STRING,
    Ignorable,
    Message,
    Nullable,
    Primitive,
    Tagged,
    Versions,
)


class ArrayOf(NamedTuple):
    """An array; its elements are never null."""

    element: Primitive | Struct


class Struct(NamedTuple):
    """The layout of a struct in one version."""

    message: type[msgspec.Struct]
    fields: tuple[Field, ...]
    """Untagged fields, in wire order."""
    tagged: tuple[Field, ...]
    """Fields of the tagged section, by ascending tag."""
    absent: tuple[Field, ...]
    """Fields of other versions: the decoder leaves their default, the encoder checks it."""
    flexible: bool


Kind: TypeAlias = Primitive | ArrayOf | Struct


class Field(NamedTuple):
    """One field in one version."""

    name: str
    kind: Kind
    nullable: bool
    optional: bool
    """Whether it is nullable in any version."""
    tag: int
    default: Any
    """The default value. If it is mutable, a sample that must not be used in messages."""
    fresh: bool
    """Whether each message needs its own default, created by `factory`."""
    factory: Any
    ignorable: bool


_PLAIN: dict[Any, Primitive] = {bool: BOOL, float: FLOAT64, str: STRING, bytes: BYTES}


class _Declared(NamedTuple):
    """A field's annotation taken apart, before a version is chosen."""

    base: Any
    primitive: Primitive | None
    versions: VersionRange
    nullable: VersionRange
    tagged: Tagged
    ignorable: bool


def layout(message: type[Message], version: int) -> Struct:
    """The layout of a top-level message. Raises UnknownVersion outside its schema's range."""
    schema = message.SCHEMA
    if version not in schema.versions:
        raise UnknownVersion(message.__name__, version, schema.versions.lowest, schema.versions.highest)
    return struct_layout(message, version, version in schema.flexible)


def struct_layout(message: type[msgspec.Struct], version: int, flexible: bool) -> Struct:
    """The layout of a struct at any depth. The message around it decides whether it is flexible."""
    fields: list[Field] = []
    tagged: list[Field] = []
    absent: list[Field] = []
    for info in msgspec.structs.fields(message):
        if info.name == "unknown_tags":
            continue
        declared = _declared(info.type, f"{message.__name__}.{info.name}")
        field = _field(message, info, declared, version, flexible)
        if version not in declared.versions:
            absent.append(field)
        elif version in declared.tagged.range:
            tagged.append(field)
        else:
            fields.append(field)
    if tagged and not flexible:
        raise SchemaError(f"{message.__name__} has tagged fields in version {version}, which is not flexible")
    tagged.sort(key=lambda field: field.tag)
    return Struct(message, tuple(fields), tuple(tagged), tuple(absent), flexible)


def minimum_size(kind: Kind, nullable: bool, flexible: bool) -> int:
    """The minimum size of a value, which bounds an array's count by the bytes that are left."""
    if isinstance(kind, Struct):
        own = sum(minimum_size(field.kind, field.nullable, flexible) for field in kind.fields)
        return 1 if nullable else own + flexible
    if isinstance(kind, ArrayOf):
        return 1 if flexible else 4
    if kind.code:
        return kind.size
    if kind.name.startswith("uvar"):
        return 1
    return 1 if flexible else 2 if kind is STRING else 4


def _field(
    message: type[msgspec.Struct],
    info: msgspec.structs.FieldInfo,
    declared: _Declared,
    version: int,
    flexible: bool,
) -> Field:
    where = f"{message.__name__}.{info.name}"
    fresh = info.default is msgspec.NODEFAULT
    if fresh and info.default_factory is msgspec.NODEFAULT:
        raise SchemaError(f"{where} has no default")
    return Field(
        name=info.name,
        kind=_kind(declared, version, flexible, where),
        nullable=version in declared.nullable,
        optional=declared.nullable != NO_VERSIONS,
        tag=declared.tagged.tag,
        default=info.default_factory() if fresh else info.default,
        fresh=fresh,
        factory=info.default_factory,
        ignorable=declared.ignorable,
    )


def _declared(annotation: Any, where: str) -> _Declared:
    marks: tuple[Any, ...] = ()
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        marks = (*more, *marks)
    base, null = _without_none(annotation)
    if get_origin(base) is Annotated:
        base, *more = get_args(base)
        marks = (*more, *marks)
    by_type = {type(mark): mark for mark in marks}
    if not by_type.keys() <= {Primitive, Versions, Nullable, Tagged, Ignorable}:
        raise SchemaError(f"{where} has an annotation that is not part of a schema")
    tag: Tagged = by_type.get(Tagged, Tagged(-1, NO_VERSIONS))
    if Versions in by_type:
        exists: VersionRange = by_type[Versions].range
    else:
        exists = tag.range if Tagged in by_type else ALL_VERSIONS
    if Nullable in by_type:
        nulls: VersionRange = by_type[Nullable].range
    else:
        nulls = ALL_VERSIONS if null else NO_VERSIONS
    return _Declared(
        base=base,
        primitive=by_type.get(Primitive),
        versions=exists,
        nullable=nulls,
        tagged=tag,
        ignorable=Ignorable in by_type,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation, False
    options = [option for option in get_args(annotation) if option is not NoneType]
    null = len(options) < len(get_args(annotation))
    return (options[0] if len(options) == 1 else annotation), null


def _kind(declared: _Declared, version: int, flexible: bool, where: str) -> Kind:
    if get_origin(declared.base) is list:
        (item,) = get_args(declared.base)
        element = _kind(_declared(item, where), version, flexible, where)
        if isinstance(element, ArrayOf):
            raise SchemaError(f"{where} is an array of arrays, which the protocol does not have")
        return ArrayOf(element)
    if isinstance(declared.base, type) and issubclass(declared.base, msgspec.Struct):
        return struct_layout(declared.base, version, flexible)
    kind = declared.primitive or _PLAIN.get(declared.base)
    if kind is None:
        raise SchemaError(f"{where} has a type that the protocol does not have: {declared.base!r}")
    return kind
