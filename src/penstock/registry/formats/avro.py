"""Avro schemas: parsing, names, defaults, and their canonical and normalized text. Pure.

A schema becomes a graph of types in which a name leads to its type, also where a type contains itself. The texts are
written from that graph, so two spellings of one schema have one canonical text: names are written as short as their
surroundings allow, and attributes come in a fixed order. The normalized text also sorts what has no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from penstock.registry.formats.schema import (
    InvalidSchema,
    ReferencedSchema,
    SchemaType,
    check_sizes,
    json_text,
    parse_json,
    pointer,
    shortened,
)

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
FIXED_SIZE_MAX = INT_MAX
DEFAULT_PARTS_MAX = 200_000
DEFAULT_NESTING_MAX = 120  # types in one another; a record in a union is two
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = {
    "record": ("type", "name", "namespace", "doc", "aliases", "fields"),
    "error": ("type", "name", "namespace", "doc", "aliases", "fields"),
    "enum": ("type", "name", "namespace", "doc", "aliases", "symbols", "default"),
    "fixed": ("type", "name", "namespace", "doc", "aliases", "size"),
    "array": ("type", "items"),
    "map": ("type", "values"),
}
_FIELD_RESERVED = ("name", "type", "doc", "default", "order", "aliases")
_NO_DEFAULT = object()

Path = tuple[object, ...]


@dataclass(eq=False, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None
    default: object
    order: str
    aliases: tuple[str, ...]
    properties: dict[str, Any]

    @property
    def has_default(self) -> bool:
        return self.default is not _NO_DEFAULT


@dataclass(eq=False, slots=True)
class AvroType:
    """A type. Which attributes it has is decided by its kind; types are the same if they are the same object."""

    kind: str
    properties: dict[str, Any] = field(default_factory=dict)
    name: str = ""  # with the namespace
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    symbol_set: frozenset[str] = frozenset()
    symbol_default: str | None = None
    size: int = 0
    element: AvroType | None = None  # of an array or a map
    branches: list[AvroType] = field(default_factory=list)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The type as a message names it."""
        return f"{self.kind} {self.name}" if self.name else self.kind

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale, if this is a well-formed decimal."""
        if self.kind not in ("bytes", "fixed") or self.properties.get("logicalType") != "decimal":
            return None
        precision, scale = self.properties.get("precision"), self.properties.get("scale", 0)
        if not _is_integer(precision) or not _is_integer(scale):
            return None
        if precision < 1 or not 0 <= scale <= precision or (self.kind == "fixed" and precision > _digits(self.size)):
            return None
        return precision, scale


class AvroSchema:
    """A parsed Avro schema."""

    schema_type: SchemaType = "AVRO"

    def __init__(self, text: str, references: Sequence[ReferencedSchema] = ()) -> None:
        check_sizes(text, references)
        names: dict[str, AvroType] = {}
        for each in dict.fromkeys(references):
            try:
                _Parser(names).parse_text(each.schema)
            except InvalidSchema as error:
                raise InvalidSchema(f"Reference {shortened(each.name)!r}: {error}") from None
        self._referenced = frozenset(names)
        parser = _Parser(names)
        self.root = parser.parse_text(text)
        self._defaults = parser.defaults
        self.canonical = json_text(_Writer(self._referenced).value(self.root, ""))
        self.normalized = json_text(_NormalWriter(self._referenced).value(self.root, ""))

    @property
    def resolved(self) -> str:
        """The canonical text with the types of references in it, as `format=resolved` gives it."""
        return json_text(_Writer(frozenset()).value(self.root, ""))

    def check_unfinished(self) -> None:
        """Each default has to fit its type. Older writers of schemas did not look."""
        defaults = _Defaults()
        for path, each, type_ in self._defaults:
            problem = defaults.problem(type_, each)
            if problem:
                raise InvalidSchema(f"The default at {pointer(path)} does not fit its type: {problem}.")


class _Parser:
    """Types from JSON, with the names that were defined so far."""

    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names
        self.defaults: list[tuple[Path, object, AvroType]] = []

    def parse_text(self, text: str) -> AvroType:
        stripped = text.strip()
        if _NAME.fullmatch(stripped.replace(".", "_")):  # a bare name, as Avro's own parser accepts it
            return self.parse(stripped, "", ())
        return self.parse(parse_json(text), "", ())

    def parse(self, value: object, namespace: str, path: Path) -> AvroType:
        if isinstance(value, str):
            return self._named(value, namespace, path)
        if isinstance(value, list):
            return self._union(cast("list[object]", value), namespace, path)
        if not isinstance(value, dict):
            raise InvalidSchema(_at(path, f"{shortened(json_text(value))} is not a type; use a name, {{...}} or [...]"))
        attributes = cast("dict[str, Any]", value)
        kind = attributes.get("type")
        if isinstance(kind, (dict, list)):
            inner = self.parse(kind, namespace, (*path, "type"))
            # {"type": {"type": "int"}, "logicalType": ...} is one type with the attributes of both.
            if inner.kind in PRIMITIVES:
                rest = {key: each for key, each in attributes.items() if key != "type"}
                return AvroType(inner.kind, {**inner.properties, **rest}) if rest else inner
            return inner
        if not isinstance(kind, str):
            raise InvalidSchema(_at(path, "a type has no 'type'"))
        if kind in PRIMITIVES:
            return AvroType(kind, {key: each for key, each in attributes.items() if key != "type"})
        if kind in NAMED:
            return self._definition(kind, attributes, namespace, path)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in attributes:
                raise InvalidSchema(_at(path, f"a type {kind} has no '{key}'"))
            element = self.parse(attributes[key], namespace, (*path, key))
            return AvroType(kind, _rest(kind, attributes), element=element)
        return self._named(kind, namespace, (*path, "type"))

    def _named(self, name: str, namespace: str, path: Path) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        if name in ("array", "map", *NAMED):
            raise InvalidSchema(_at(path, f"{name!r} is a kind of type; write it as an object with its attributes"))
        known = self._names.get(_fullname(name, namespace))
        if known is None and "." not in name:
            known = self._names.get(name)  # as Avro's parser does for names without a namespace
        if known is None:
            raise InvalidSchema(
                _at(path, f"type {shortened(name)!r} is not defined; define it before its first use, or refer to it")
            )
        return known

    def _union(self, values: list[object], namespace: str, path: Path) -> AvroType:
        branches = [self.parse(each, namespace, (*path, index)) for index, each in enumerate(values)]
        seen: set[str] = set()
        for index, branch in enumerate(branches):
            if branch.kind == "union":
                raise InvalidSchema(_at((*path, index), "a union is directly inside a union; merge them"))
            identity = branch.name or branch.kind
            if identity in seen:
                raise InvalidSchema(_at((*path, index), f"the union has {branch.label!r} twice"))
            seen.add(identity)
        return AvroType("union", branches=branches)

    def _definition(self, kind: str, attributes: dict[str, Any], namespace: str, path: Path) -> AvroType:
        name = _definition_name(kind, attributes, namespace, path)
        inner_namespace = name.rpartition(".")[0]
        aliases = tuple(
            _fullname(each, inner_namespace) for each in _names_of("aliases", attributes, path, dotted=True)
        )
        type_ = AvroType(kind, _rest(kind, attributes), name, _doc(attributes, path), aliases)
        if name in self._names:
            raise InvalidSchema(_at(path, f"type {name!r} is defined twice"))
        self._names[name] = type_
        if kind == "enum":
            self._fill_enum(type_, attributes, path)
        elif kind == "fixed":
            size = attributes.get("size")
            if not _is_integer(size) or not 0 <= size <= FIXED_SIZE_MAX:
                raise InvalidSchema(
                    _at(path, f"the size of fixed {name!r} is {shortened(size)}, not a number of bytes")
                )
            type_.size = size
        else:
            self._fill_record(type_, attributes, inner_namespace, path)
        return type_

    def _fill_enum(self, type_: AvroType, attributes: dict[str, Any], path: Path) -> None:
        if not isinstance(attributes.get("symbols"), list):
            raise InvalidSchema(_at(path, f"enum {type_.name!r} has no list 'symbols'"))
        symbols = _names_of("symbols", attributes, path)
        seen: set[str] = set()
        for index, each in enumerate(symbols):
            if each in seen:
                raise InvalidSchema(_at((*path, "symbols", index), f"symbol {each!r} is there twice"))
            seen.add(each)
        default = attributes.get("default")
        if default is not None and not (isinstance(default, str) and default in seen):
            raise InvalidSchema(_at(path, f"the default {shortened(default)} of enum {type_.name!r} is not a symbol"))
        type_.symbols, type_.symbol_set, type_.symbol_default = symbols, frozenset(seen), default

    def _fill_record(self, type_: AvroType, attributes: dict[str, Any], namespace: str, path: Path) -> None:
        fields = attributes.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema(_at(path, f"record {type_.name!r} has no list 'fields'"))
        seen: set[str] = set()
        for index, each in enumerate(cast("list[object]", fields)):
            parsed = self._field(each, namespace, (*path, "fields", index))
            if parsed.name in seen:
                raise InvalidSchema(_at((*path, "fields", index), f"field {parsed.name!r} is there twice"))
            seen.add(parsed.name)
            type_.fields.append(parsed)

    def _field(self, value: object, namespace: str, path: Path) -> AvroField:
        if not isinstance(value, dict):
            raise InvalidSchema(_at(path, f"a field is {shortened(json_text(value))}, not an object"))
        attributes = cast("dict[str, Any]", value)
        name = attributes.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidSchema(_at(path, f"a field's name is {shortened(name)}; use letters, digits and underscores"))
        if "type" not in attributes:
            raise InvalidSchema(_at(path, f"field {name!r} has no 'type'"))
        type_ = self.parse(attributes["type"], namespace, (*path, "type"))
        order = attributes.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ("ascending", "descending", "ignore"):
            raise InvalidSchema(
                _at(path, f"the order of field {name!r} is {shortened(order)}, not ascending, descending or ignore")
            )
        default = attributes.get("default", _NO_DEFAULT)
        if default is not _NO_DEFAULT:
            self.defaults.append(((*path, "default"), default, type_))
        rest = {key: each for key, each in attributes.items() if key not in _FIELD_RESERVED}
        aliases = _names_of("aliases", attributes, path)
        return AvroField(name, type_, _doc(attributes, path), default, order.lower(), aliases, rest)


def _at(path: Path, problem: str) -> str:
    return f"At {pointer(path) or 'the root'}: {problem}."


def _rest(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in attributes.items() if key not in _RESERVED[kind]}


def _doc(attributes: Mapping[str, Any], path: Path) -> str | None:
    doc = attributes.get("doc")
    if doc is not None and not isinstance(doc, str):
        raise InvalidSchema(_at((*path, "doc"), f"the doc is {shortened(json_text(doc))}, not a string"))
    return doc


def _names_of(key: str, attributes: Mapping[str, Any], path: Path, *, dotted: bool = False) -> tuple[str, ...]:
    values = attributes.get(key)
    if values is None:
        return ()
    if not isinstance(values, list):
        raise InvalidSchema(_at((*path, key), f"{key} is {shortened(json_text(values))}, not a list of names"))
    for index, each in enumerate(values):
        parts = each.split(".") if isinstance(each, str) and dotted else [each]
        if not all(isinstance(part, str) and _NAME.fullmatch(part) for part in parts):
            raise InvalidSchema(_at((*path, key, index), f"{shortened(json_text(each))} is not a name"))
    return tuple(values)


def _fullname(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _definition_name(kind: str, attributes: Mapping[str, Any], namespace: str, path: Path) -> str:
    name = attributes.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidSchema(_at(path, f"a type {kind} has no 'name'"))
    given = attributes.get("namespace", namespace)
    if given is None:
        given = ""
    if not isinstance(given, str):
        raise InvalidSchema(_at((*path, "namespace"), f"the namespace is {shortened(json_text(given))}, not a string"))
    full = _fullname(name, given)
    if not all(_NAME.fullmatch(part) for part in full.split(".")):
        raise InvalidSchema(
            _at(path, f"{shortened(full)!r} is not a name; use letters, digits and underscores, not a digit first")
        )
    if full in PRIMITIVES:
        raise InvalidSchema(_at(path, f"{full!r} is a primitive type and cannot be defined"))
    return full


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _digits(size: int) -> int:
    """Decimal digits that a two's complement number of `size` bytes can hold."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1 if 0 < size <= 1_000 else 10**9 if size else 0


class _Defaults:
    """Whether values fit types. A part of a value is compared with a type once, whatever the unions above it try."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str | None] = {}
        self._depth = 0

    def problem(self, type_: AvroType, value: object) -> str | None:
        """What is wrong with a default of the type, or None."""
        key = (id(type_), id(value))
        if key not in self._known:
            if len(self._known) >= DEFAULT_PARTS_MAX:
                raise InvalidSchema(f"The defaults need more than {DEFAULT_PARTS_MAX:,} checks. Make them smaller.")
            if self._depth > DEFAULT_NESTING_MAX:
                raise InvalidSchema("A default is nested too deep to be checked.")
            self._depth += 1
            self._known[key] = self._find(type_, value)
            self._depth -= 1
        return self._known[key]

    def _find(self, type_: AvroType, value: object) -> str | None:
        kind = type_.kind
        if kind == "union":
            if any(self.problem(branch, value) is None for branch in type_.branches):
                return None
            return f"{shortened(json_text(value))} fits no branch of the union"
        if kind == "array" and isinstance(value, list):
            return self._first(type_, cast("list[object]", value))
        if kind == "map" and isinstance(value, dict):
            return self._first(type_, list(cast("dict[str, object]", value).values()))
        if kind in ("record", "error") and isinstance(value, dict):
            return self._record(type_, cast("dict[str, object]", value))
        if _scalar_fits(type_, value):
            return None
        return f"{shortened(json_text(value))} is not of type {type_.label}"

    def _first(self, type_: AvroType, values: list[object]) -> str | None:
        element = cast("AvroType", type_.element)
        return next((problem for each in values if (problem := self.problem(element, each))), None)

    def _record(self, type_: AvroType, value: Mapping[str, object]) -> str | None:
        for each in type_.fields:
            if each.name in value:
                problem = self.problem(each.type, value[each.name])
                if problem:
                    return f"field {each.name!r}: {problem}"
            elif not each.has_default:
                return f"field {each.name!r} of record {type_.name} is missing"
        return None


def _scalar_fits(type_: AvroType, value: object) -> bool:
    match type_.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return _is_integer(value) and -INT_MAX - 1 <= value <= INT_MAX
        case "long":
            return _is_integer(value) and -LONG_MAX - 1 <= value <= LONG_MAX
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "bytes":
            return isinstance(value, str) and all(ord(each) <= 0xFF for each in value)
        case "fixed":
            return isinstance(value, str) and len(value) == type_.size and all(ord(each) <= 0xFF for each in value)
        case "enum":
            return isinstance(value, str) and value in type_.symbol_set
        case _:
            return False


class _Writer:
    """The canonical text: Avro's attributes in its order, then others as they came, names relative to the namespace."""

    def __init__(self, known: frozenset[str]) -> None:
        self._written = set(known)

    def value(self, type_: AvroType, namespace: str) -> object:
        kind = type_.kind
        if kind == "union":
            return [self.value(each, namespace) for each in type_.branches]
        if kind in PRIMITIVES:
            return {"type": kind, **type_.properties} if type_.properties else kind
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            return {"type": kind, key: self.value(cast("AvroType", type_.element), namespace), **type_.properties}
        space, _, short = type_.name.rpartition(".")
        if type_.name in self._written:
            return short if space == namespace else type_.name
        self._written.add(type_.name)
        value: dict[str, object] = {"type": kind, "name": short}
        if space != namespace:
            value["namespace"] = space
        if type_.doc is not None:
            value["doc"] = type_.doc
        if kind == "enum":
            value["symbols"] = list(type_.symbols)
            if type_.symbol_default is not None:
                value["default"] = type_.symbol_default
        elif kind == "fixed":
            value["size"] = type_.size
        else:
            value["fields"] = [self._field(each, space) for each in type_.fields]
        value.update(type_.properties)
        if type_.aliases:
            value["aliases"] = [_relative(each, space) for each in type_.aliases]
        return value

    def _field(self, each: AvroField, namespace: str) -> dict[str, object]:
        value: dict[str, object] = {"name": each.name, "type": self.value(each.type, namespace)}
        if each.doc is not None:
            value["doc"] = each.doc
        if each.has_default:
            value["default"] = each.default
        if each.order != "ascending":
            value["order"] = each.order
        if each.aliases:
            value["aliases"] = list(each.aliases)
        return {**value, **each.properties}


def _relative(name: str, namespace: str) -> str:
    space, _, short = name.rpartition(".")
    return short if space == namespace else name


class _NormalWriter:
    """The normalized text: full names, a fixed order of attributes, sorted aliases and properties."""

    def __init__(self, known: frozenset[str]) -> None:
        self._written = set(known)

    def value(self, type_: AvroType, namespace: str) -> object:
        kind = type_.kind
        if kind == "union":
            return [self.value(each, namespace) for each in type_.branches]
        properties = self._properties(type_)
        if kind in PRIMITIVES:
            return {"type": kind, **properties} if properties else kind
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            return {"type": kind, key: self.value(cast("AvroType", type_.element), namespace), **properties}
        if type_.name in self._written:
            return type_.name
        self._written.add(type_.name)
        space = type_.name.rpartition(".")[0]
        value: dict[str, object] = {"name": type_.name}
        if namespace and not space:
            value["namespace"] = ""
        value["type"] = kind
        if kind == "enum":
            value["symbols"] = list(type_.symbols)
        elif kind == "fixed":
            value["size"] = type_.size
        else:
            value["fields"] = [self._field(each, space) for each in type_.fields]
        if type_.doc:
            value["doc"] = type_.doc
        if type_.aliases:
            value["aliases"] = sorted(set(type_.aliases))
        if type_.symbol_default is not None:
            value["default"] = type_.symbol_default
        return {**value, **properties}

    def _field(self, each: AvroField, namespace: str) -> dict[str, object]:
        value: dict[str, object] = {"name": each.name, "type": self.value(each.type, namespace), "order": each.order}
        if each.doc is not None:
            value["doc"] = each.doc
        if each.aliases:
            value["aliases"] = sorted(set(each.aliases))
        if each.has_default:
            value["default"] = _ordered(each.default)
        return {**value, **{key: _ordered(each.properties[key]) for key in sorted(each.properties)}}

    @staticmethod
    def _properties(type_: AvroType) -> dict[str, object]:
        rest = dict(type_.properties)
        first = {"logicalType": rest.pop("logicalType")} if "logicalType" in rest else {}
        if type_.decimal is not None:
            first["precision"] = rest.pop("precision")
            scale = rest.pop("scale", 0)
            if scale:
                first["scale"] = scale
        return {**first, **{key: _ordered(rest[key]) for key in sorted(rest)}}


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: _ordered(each) for key, each in sorted(cast("dict[str, object]", value).items())}
    if isinstance(value, list):
        return [_ordered(each) for each in cast("list[object]", value)]
    return value
