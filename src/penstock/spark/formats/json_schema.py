"""JSON Schema as Spark columns: what a registered schema says about the objects of a topic, as a struct.

| schema | column |
|---|---|
| `string`, `integer`, `number`, `boolean` | STRING, BIGINT, DOUBLE, BOOLEAN |
| `string` with format `date-time` or `date`; with contentEncoding `base64` | TIMESTAMP, DATE; BINARY |
| `object` with properties | STRUCT; other properties of a value are ignored |
| `object` without properties, with one schema for all its values | MAP<STRING, ...> |
| `array` with one schema for its items | ARRAY<...> |
| anything else: several types, any value, tuples, open objects, recursion | STRING with the JSON text of the value |

`null` among the types, or as a branch of oneOf or anyOf, makes a column nullable. `$ref` leads into the document or to
a reference of the registry; nothing is fetched. A column whose innermost values are JSON text is marked in its
metadata (`TEXT`), and one with integers too (`INTEGER`), since 1.0 is an integer in JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote, urljoin

from pyspark.sql import types as spark

from penstock.client.errors import ConfigError

MARK: Final = "json"
"""The key in the metadata of a column."""
TEXT: Final = "text"
INTEGER: Final = "integer"

PARTS_MAX: Final = 20_000
"""References let a short text describe endlessly many columns."""
DEPTH_MAX: Final = 64
_SIBLINGS_COUNT: Final = ("2019-09", "2020-12")
"""Drafts in which the keywords beside a `$ref` apply too."""
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies"}
)
"""Keywords whose value has schemas by names, which may be words of JSON Schema."""
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples"})
_FORMATS: Final[Mapping[str, type[spark.DataType]]] = {"date-time": spark.TimestampType, "date": spark.DateType}


class _Shape(NamedTuple):
    """A column type. `mark` is about its innermost values, those of the elements of arrays and maps."""

    type: spark.DataType
    mark: str = ""
    is_nullable: bool = False

    @property
    def is_any(self) -> bool:
        """Whether it says nothing about the value: JSON text."""
        return self.mark == TEXT and isinstance(self.type, spark.StringType)

    @property
    def is_text(self) -> bool:
        """Whether its innermost values are JSON text."""
        return self.mark == TEXT

    @property
    def kind(self) -> tuple[spark.DataType, str]:
        return self.type, self.mark


_ANY: Final = _Shape(spark.StringType(), TEXT, True)
_ATOMS: Final[Mapping[str, _Shape]] = {
    "boolean": _Shape(spark.BooleanType()),
    "integer": _Shape(spark.LongType(), INTEGER),
    "number": _Shape(spark.DoubleType()),
}


def struct_of_json_schema(text: str, references: Mapping[str, str], name: str) -> spark.StructType:
    """The columns of a schema; `references` are schemas by the names under which they are referred to, `name` is for
    errors. Raises ConfigError."""
    documents = _Documents(_parsed(text, name), {key: _parsed(each, key) for key, each in references.items()})
    shape = _Columns(documents, name).shape(documents.root, ())
    if shape is None or not isinstance(shape.type, spark.StructType):
        raise ConfigError(
            f"the JSON Schema of {name} is not an object with properties",
            hint='Give the columns: penstock.decode = "json: id BIGINT, name STRING"',
        )
    return shape.type


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the schema {name} is not JSON: {error}", hint="Register it again") from None


# ---------------------------------------------------------------------------------------------- references


class _Documents:
    """A schema and those it refers to, by their URIs, names and anchors."""

    def __init__(self, root: Any, references: Mapping[str, Any]) -> None:
        self.root = root
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, tuple[str, bool]] = {}
        for name, document in references.items():
            self._visit(document, name)
            self._resources.setdefault(name, document)
        self._visit(root, "")
        self._resources.setdefault("", root)

    def _visit(self, document: Any, base: str) -> None:
        """Note the base URI of every part, and whether keywords beside its `$ref` count."""
        waiting: list[tuple[Any, str, bool, bool]] = [(document, base, False, False)]
        while waiting:
            part, base, has_siblings, is_map = waiting.pop()
            if isinstance(part, list):
                waiting += [(each, base, has_siblings, False) for each in part]
            elif isinstance(part, dict) and is_map:
                waiting += [(each, base, has_siblings, False) for each in part.values()]
            elif isinstance(part, dict):
                draft = part.get("$schema")
                if isinstance(draft, str):
                    has_siblings = any(each in draft for each in _SIBLINGS_COUNT)
                base = self._identified(part, base)
                self._bases[id(part)] = base, has_siblings
                waiting += [
                    (each, base, has_siblings, key in _MAPS) for key, each in part.items() if key not in _NO_SCHEMAS
                ]

    def _identified(self, part: dict[str, Any], base: str) -> str:
        for key in ("$id", "id"):
            identifier = part.get(key)
            if isinstance(identifier, str):
                base, fragment = _resolved(base, identifier)
                if fragment:
                    self._anchors.setdefault((base, fragment), part)
                else:
                    self._resources.setdefault(base, part)
                break
        if isinstance(part.get("$anchor"), str):
            self._anchors.setdefault((base, part["$anchor"]), part)
        return base

    def stands_alone(self, part: dict[str, Any]) -> bool:
        """Whether its `$ref` is all that counts, as before draft 2019-09."""
        return isinstance(part.get("$ref"), str) and not self._base(part)[1]

    def _base(self, part: dict[str, Any]) -> tuple[str, bool]:
        """A `$ref` may lead to what is not a schema, as a default value."""
        return self._bases.get(id(part), ("", False))

    def target(self, part: dict[str, Any]) -> Any:
        """What its `$ref` leads to; None if that is not known here, as a meta-schema."""
        reference: str = part["$ref"]
        url, fragment = _resolved(self._base(part)[0], reference)
        # A document without an $id is known by the name of its reference.
        found = self._resources.get(url, self._resources.get(reference.partition("#")[0]))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            base = url if found is None else self._bases.get(id(found), (url, False))[0]
            return self._anchors.get((base, fragment))
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(found):
                found = found[int(step[:9])]
            else:
                return None
        return found


def _resolved(base: str, reference: str) -> tuple[str, str]:
    """The URI and the fragment that a reference stands for."""
    address, _, fragment = reference.partition("#")
    if not address:
        return base, fragment  # urljoin knows no relative references of urn:
    try:
        return urljoin(base, address), fragment
    except ValueError:  # not a URI: it leads nowhere, unless something has that name
        return address, fragment


# ---------------------------------------------------------------------------------------------- columns


class _Columns:
    """Makes columns of the parts of a schema. None stands for a part that says nothing about the value."""

    def __init__(self, documents: _Documents, name: str) -> None:
        self._documents = documents
        self._name = name
        self._count = 0

    def shape(self, part: Any, path: tuple[int, ...]) -> _Shape | None:
        """`path` has the parts that contain this one; one that contains itself is recursive."""
        if not isinstance(part, dict) or not part:
            return None
        if id(part) in path or len(path) > DEPTH_MAX:
            return _ANY
        self._count += 1
        if self._count > PARTS_MAX:
            raise ConfigError(
                f"the JSON Schema of {self._name} is too large: more than {PARTS_MAX:,} parts, with those it refers to",
                hint='Give the columns: penstock.decode = "json: id BIGINT, name STRING"',
            )
        inner = (*path, id(part))
        found: list[_Shape | None] = []
        if isinstance(part.get("$ref"), str):
            found.append(self.shape(self._documents.target(part), inner))
            if self._documents.stands_alone(part):
                return found[0]
        found.append(self._own(part, inner))
        found += [self.shape(each, inner) for each in _parts(part, "allOf")]
        found += [self._one_of(_parts(part, key), inner) for key in ("anyOf", "oneOf") if key in part]
        return _all_of(found)

    def _value(self, part: Any, path: tuple[int, ...]) -> _Shape:
        return self.shape(part, path) or _ANY

    def _one_of(self, branches: list[Any], path: tuple[int, ...]) -> _Shape | None:
        """One column for all branches, if they agree."""
        others = [each for each in branches if not _is_null(each)]
        shapes = [self.shape(each, path) for each in others]
        if not shapes or any(each is None for each in shapes):
            return None
        found = cast("list[_Shape]", shapes)
        is_nullable = len(others) < len(branches) or any(each.is_nullable for each in found)
        kinds = [each.kind for each in found]
        if all(kind == kinds[0] for kind in kinds):
            return found[0]._replace(is_nullable=is_nullable)
        if all(kind in (_ATOMS["integer"].kind, _ATOMS["number"].kind) for kind in kinds):
            return _ATOMS["number"]._replace(is_nullable=is_nullable)
        return _ANY

    def _own(self, part: dict[str, Any], path: tuple[int, ...]) -> _Shape | None:
        """What the part says by itself."""
        types = _types_of(part)
        if types is None:
            return None
        others = types - {"null"}
        is_nullable = "null" in types
        if others == {"integer", "number"}:
            others = {"number"}
        if len(others) != 1:
            return _ANY
        (name,) = others
        if name == "object":
            shape = self._object(part, path)
        elif name == "array":
            shape = self._array(part, path)
        else:
            shape = _string(part) if name == "string" else _ATOMS.get(name, _ANY)
        # Without `type`, other values than these are valid too.
        return shape._replace(is_nullable=shape.is_nullable or is_nullable)

    def _object(self, part: dict[str, Any], path: tuple[int, ...]) -> _Shape:
        properties = part.get("properties")
        if isinstance(properties, dict) and properties:
            required = part.get("required")
            names = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
            return _Shape(
                spark.StructType(
                    [
                        _field(name, self._value(each, path), is_required=name in names and not _has_default(each))
                        for name, each in properties.items()
                    ]
                )
            )
        rest = part.get("additionalProperties", True)
        values = list(patterns.values()) if isinstance(patterns := part.get("patternProperties"), dict) else []
        if rest is not False:
            values.append(rest)
        shapes = [self._value(each, path) for each in values]
        if not shapes or any(not isinstance(each, dict) for each in values):
            return _ANY
        if any(each.kind != shapes[0].kind for each in shapes):
            return _ANY
        is_nullable = any(each.is_nullable for each in shapes)
        return _Shape(spark.MapType(spark.StringType(), shapes[0].type, is_nullable), shapes[0].mark)

    def _array(self, part: dict[str, Any], path: tuple[int, ...]) -> _Shape:
        items = part.get("items")
        if not isinstance(items, dict) or "prefixItems" in part:
            return _ANY
        shape = self._value(items, path)
        return _Shape(spark.ArrayType(shape.type, shape.is_nullable), shape.mark)


def _parts(part: dict[str, Any], key: str) -> list[Any]:
    found = part.get(key)
    return found if isinstance(found, list) else []


def _is_null(part: Any) -> bool:
    return isinstance(part, dict) and _types_of(part) == {"null"}


def _has_default(part: Any) -> bool:
    """A property with a default may have become required later: earlier values lack it."""
    return isinstance(part, dict) and "default" in part


def _types_of(part: dict[str, Any]) -> set[str] | None:
    """The types of the values that it allows; None if it does not say."""
    given = part.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {each if isinstance(each, str) else "" for each in given}
    if "const" in part:
        return {_type_of(part["const"])}
    if isinstance(part.get("enum"), list):
        return {_type_of(each) for each in part["enum"]}
    if isinstance(part.get("properties"), dict) or isinstance(part.get("additionalProperties"), dict):
        return {"object", "null"}
    return {"array", "null"} if isinstance(part.get("items"), dict) else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _string(part: dict[str, Any]) -> _Shape:
    kind = _FORMATS.get(str(part.get("format")))
    if kind is not None:
        return _Shape(kind())
    is_base64 = str(part.get("contentEncoding")).lower() == "base64"
    return _Shape(spark.BinaryType() if is_base64 else spark.StringType())


def _field(name: str, shape: _Shape, *, is_required: bool) -> spark.StructField:
    mark = {MARK: shape.mark} if shape.mark else None
    return spark.StructField(name, shape.type, shape.is_nullable or not is_required, mark)


# ---------------------------------------------------------------------------------------------- versions


def changed_meaning(before: spark.StructType, after: spark.StructType) -> str:
    """The first column of both that is JSON text in only one of them, as `a.b`; "" if there is none.

    Both are STRING, but one holds abc and the other "abc" with its quotes.
    """
    known = {field.name: field for field in before.fields}
    for field in after.fields:
        old = known.get(field.name)
        if old is None:
            continue
        kind, old_kind = _innermost(field.dataType), _innermost(old.dataType)
        if isinstance(kind, spark.StructType) and isinstance(old_kind, spark.StructType):
            inner = changed_meaning(old_kind, kind)
            if inner:
                return f"{field.name}.{inner}"
        both_text = isinstance(kind, spark.StringType) and isinstance(old_kind, spark.StringType)
        if both_text and _shape_of(old).is_text != _shape_of(field).is_text:
            return field.name
    return ""


def _innermost(kind: spark.DataType) -> spark.DataType:
    while isinstance(kind, spark.ArrayType | spark.MapType):
        kind = kind.elementType if isinstance(kind, spark.ArrayType) else kind.valueType
    return kind


# ---------------------------------------------------------------------------------------------- all of several


def _all_of(shapes: Iterable[_Shape | None]) -> _Shape | None:
    """The column of a value that has all these shapes; JSON text if they contradict each other."""
    whole: _Shape | None = None
    for shape in shapes:
        if shape is not None:
            whole = shape if whole is None else _both(whole, shape)
    return whole


def _both(one: _Shape, other: _Shape) -> _Shape:
    if one.is_any or other.is_any:
        return other if one.is_any else one
    is_nullable = one.is_nullable and other.is_nullable
    if one.kind == other.kind:
        return one._replace(is_nullable=is_nullable)
    if isinstance(one.type, spark.StructType) and isinstance(other.type, spark.StructType):
        return _Shape(_both_structs(one.type, other.type), is_nullable=is_nullable)
    kinds = (one.kind, other.kind)
    if all(kind in kinds for kind in (_ATOMS["integer"].kind, _ATOMS["number"].kind)):
        return _ATOMS["integer"]._replace(is_nullable=is_nullable)
    return _ANY


def _both_structs(one: spark.StructType, other: spark.StructType) -> spark.StructType:
    fields = {field.name: field for field in one.fields}
    for field in other.fields:
        before = fields.get(field.name)
        if before is None:
            fields[field.name] = field
            continue
        shape = _both(_shape_of(before), _shape_of(field))
        fields[field.name] = _field(field.name, shape, is_required=not (before.nullable and field.nullable))
    return spark.StructType(list(fields.values()))


def _shape_of(field: spark.StructField) -> _Shape:
    mark = (field.metadata or {}).get(MARK, "")
    return _Shape(field.dataType, mark, mark == TEXT and isinstance(field.dataType, spark.StringType))
