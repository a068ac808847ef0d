"""Pairs of Avro schemas, judged by the chapters "Schema Resolution", "Aliases" and "Names" of the specification."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

from tests.registry.formats.pairs import Pair, text

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# "int is promotable to long, float, or double", and so on: (writer, reader).
PROMOTED = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def decimal(precision: int, scale: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale, **more}


def _reads(reader: str, writer: str) -> bool:
    return reader == writer or (writer, reader) in PROMOTED


PRIMITIVE_PAIRS = [
    Pair(f"primitives {old} and {new}", text(old), text(new), _reads(new, old), _reads(old, new))
    for old, new in combinations_with_replacement(PRIMITIVES, 2)
]
CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "a field": lambda type_: record(field("a", type_)),
    "items of an array": array,
    "values of a map": map_,
    "a union with null": lambda type_: ["null", type_],
    "a field of a record in a record": lambda type_: record(field("r", record(field("a", type_), name="Inner"))),
    "items of values of a map": lambda type_: map_(array(type_)),
}
PROMOTION_PAIRS = [
    Pair(f"{old} to {new} in {name}", text(make(old)), text(make(new)), _reads(new, old), _reads(old, new))
    for name, make in CONTEXTS.items()
    for old, new in (("int", "long"), ("int", "double"), ("long", "float"), ("string", "bytes"), ("int", "string"))
]
_RECURSIVE = record(field("value", "long"), field("next", ["null", "R"], default=None))
_TREE = record(field("children", array("R")), field("label", "string"))

# Rule, old, new, backward, forward.
_SINGLE: list[tuple[str, Any, Any, bool, bool]] = [
    # Records: "if the reader's record schema has a field with no default value, and writer's schema does not have a
    # field with the same name, an error is signalled", "if both ... it is ignored".
    ("field added without default", record(), record(field("a", "int")), False, True),
    ("field added with default", record(), record(field("a", "int", default=1)), True, True),
    ("field with null default added", record(), record(field("a", ["null", "int"], default=None)), True, True),
    ("optional field without default added", record(), record(field("a", ["null", "int"])), False, True),
    ("field removed without default", record(field("a", "int")), record(), True, False),
    ("field removed with default", record(field("a", "int", default=1)), record(), True, True),
    ("default added", record(field("a", "int")), record(field("a", "int", default=1)), True, True),
    ("default changed", record(field("a", "int", default=2)), record(field("a", "int", default=1)), True, True),
    ("default removed", record(field("a", "int", default=2)), record(field("a", "int")), True, True),
    (
        "fields reordered",
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
        True,
        True,
    ),
    ("field renamed", record(field("a", "int")), record(field("b", "int")), False, False),
    (
        "field renamed with defaults",
        record(field("a", "int", default=0)),
        record(field("b", "int", default=0)),
        True,
        True,
    ),
    ("field's alias", record(field("a", "int")), record(field("b", "int", aliases=["a"])), True, False),
    ("field's second alias", record(field("a", "int")), record(field("b", "int", aliases=["x", "a"])), True, False),
    (
        "alias with default the other way",
        record(field("a", "int", default=0)),
        record(field("b", "int", aliases=["a"])),
        True,
        True,
    ),
    (
        "alias with another type",
        record(field("a", "string")),
        record(field("b", "int", aliases=["a"])),
        False,
        False,
    ),
    ("alias with promotion", record(field("a", "int")), record(field("b", "long", aliases=["a"])), True, False),
    ("field's order changed", record(field("a", "int")), record(field("a", "int", order="ignore")), True, True),
    ("field's doc changed", record(field("a", "int", doc="x")), record(field("a", "int", doc="y")), True, True),
    ("field's property", record(field("a", "int")), record(field("a", "int", pii=True)), True, True),
    ("record's doc", record(), record(doc="x"), True, True),
    (
        "two fields added, one without default",
        record(),
        record(field("a", "int", default=1), field("b", "int")),
        False,
        True,
    ),
    ("field replaced", record(field("a", "int")), record(field("b", "int", default=1)), True, False),
    # Names: "(unqualified) names match".
    ("record renamed", record(), record(name="S"), False, False),
    ("record's alias", record(), record(name="S", aliases=["R"]), True, False),
    ("namespace added", record(), record(namespace="a.b"), True, True),
    ("namespace changed", record(namespace="a"), record(namespace="b"), True, True),
    ("name with dots", record(namespace="a"), record(name="a.R"), True, True),
    ("alias in the namespace", record(namespace="a"), record(name="S", namespace="a", aliases=["R"]), True, False),
    (
        "alias in another namespace",
        record(namespace="a"),
        record(name="S", namespace="b", aliases=["a.R"]),
        True,
        False,
    ),
    ("alias in no namespace", record(namespace="a"), record(name="S", aliases=["R"]), False, False),
    ("enum renamed", enum("A"), enum("A", name="F"), False, False),
    ("enum's alias", enum("A"), enum("A", name="F", aliases=["E"]), True, False),
    ("enum's namespace", enum("A"), enum("A", namespace="x"), True, True),
    ("fixed renamed", fixed(4), fixed(4, name="G"), False, False),
    ("fixed's alias", fixed(4), fixed(4, name="G", aliases=["F"]), True, False),
    ("fixed's namespace", fixed(4), fixed(4, namespace="x"), True, True),
    ("error and record", record(), {**record(), "type": "error"}, True, True),
    # Enums: "if the writer's symbol is not present in the reader's enum and the reader has a default value, then that
    # value is used, otherwise an error is signalled".
    ("symbol added", enum("A"), enum("A", "B"), True, False),
    ("symbol removed", enum("A", "B"), enum("A"), False, True),
    ("symbol added, old has default", enum("A", default="A"), enum("A", "B"), True, True),
    ("symbol removed, new has default", enum("A", "B"), enum("A", default="A"), True, True),
    ("symbols reordered", enum("A", "B"), enum("B", "A"), True, True),
    ("symbol renamed", enum("A", "B"), enum("A", "C"), False, False),
    ("symbol renamed, both with default", enum("A", "B", default="A"), enum("A", "C", default="A"), True, True),
    ("all symbols changed with default", enum("A"), enum("B", default="B"), True, False),
    ("enum's default added", enum("A"), enum("A", default="A"), True, True),
    ("enum in a field", record(field("e", enum("A"))), record(field("e", enum("A", "B"))), True, False),
    (
        "default of the field is not one of the enum",
        record(field("e", enum("A", "B"), default="A")),
        record(field("e", enum("A"), default="A")),
        False,
        True,
    ),
    # Fixed: "sizes and names match".
    ("fixed of the same size", fixed(4), fixed(4), True, True),
    ("fixed grows", fixed(4), fixed(8), False, False),
    ("fixed and bytes", fixed(4), "bytes", False, False),
    # Kinds do not mix.
    ("enum and string", enum("A"), "string", False, False),
    ("record and map", record(), map_("int"), False, False),
    ("array and map", array("int"), map_("int"), False, False),
    ("array and its item", array("int"), "int", False, False),
    ("record and string", record(), "string", False, False),
    ("enum and fixed", enum("A", name="N"), fixed(1, name="N"), False, False),
    ("record and enum", record(name="N"), enum("A", name="N"), False, False),
    ("null and record", "null", record(), False, False),
    ("arrays of records", array(record()), array(record(field("a", "int"))), False, True),
    ("maps of records", map_(record()), map_(record(field("a", "int", default=1))), True, True),
    ("arrays of enums", array(enum("A", "B")), array(enum("A")), False, True),
    # Unions.
    ("union of one type", ["int"], "int", True, True),
    ("type becomes a union", "int", ["null", "int"], True, False),
    ("type becomes a union in a field", record(field("a", "int")), record(field("a", ["int", "null"])), True, False),
    ("type becomes a union of others", "int", ["null", "string"], False, False),
    ("type becomes a union with promotion", "int", ["null", "long"], True, False),
    ("type becomes a union with demotion", "long", ["null", "int"], False, False),
    ("branch added", ["null", "int"], ["null", "int", "string"], True, False),
    ("branch removed", ["null", "int", "string"], ["null", "int"], False, True),
    ("branches reordered", ["null", "int"], ["int", "null"], True, True),
    ("branch promoted", ["null", "int"], ["null", "long"], True, False),
    ("branch changed", ["null", "int"], ["null", "string"], False, False),
    ("branch string to bytes", ["null", "string"], ["null", "bytes"], True, True),
    ("union covered by a promotion", ["int", "long"], "long", True, True),
    ("union covered by a double", ["int", "long", "float"], "double", True, False),
    ("union not covered", ["int", "string"], "long", False, False),
    ("union of records", [record(name="A"), record(name="B")], [record(name="B"), record(name="A")], True, True),
    ("union loses a record", [record(name="A"), record(name="B")], [record(name="A")], False, True),
    (
        "record in a union gets a field",
        ["null", record()],
        ["null", record(field("a", "int"))],
        False,
        True,
    ),
    (
        "record in a union gets a default field",
        ["null", record()],
        ["null", record(field("a", "int", default=0))],
        True,
        True,
    ),
    ("record in a union renamed", ["null", record()], ["null", record(name="S")], False, False),
    ("record in a union with alias", ["null", record()], ["null", record(name="S", aliases=["R"])], True, False),
    ("enum in a union grows", ["null", enum("A")], ["null", enum("A", "B")], True, False),
    ("empty unions", [], [], True, True),
    ("empty union is read by all", [], "int", True, False),
    ("null in a union", "null", ["null", "int"], True, False),
    ("union in items", array(["null", "int"]), array(["null", "int", "string"]), True, False),
    ("union in values", map_(["null", "int"]), map_("int"), False, True),
    (
        "null default moves",
        record(field("a", ["null", "int"], default=None)),
        record(field("a", ["int", "null"], default=0)),
        True,
        True,
    ),
    # Logical types do not take part, but decimals do.
    ("logical type added", "int", {"type": "int", "logicalType": "date"}, True, True),
    (
        "logical type changed",
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        True,
        True,
    ),
    ("date to long", {"type": "int", "logicalType": "date"}, "long", True, False),
    ("uuid", {"type": "string", "logicalType": "uuid"}, "string", True, True),
    ("unknown logical type", {"type": "string", "logicalType": "x-y"}, "string", True, True),
    ("same decimal", decimal(10, 2), decimal(10, 2), True, True),
    ("decimal's scale changed", decimal(10, 2), decimal(10, 3), False, False),
    ("decimal's scale added", decimal(10), decimal(10, 1), False, False),
    ("decimal's precision grows", decimal(8, 2), decimal(10, 2), True, False),
    (
        "scale of 0 is the default",
        {"type": "bytes", "logicalType": "decimal", "precision": 4},
        decimal(4, 0),
        True,
        True,
    ),
    ("decimal and bytes", decimal(8, 2), "bytes", True, True),
    ("invalid decimal is bytes", decimal(2, 4), decimal(10, 3), True, True),
    (
        "decimal of fixed",
        fixed(8, logicalType="decimal", precision=10, scale=2),
        fixed(8, logicalType="decimal", precision=10, scale=4),
        False,
        False,
    ),
    (
        "decimal of fixed with more precision",
        fixed(8, logicalType="decimal", precision=10, scale=2),
        fixed(8, logicalType="decimal", precision=12, scale=2),
        True,
        False,
    ),
    ("decimal in a field", record(field("a", decimal(4, 2))), record(field("a", decimal(6, 2))), True, False),
    ("decimal in a union", ["null", decimal(4, 2)], ["null", decimal(4, 3)], False, False),
    # Recursion.
    ("list", _RECURSIVE, _RECURSIVE, True, True),
    (
        "list gets a field",
        _RECURSIVE,
        record(*_RECURSIVE["fields"], field("extra", "int")),
        False,
        True,
    ),
    (
        "list gets a default field",
        _RECURSIVE,
        record(*_RECURSIVE["fields"], field("extra", "int", default=0)),
        True,
        True,
    ),
    (
        "list's value changes",
        _RECURSIVE,
        record(field("value", "string"), field("next", ["null", "R"], default=None)),
        False,
        False,
    ),
    (
        "list's value is promoted",
        _RECURSIVE,
        record(field("value", "double"), field("next", ["null", "R"], default=None)),
        True,
        False,
    ),
    ("tree", _TREE, record(field("label", "bytes"), field("children", array("R"))), True, True),
    ("tree loses its label", _TREE, record(field("children", array("R"))), True, False),
    (
        "tree becomes a list",
        _TREE,
        record(field("children", ["null", "R"]), field("label", "string")),
        False,
        False,
    ),
    (
        "records that contain each other",
        record(field("b", ["null", record(field("a", ["null", "A"]), name="B")]), name="A"),
        record(field("b", ["null", record(field("a", ["null", "A"]), field("x", "int"), name="B")]), name="A"),
        False,
        True,
    ),
    (
        "a type used twice",
        record(field("a", record(name="I")), field("b", "I")),
        record(field("b", record(name="I")), field("a", "I")),
        True,
        True,
    ),
    (
        "a type used twice changes",
        record(field("a", record(name="I")), field("b", "I")),
        record(field("a", record(field("x", "int"), name="I")), field("b", "I")),
        False,
        True,
    ),
    (
        "nested default",
        record(field("a", record(field("x", "int"), name="I"), default={"x": 1})),
        record(),
        True,
        True,
    ),
    (
        "identical names in two namespaces",
        [record(namespace="a"), record(namespace="b")],
        record(namespace="c"),
        True,
        True,
    ),
]
PAIRS = [
    *PRIMITIVE_PAIRS,
    *PROMOTION_PAIRS,
    *(Pair(rule, text(old), text(new), backward, forward) for rule, old, new, backward, forward in _SINGLE),
]
