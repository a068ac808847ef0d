"""Whether all that a writer's JSON Schema allows is allowed by a reader's. Pure.

Both schemas become parts that all have to hold: of one type, an enumeration, a choice (`anyOf`, `oneOf`, several
types), a negation or a condition. Each part of the reader has to follow from the parts of the writer. The answer is
"no" where it cannot be told, so a "yes" can be relied on, with two exceptions that follow Confluent's registry: an
untyped schema with the keywords of one type is of that type, and `format` is an annotation.

Objects follow the content models that Confluent documents. An open model allows properties it does not name, so one
that is added to the reader may clash with what was written; a closed model allows none, so one that is removed from
the reader cannot be read; a partially open model allows those that match a schema, which is compared.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock.registry.formats.comparison import COMPATIBLE, Comparison, Pair, Verdict, below
from penstock.registry.formats.json_schema import JsonSchema, Node, active_keywords, in_place
from penstock.registry.formats.json_schema_values import (
    LIMITS,
    TYPED_KEYWORDS,
    kind_of,
    limit_problems,
    number_problems,
    scalar_fits,
    text_problems,
)
from penstock.registry.formats.schema import Incompatibility, InvalidSchema, json_key, pointer, shortened

PARTS_MAX = 5_000
PATTERN_STEPS_MAX = 3_000_000
Steps = Generator[Pair["Operand"], Verdict, Verdict]


@dataclass(eq=False, slots=True)
class Part:
    """One demand of a schema. `kind` is a type, or enum, sum, not, condition or never."""

    side: Side
    kind: str
    node: Node
    keywords: dict[str, Any]
    path: str = ""  # from the schema that it is a part of
    criterion: str = ""  # of a sum
    branches: tuple[Operand, ...] = ()
    values: dict[str, object] | None = None  # of an enum
    lenient: bool = False  # holds for values of other types, too

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self,)

    @property
    def label(self) -> str:
        """The part as a message names it."""
        if self.kind == "sum":
            return f"one of {len(self.branches)} {'types' if self.criterion == 'type' else 'schemas'}"
        names = {"enum": "one of certain values", "not": "a negation", "condition": "a condition", "never": "nothing"}
        return names.get(self.kind, self.kind)


class Shape:
    """Schemas that all apply to one value, as parts."""

    __slots__ = ("_parts", "nodes", "side")

    def __init__(self, side: Side, nodes: tuple[Node, ...]) -> None:
        self.side = side
        self.nodes = nodes
        self._parts: tuple[Part, ...] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        if self._parts is None:
            self._parts = tuple(self.side.collect(self.nodes))
        return self._parts


Operand = Part | Shape


class Side:
    """One of the two schemas. Its shapes and parts are made once, since verdicts are known by them."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._evaluated: dict[int, frozenset[str]] = {}
        self.anything = self.shape([schema.node(True)])
        self.nothing = self.shape([schema.node(False)])

    def shape(self, nodes: Iterable[Node]) -> Shape:
        distinct = tuple({id(node): node for node in nodes}.values())
        key = tuple(id(node) for node in distinct)
        if key not in self._shapes:
            self._shapes[key] = Shape(self, distinct)
        return self._shapes[key]

    def of(self, value: dict[str, Any] | bool) -> Shape:
        return self.shape([self.schema.node(value)])

    def collect(self, nodes: Iterable[Node]) -> list[Part]:
        """The parts of schemas, with what they refer to and all of `allOf`."""
        parts: list[Part] = []
        seen: set[int] = set()
        waiting = [(node, "") for node in nodes]
        while waiting:
            node, path = waiting.pop(0) if len(waiting) < PARTS_MAX else waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [(target, path) for target in node.target]  # as if they were written here
            keywords = active_keywords(node)
            for index, each in enumerate(keywords.get("allOf", ())):
                waiting.append((self.schema.node(each), f"{path}/allOf/{index}"[-200:]))
            parts += self._own_parts(node, keywords, path)
            if len(parts) > PARTS_MAX:
                raise InvalidSchema(f"At {node.place}: more than {PARTS_MAX:,} schemas apply to one value.")
        return parts

    def _own_parts(self, node: Node, keywords: dict[str, Any], path: str) -> list[Part]:
        parts: list[Part] = []
        if "not" in keywords:
            shape = self.of(keywords["not"])
            # {} and true allow everything, and their negation nothing.
            kind = "not" if shape.parts else "never"
            parts.append(Part(self, kind, node, keywords, f"{path}/not", branches=(shape,)))
        for keyword in ("enum", "const"):
            if keyword in keywords:
                values = keywords["enum"] if keyword == "enum" else [keywords["const"]]
                found = {json_key(value): value for value in values}
                parts.append(
                    Part(self, "enum" if found else "never", node, keywords, f"{path}/{keyword}", values=found)
                )
        parts += self._typed_parts(node, keywords, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in keywords:
                shapes = tuple(self.of(each) for each in keywords[keyword])
                parts.append(Part(self, "sum", node, keywords, f"{path}/{keyword}", keyword, shapes))
        if "if" in keywords and ("then" in keywords or "else" in keywords):
            parts.append(Part(self, "condition", node, keywords, path))
        return parts

    def _typed_parts(self, node: Node, keywords: dict[str, Any], path: str) -> list[Part]:
        types = keywords.get("type")
        if types is None:
            kinds = [kind for kind, own in TYPED_KEYWORDS.items() if not own.isdisjoint(keywords)]
            return [Part(self, kind, node, keywords, path, lenient=len(kinds) > 1) for kind in kinds]
        if isinstance(types, str):
            return [Part(self, types, node, keywords, path)]
        kinds = [kind for kind in types if kind != "integer" or "number" not in types]
        branches = tuple(Part(self, kind, node, keywords) for kind in kinds)
        if len(branches) == 1:
            return [Part(self, kinds[0], node, keywords, path)]
        return [Part(self, "sum", node, keywords, path, "type", branches)]

    def evaluated_names(self, node: Node) -> frozenset[str]:
        """Names that other schemas for the same value may take care of, so `unevaluatedProperties` does not."""
        known = self._evaluated.get(id(node))
        if known is None:
            names: set[str] = set()
            seen: set[int] = set()
            waiting = [node]
            while waiting:
                each = waiting.pop()
                if id(each) not in seen:
                    seen.add(id(each))
                    names.update(active_keywords(each).get("properties", ()))
                    waiting.extend(in_place(each, self.schema))
            known = self._evaluated[id(node)] = frozenset(names)
        return known


def json_schema_incompatibilities(reader: JsonSchema, writer: JsonSchema) -> list[Incompatibility]:
    """The differences that keep the reader from accepting all that the writer allows."""
    return list(_Inclusion().verdict(Side(reader).shape([reader.root]), Side(writer).shape([writer.root])))


def _pair(reader: Operand, writer: Operand) -> Pair[Operand]:
    return Pair(reader, writer, (id(reader), id(writer)))


def _no(kind: str, path: str, message: str) -> Verdict:
    return (Incompatibility(kind, path, message),)


class _Inclusion:
    """The rules, and the work they have done."""

    def __init__(self) -> None:
        self._comparison: Comparison[Operand] = Comparison(self._rule)
        self._pattern_steps = 0

    def verdict(self, reader: Operand, writer: Operand) -> Verdict:
        return self._comparison.verdict(_pair(reader, writer))

    def _rule(self, reader: Operand, writer: Operand) -> Steps:
        required, given = reader.parts, writer.parts
        if any(part.kind == "never" for part in given):
            return COMPATIBLE
        found: list[Incompatibility] = []
        for part in required:
            self._comparison.spend(len(given))
            verdict = yield from self._follows(part, writer, len(required) > 1)
            found.extend(below(part.path, verdict))
        return tuple(found)

    def _follows(self, part: Part, writer: Operand, one_of_several: bool) -> Steps:
        """Whether the parts of the writer leave nothing that this part of the reader rejects."""
        given = writer.parts
        if part.kind == "sum":
            return (yield from self._sum(part, writer))
        nearest = COMPATIBLE
        for sum_ in given:
            if sum_.kind == "sum":
                verdict = yield from self._all_branches(part, sum_)
                if not verdict:
                    return COMPATIBLE
                nearest = nearest or verdict
        if part.kind == "not":
            if not (yield from self._negation(part, given)):
                return COMPATIBLE
            message = "The reader's 'not' excludes something that the writer allows."
            return (Incompatibility("NOT_TYPE_EXTENDED", "", message), *nearest)
        if part.kind == "condition":
            return (yield from self._condition(part, given))
        if part.kind == "enum":
            return self._enum(part, given, nearest)
        same = [each for each in given if each.kind == part.kind or {each.kind, part.kind} == {"integer", "number"}]
        if same:
            verdict = yield from self._typed(part, same)
            if not verdict or not nearest:
                return verdict
        if any(each.kind == "enum" and self._values_fit(each, part) for each in given):
            return COMPATIBLE
        return self._not_typed(part, given, nearest, one_of_several)

    def _not_typed(self, part: Part, given: Sequence[Part], nearest: Verdict, one_of_several: bool) -> Verdict:
        if nearest:
            return nearest
        others = [each for each in given if each.kind in TYPED_KEYWORDS or each.kind in ("null", "boolean")]
        if part.lenient and others:
            return COMPATIBLE
        if part.kind == "never":
            return _no("TYPE_CHANGED", "", "The reader allows nothing, and the writer allows something.")
        if any("bytes" == each.keywords.get("connect.type") == part.keywords.get("connect.type") for each in others):
            return COMPATIBLE  # decimals, which Kafka Connect has written in both forms
        if given and one_of_several:
            message = f"The reader also requires that the value is of type {part.label}, and the writer does not."
            return _no("PRODUCT_TYPE_EXTENDED", "", message)
        written = shortened(" and ".join(each.label for each in given)) if given else "anything"
        return _no("TYPE_CHANGED", "", f"The reader's type is {part.label}, and the writer allows {written}.")

    def _all_branches(self, part: Part, sum_: Part) -> Steps:
        found: list[Incompatibility] = []
        for branch in sum_.branches:
            found.extend((yield _pair(part, branch)))
        if not found:
            return COMPATIBLE
        message = f"The writer allows {sum_.label}, and the reader's {part.label} does not cover all of them."
        return (Incompatibility("SUM_TYPE_NARROWED", "", message), *found)

    def _sum(self, part: Part, writer: Operand) -> Steps:
        given = writer.parts
        containing = 0
        nearest = COMPATIBLE
        for index, branch in enumerate(part.branches):
            verdict = yield _pair(branch, writer)
            containing += not verdict
            if verdict and _kinds(branch) & _kinds(writer):
                nearest = nearest or below("" if part.criterion == "type" else f"/{index}", verdict)
        sums = [each for each in given if each.kind == "sum"]
        if containing > 1 and part.criterion == "oneOf" and not sums:
            message = (
                f"{containing} of the schemas of the reader's oneOf allow all that the writer allows, not just one."
            )
            return _no("COMBINED_TYPE_CHANGED", "", message)
        if containing:
            return COMPATIBLE
        for sum_ in sums:
            verdict = yield from self._sum_in_sum(part, sum_)
            if not verdict:
                return COMPATIBLE
            nearest = nearest or verdict
        if any(each.kind == "enum" and self._values_fit(each, part) for each in given):
            return COMPATIBLE
        if any(each.kind == "sum" for each in given):
            return nearest
        written = shortened(" and ".join(each.label for each in given)) if given else "anything"
        message = f"The writer allows {written}, which the reader's choice of {len(part.branches)} does not cover."
        return (Incompatibility("TYPE_CHANGED", "", message), *nearest)

    def _sum_in_sum(self, part: Part, sum_: Part) -> Steps:
        found: list[Incompatibility] = []
        for branch in sum_.branches:
            contained = False
            for own in part.branches:
                contained = contained or not (yield _pair(own, branch))
            if not contained and (yield _pair(part, branch)):
                label = shortened(" and ".join(each.label for each in branch.parts) or "anything")
                message = (
                    f"The writer allows {label}, which none of the {len(part.branches)} choices of the reader covers."
                )
                found.append(Incompatibility("SUM_TYPE_NARROWED", "", message))
        overlapping = len(sum_.branches) > 1 and sum_.criterion == "anyOf" and part.criterion == "oneOf"
        if not found and overlapping and not _disjoint(part.branches):
            message = "The reader's oneOf allows values of one schema only, and the writer's anyOf those of several."
            return _no("COMBINED_TYPE_CHANGED", "", message)
        return tuple(found)

    def _negation(self, part: Part, given: Sequence[Part]) -> Generator[Pair[Operand], Verdict, bool]:
        """Whether the negation of the reader may reject something. What it excludes has to be excluded already."""
        for each in given:
            if each.kind == "not" and not (yield _pair(each.branches[0], part.branches[0])):
                return False
        return not _excluded(part.branches[0], given)

    def _condition(self, part: Part, given: Sequence[Part]) -> Steps:
        for each in given:
            if each.kind != "condition" or json_key(each.keywords["if"]) != json_key(part.keywords["if"]):
                continue
            found: list[Incompatibility] = []
            for keyword in ("then", "else"):
                own = part.side.of(part.keywords.get(keyword, True))
                verdict = yield _pair(own, each.side.of(each.keywords.get(keyword, True)))
                found.extend(below(f"/{keyword}", verdict))
            return tuple(found)
        return _no("CONDITION_ADDED", "/if", "The reader has a condition (if) that the writer does not have.")

    def _enum(self, part: Part, given: Sequence[Part], nearest: Verdict) -> Verdict:
        allowed = cast("dict[str, object]", part.values)
        missing: list[str] | None = None
        for each in given:
            if each.kind == "enum":
                self._comparison.spend(len(each.values or ()))
                missing = [key for key in each.values or () if key not in allowed]
            elif each.kind in ("boolean", "null"):
                missing = [
                    key for key in (("true", "false") if each.kind == "boolean" else ("null",)) if key not in allowed
                ]
            if missing == []:
                return COMPATIBLE
        if missing:
            kind = "ENUM_ARRAY_NARROWED" if len(missing) < len(allowed) + len(missing) else "ENUM_ARRAY_CHANGED"
            shown = shortened(", ".join(missing[:10]))
            return _no(kind, "", f"The writer allows values that the reader does not have: {shown}.")
        return nearest or _no(
            "ENUM_ARRAY_CHANGED", "", "The reader allows certain values only, and the writer others, too."
        )

    def _values_fit(self, enum: Part, part: Part) -> bool:
        """Whether each value of an enumeration is allowed, as far as that can be told without a validator."""
        values = enum.values or {}
        self._comparison.spend(len(values))
        return all(self._value_fits(key, value, part, 0) for key, value in values.items())

    def _value_fits(self, key: str, value: object, part: Part, depth: int) -> bool:
        self._comparison.spend(1)
        if depth > 20:
            return False
        if part.kind == "enum":
            return key in cast("dict[str, object]", part.values)
        if part.kind == "sum":
            fitting = sum(
                all(self._value_fits(key, value, each, depth + 1) for each in branch.parts) for branch in part.branches
            )
            return fitting == 1 if part.criterion == "oneOf" else fitting > 0
        if part.kind in ("not", "condition", "never"):
            return False
        return scalar_fits(value, part.kind, part.keywords, part.node.draft, part.side.schema.pattern)

    def _typed(self, part: Part, given: Sequence[Part]) -> Steps:
        writers = [each.keywords for each in given]
        if part.kind == "object":
            return (yield from self._object(part, given))
        if part.kind == "array":
            return (yield from self._array(part, given))
        if part.kind == "string":
            return tuple(text_problems(part.keywords, writers))
        if part.kind in ("number", "integer"):
            sides = [(each.kind, each.keywords, each.node.draft) for each in given]
            return tuple(number_problems((part.kind, part.keywords, part.node.draft), sides))
        return COMPATIBLE

    def _object(self, part: Part, given: Sequence[Part]) -> Steps:
        found = list(limit_problems(part.keywords, [each.keywords for each in given], LIMITS["object"]))
        reader, writer = _Members(self, [part]), _Members(self, given)
        for name in reader.named | writer.named:
            self._comparison.spend(1)
            path = pointer(("properties", name))
            if name in reader.named and name in writer.named:
                verdict = yield _pair(reader.schema_of(name), writer.schema_of(name))
                found.extend(below(path, verdict))
            elif name in writer.named:
                found.extend(below(path, (yield from _removed(name, reader.schema_of(name), writer.schema_of(name)))))
            elif name in reader.named:
                found.extend(below(path, (yield from _added(name, reader, writer))))
        found.extend(_required(reader, writer))
        found.extend((yield from self._unnamed(part, reader, writer)))
        found.extend((yield from self._dependencies(part, given)))
        if "propertyNames" in part.keywords:
            own = part.side.of(part.keywords["propertyNames"])
            names = [each.side.of(each.keywords["propertyNames"]) for each in given if "propertyNames" in each.keywords]
            verdict = yield _pair(own, names[0] if names else given[0].side.anything)
            found.extend(below("/propertyNames", verdict))
        return tuple(found)

    def _unnamed(self, part: Part, reader: _Members, writer: _Members) -> Steps:
        """What the schemas say of properties that neither names: by patterns, and of all others."""
        found: list[Incompatibility] = []
        for pattern, own in reader.patterns.items():
            other = writer.patterns.get(pattern, writer.others)
            verdict = yield _pair(own, other)
            found.extend(below(pointer(("patternProperties", pattern)), verdict))
        for pattern, other in writer.patterns.items():
            if pattern not in reader.patterns:
                verdict = yield _pair(reader.others, other)
                if verdict:
                    message = (
                        f"The writer allows properties that match {shortened(pattern)!r}, and the reader does not."
                    )
                    kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
                    found.append(Incompatibility(kind, pointer(("patternProperties", pattern)), message))
        keyword = "additionalProperties" if "additionalProperties" in part.keywords else "unevaluatedProperties"
        found.extend((yield from _rest(keyword, reader.others, writer.others)))
        return tuple(found)

    def _dependencies(self, part: Part, given: Sequence[Part]) -> Steps:
        found: list[Incompatibility] = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, own in part.keywords.get(keyword, {}).items():
                others = [
                    each.keywords[other][name]
                    for each in given
                    for other in ("dependencies", "dependentRequired", "dependentSchemas")
                    if name in each.keywords.get(other, {})
                ]
                path = pointer((keyword, name))
                if isinstance(own, list):
                    lists = [each for each in others if isinstance(each, list)]
                    if any(set(own) <= set(each) for each in lists):
                        continue
                    kind = "DEPENDENCY_ARRAY_EXTENDED" if lists else "DEPENDENCY_ARRAY_ADDED"
                    message = (
                        f"The reader requires {shortened(', '.join(own))!r} with {shortened(name)!r}, the writer less."
                    )
                    found.append(Incompatibility(kind, path, message))
                    continue
                schemas = [
                    each.side.of(each.keywords[other][name])
                    for each in given
                    for other in ("dependencies", "dependentSchemas")
                    if not isinstance(each.keywords.get(other, {}).get(name, []), list)
                ]
                if schemas:
                    found.extend(below(path, (yield _pair(part.side.of(own), schemas[0]))))
                elif part.side.of(own).parts:
                    message = f"The reader has a schema that depends on {shortened(name)!r}, and the writer does not."
                    found.append(Incompatibility("DEPENDENCY_SCHEMA_ADDED", path, message))
        return tuple(found)

    def _array(self, part: Part, given: Sequence[Part]) -> Steps:
        writers = [each.keywords for each in given]
        found = list(limit_problems(part.keywords, writers, LIMITS["array"]))
        if part.keywords.get("uniqueItems") and not any(each.get("uniqueItems") for each in writers):
            found += _no(
                "UNIQUE_ITEMS_ADDED", "/uniqueItems", "The reader requires unique items, and the writer does not."
            )
        reader, writer = _Items([part]), _Items(given)
        self._comparison.spend(max(reader.count, writer.count))
        for index in range(max(reader.count, writer.count)):
            path = f"/{reader.keyword}/{index}"
            own, other = reader.schema_of(index), writer.schema_of(index)
            if index < writer.count and index >= reader.count:
                found.extend(below(path, (yield from _removed(str(index), own, other, "ITEM"))))
            elif index >= writer.count and not other.parts and own.parts:
                message = f"The reader has a schema for item {index}, and the writer allows any items there."
                found.append(Incompatibility("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path, message))
            else:
                found.extend(below(path, (yield _pair(own, other))))
        found.extend((yield from _rest(reader.rest_keyword, reader.rest, writer.rest)))
        if "contains" in part.keywords and part.keywords.get("minContains", 1) != 0:
            own = part.side.of(part.keywords["contains"])
            others = [each.side.of(each.keywords["contains"]) for each in given if "contains" in each.keywords]
            if others:
                found.extend(below("/contains", (yield _pair(own, others[0]))))
            else:
                message = "The reader requires an item of a certain kind, and the writer does not."
                found.append(Incompatibility("CONTAINS_ADDED", "/contains", message))
        return tuple(found)

    def matches(self, side: Side, pattern: str, name: str) -> bool:
        """Whether a property is meant by a pattern; no if that cannot be told."""
        compiled = side.schema.pattern(pattern)
        if compiled is None:
            return False
        self._pattern_steps += compiled.cost(name)
        if self._pattern_steps > PATTERN_STEPS_MAX:
            raise InvalidSchema("The schemas have too many patternProperties, or too long ones, to be compared.")
        return bool(compiled.matches(name))


class _Members:
    """What schemas of an object, which all apply, say of its properties."""

    def __init__(self, inclusion: _Inclusion, parts: Sequence[Part]) -> None:
        self._inclusion = inclusion
        self._parts = parts
        self._side = parts[0].side
        self.named = {name: None for part in parts for name in part.keywords.get("properties", ())}
        self.required = {name: None for part in parts for name in part.keywords.get("required", ())}
        self.patterns: dict[str, Shape] = {}
        for part in parts:
            for pattern, schema in part.keywords.get("patternProperties", {}).items():
                self.patterns.setdefault(pattern, self._side.of(schema))
        self.others = self._side.shape(node for part in parts for node in _others(part))

    def schema_of(self, name: str) -> Shape:
        """What applies to the value of a property, named or not."""
        nodes: list[Node] = []
        for part in self._parts:
            own: list[Node] = []
            if name in part.keywords.get("properties", ()):
                own.append(self._side.schema.node(part.keywords["properties"][name]))
            for pattern, schema in part.keywords.get("patternProperties", {}).items():
                if self._inclusion.matches(self._side, pattern, name):
                    own.append(self._side.schema.node(schema))
            if not own and (
                "additionalProperties" in part.keywords or name not in self._side.evaluated_names(part.node)
            ):
                own.extend(_others(part))
            nodes.extend(own)
        return self._side.shape(nodes) if nodes else self._side.anything

    def has_default(self, name: str) -> bool:
        for part in self._parts:
            value = part.keywords.get("properties", {}).get(name)
            if isinstance(value, dict):
                node = self._side.schema.node(value)
                if any(isinstance(each.value, dict) and "default" in each.value for each in (node, *node.target)):
                    return True
        return False


def _others(part: Part) -> list[Node]:
    """The schema of properties that are not named."""
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in part.keywords:
            return [part.side.schema.node(part.keywords[keyword])]
    return []


def _removed(name: str, own: Shape, other: Shape, what: str = "PROPERTY") -> Steps:
    """A member that the writer has and the reader does not name."""
    if not own.parts or _is_never(other):
        return COMPATIBLE
    thing = f"{'property' if what == 'PROPERTY' else 'item'} {shortened(name)!r}"
    if _is_never(own):
        message = f"The writer has a {thing}, and the reader's closed content model does not allow it."
        return _no(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", "", message)
    verdict = yield _pair(own, other)
    if not verdict:
        return COMPATIBLE
    message = f"The writer's {thing} is not covered by what the reader allows for members it does not name."
    return (Incompatibility(f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", "", message), *verdict)


def _added(name: str, reader: _Members, writer: _Members) -> Steps:
    """A property that the reader has and the writer does not name."""
    own, other = reader.schema_of(name), writer.schema_of(name)
    shown = shortened(name)
    if _is_never(other):
        return COMPATIBLE
    if other.parts:
        verdict = yield _pair(own, other)
        if not verdict:
            return COMPATIBLE
        message = f"The reader's property {shown!r} does not cover what the writer allows for members it does not name."
        return (Incompatibility("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", "", message), *verdict)
    if not own.parts:
        return COMPATIBLE
    kind = "OPTIONAL_PROPERTY"
    if name in reader.required:
        kind = "REQUIRED_PROPERTY_WITH_DEFAULT" if reader.has_default(name) else "REQUIRED_PROPERTY"
    message = f"The reader has a property {shown!r}, and the writer's open content model allows any value for it."
    return _no(f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", "", message)


def _required(reader: _Members, writer: _Members) -> Verdict:
    found: list[Incompatibility] = []
    for name in reader.required:
        if name in writer.required or reader.has_default(name):
            continue
        kind = "REQUIRED_ATTRIBUTE_ADDED"
        if name in reader.named and name not in writer.named:
            kind = "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
        message = f"The reader requires the property {shortened(name)!r}, and the writer does not."
        found.append(Incompatibility(kind, pointer(("required", name)), message))
    return tuple(found)


def _rest(keyword: str, own: Shape, other: Shape) -> Steps:
    """Members that neither side names."""
    if not own.parts or _is_never(other):
        return COMPATIBLE
    if _is_never(own):
        message = f"The writer allows members that it does not name, and the reader's {keyword} does not."
        return _no(kind_of(keyword, "REMOVED"), f"/{keyword}", message)
    verdict = yield _pair(own, other)
    if verdict and not other.parts:
        message = f"The writer allows any members that it does not name, and the reader's {keyword} only certain ones."
        kind = "SCHEMA_ADDED" if keyword == "items" else kind_of(keyword, "NARROWED")
        return _no(kind, f"/{keyword}", message)
    return below(f"/{keyword}", verdict)


class _Items:
    """What schemas of an array, which all apply, say of its items."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._side = parts[0].side
        self.keyword, self.rest_keyword = "items", "items"
        self._leading: list[tuple[list[Any], list[Node]]] = []
        for part in parts:
            keywords = part.keywords
            rest_keyword = "items"
            leading = keywords.get("prefixItems", [])
            if isinstance(keywords.get("items"), list):
                leading, rest_keyword = keywords["items"], "additionalItems"
            elif leading:
                self.keyword = "prefixItems"
            if rest_keyword not in keywords:
                rest_keyword = "unevaluatedItems" if "unevaluatedItems" in keywords else rest_keyword
            rest = [self._side.schema.node(keywords[rest_keyword])] if rest_keyword in keywords else []
            self.rest_keyword = rest_keyword
            self._leading.append((leading, rest))
        self.count = max(len(leading) for leading, _ in self._leading)
        self.rest = self._side.shape(node for _, rest in self._leading for node in rest)

    def schema_of(self, index: int) -> Shape:
        nodes: list[Node] = []
        for leading, rest in self._leading:
            nodes.extend([self._side.schema.node(leading[index])] if index < len(leading) else rest)
        return self._side.shape(nodes)


def _is_never(operand: Operand) -> bool:
    return any(part.kind == "never" for part in operand.parts)


def _kinds(operand: Operand) -> set[str]:
    """Types that the value may have, as far as the parts say so themselves."""
    return _types(operand.parts)


def _types(parts: Iterable[Part]) -> set[str]:
    kinds = {"number" if part.kind == "integer" else part.kind for part in parts}
    return kinds & {"null", "boolean", *TYPED_KEYWORDS}


def _disjoint(branches: Iterable[Operand]) -> bool:
    """Whether no value can be of two of the branches: each has a type of its own."""
    seen: set[str] = set()
    for branch in branches:
        kinds = _kinds(branch)
        if len(kinds) != 1 or kinds & seen:
            return False
        seen |= kinds
    return True


def _excluded(negated: Operand, given: Sequence[Part]) -> bool:
    """Whether what the writer allows is of another type, or has other values, than what the reader excludes."""
    typed = [part for part in negated.parts if "type" in part.keywords]
    excluded = _types(typed)
    written = _types(given)
    if excluded and written and not excluded & written:
        return True
    values: list[set[str]] = [set(part.values or ()) for part in negated.parts if part.kind == "enum"]
    return any(not set(part.values or ()) & each for part in given if part.kind == "enum" for each in values)
