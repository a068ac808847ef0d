"""JSON Schema: drafts 4, 6, 7, 2019-09 and 2020-12 parsed and checked, with `$ref` resolved. Pure.

A document becomes nodes, one per place that holds a schema. Nothing is fetched: what a `$ref` names has to be in the
document, in a reference of the registry, or be a meta-schema of JSON Schema itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from penstock.registry.formats.pattern import Pattern, PatternError
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

DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020 = 4, 6, 7, 2019, 2020
DEFAULT_DRAFT = DRAFT_7
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": DRAFT_4,
    "http://json-schema.org/draft-06/schema": DRAFT_6,
    "http://json-schema.org/draft-07/schema": DRAFT_7,
    "https://json-schema.org/draft/2019-09/schema": DRAFT_2019,
    "https://json-schema.org/draft/2020-12/schema": DRAFT_2020,
}
_META_SCHEMA = re.compile(r"https?://json-schema\.org/(draft-0\d/(hyper-)?schema|draft/20\d\d-\d\d/(schema|meta/.*))")
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
# States of all expressions of a schema together. Those beyond are taken as expressions that cannot be decided.
PATTERN_STATES_MAX = 100_000
URI_CHARACTERS_MAX = 2_000

_ONE, _LIST, _MAP, _ONE_OR_LIST, _DEPENDENCIES = "one", "list", "map", "one or list", "dependencies"
# Keywords that hold schemas: their form, and the first and last draft that has them.
_APPLICATORS: dict[str, tuple[str, int, int]] = {
    "properties": (_MAP, 4, 2020),
    "patternProperties": (_MAP, 4, 2020),
    "additionalProperties": (_ONE, 4, 2020),
    "propertyNames": (_ONE, 6, 2020),
    "dependencies": (_DEPENDENCIES, 4, 2020),
    "dependentSchemas": (_MAP, 2019, 2020),
    "unevaluatedProperties": (_ONE, 2019, 2020),
    "items": (_ONE_OR_LIST, 4, 2020),
    "prefixItems": (_LIST, 2020, 2020),
    "additionalItems": (_ONE, 4, 2019),
    "unevaluatedItems": (_ONE, 2019, 2020),
    "contains": (_ONE, 6, 2020),
    "allOf": (_LIST, 4, 2020),
    "anyOf": (_LIST, 4, 2020),
    "oneOf": (_LIST, 4, 2020),
    "not": (_ONE, 4, 2020),
    "if": (_ONE, 7, 2020),
    "then": (_ONE, 7, 2020),
    "else": (_ONE, 7, 2020),
    "definitions": (_MAP, 4, 2020),
    "$defs": (_MAP, 2019, 2020),
}
# Applied to the same value as the schema that has them: a circle of only these would never end.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_REFERENCE_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")

Check = Callable[[object], str | None]


def _number(value: object) -> str | None:
    return None if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"


def _count(value: object) -> str | None:
    ok = not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    return None if ok and cast("float", value) >= 0 else "an integer that is at least 0"


def _positive(value: object) -> str | None:
    return None if _number(value) is None and cast("float", value) > 0 else "a number greater than 0"


def _boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _string(value: object) -> str | None:
    return None if isinstance(value, str) else "a string"


def _array(value: object) -> str | None:
    return None if isinstance(value, list) else "an array"


def _names(value: object) -> str | None:
    if isinstance(value, list):
        names = cast("list[object]", value)
        if all(isinstance(each, str) for each in names) and len(set(names)) == len(names):
            return None
    return "an array of different strings"


def _names_by_name(value: object) -> str | None:
    if isinstance(value, dict) and all(_names(each) is None for each in cast("dict[str, object]", value).values()):
        return None
    return "an object with arrays of different strings"


def _types(value: object) -> str | None:
    types = cast("list[object]", value) if isinstance(value, list) else [value]
    if types and all(isinstance(each, str) and each in TYPES for each in types) and len(set(types)) == len(types):
        return None
    return f"one or more of {', '.join(TYPES)}"


_CHECKS: dict[str, tuple[Check, int]] = {
    "type": (_types, 4),
    "enum": (_array, 4),
    "required": (_names, 4),
    "maximum": (_number, 4),
    "minimum": (_number, 4),
    "multipleOf": (_positive, 4),
    "maxLength": (_count, 4),
    "minLength": (_count, 4),
    "maxItems": (_count, 4),
    "minItems": (_count, 4),
    "uniqueItems": (_boolean, 4),
    "maxProperties": (_count, 4),
    "minProperties": (_count, 4),
    "maxContains": (_count, 2019),
    "minContains": (_count, 2019),
    "pattern": (_string, 4),
    "format": (_string, 4),
    "title": (_string, 4),
    "description": (_string, 4),
    "$comment": (_string, 7),
    "examples": (_array, 6),
    "dependentRequired": (_names_by_name, 2019),
    "$ref": (_string, 4),
    "$anchor": (_string, 2019),
    "$dynamicRef": (_string, 2020),
    "$dynamicAnchor": (_string, 2020),
    "$recursiveRef": (_string, 2019),
}


class Node:
    """A place of a document that holds a schema. Equal places are the same object."""

    __slots__ = ("base", "draft", "parent", "step", "target", "value")

    def __init__(
        self, value: dict[str, Any] | bool, draft: int, base: str, parent: Node | None, step: tuple[object, ...]
    ) -> None:
        self.value = value
        self.draft = draft
        self.base = base
        self.parent = parent
        self.step = step  # the way from the parent
        self.target: list[Node] = []  # what its references lead to

    @property
    def path(self) -> str:
        """A pointer to the place. It is made when it is needed: the paths of all nodes could take gigabytes."""
        return _place(self.parent, self.step)

    @property
    def place(self) -> str:
        """The place as an error message names it."""
        return self.path or "the root"

    @property
    def keywords(self) -> Mapping[str, Any]:
        """What applies here: before 2019-09, a `$ref` stands alone."""
        if isinstance(self.value, bool):
            return {} if self.value else {"not": True}
        if self.draft < DRAFT_2019 and isinstance(self.value.get("$ref"), str):
            return {}
        return self.value


class JsonSchema:
    """A parsed JSON Schema."""

    schema_type: SchemaType = "JSON"

    def __init__(self, text: str, references: Sequence[ReferencedSchema] = ()) -> None:
        check_sizes(text, references)
        self._nodes: dict[int, Node] = {}
        self._true = Node(True, DEFAULT_DRAFT, "", None, ())
        self._false = Node(False, DEFAULT_DRAFT, "", None, ())
        self._resources: dict[str, Node] = {}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._unresolved: list[Node] = []
        self._roots: list[object] = []  # keeps the values alive, since nodes are found by their identity
        self._patterns: dict[str, Pattern | None] = {}
        self._pattern_states = 0
        for each in dict.fromkeys(references):
            try:
                self._add(parse_json(each.schema), each.name)
            except InvalidSchema as error:
                raise InvalidSchema(f"Reference {shortened(each.name)!r}: {error}") from None
        value = parse_json(text)
        self.root = self._add(value, "")
        while self._unresolved:
            self._resolve(self._unresolved.pop())
        _check_ends(list(self._nodes.values()), self)
        self.canonical = json_text(value)
        self.normalized = json_text(value, sort_keys=True)

    def check_unfinished(self) -> None:
        """Properties that start with `$$` are reserved, as in Confluent's registry."""
        for name in self.root.keywords.get("properties", {}):
            if name.startswith("$$"):
                raise InvalidSchema(f"At /properties/{name}: names of properties must not start with $$.")

    def node(self, value: dict[str, Any] | bool) -> Node:
        """The node of a schema inside a node's value."""
        if isinstance(value, bool):
            return self._true if value else self._false
        return self._nodes[id(value)]

    def pattern(self, text: str) -> Pattern | None:
        """The expression, or None if it cannot be decided what it matches."""
        return self._patterns.get(text)

    def _add(self, value: object, name: str) -> Node:
        if not isinstance(value, (dict, bool)):
            raise InvalidSchema(f"The schema is {shortened(json_text(value))}; use an object, true or false.")
        self._roots.append(value)
        node = self._visit(value, _draft_of(value, DEFAULT_DRAFT, None), name, None, ())
        self._resources.setdefault(name, node)
        return node

    def _visit(self, value: object, draft: int, base: str, parent: Node | None, step: tuple[object, ...]) -> Node:
        if isinstance(value, bool):
            if draft == DRAFT_4 and not (step and step[0] in ("additionalProperties", "additionalItems")):
                where = _place(parent, step)
                raise InvalidSchema(f'At {where}: draft 4 has no schemas true and false; use {{}} or {{"not": {{}}}}.')
            return self._true if value else self._false
        if not isinstance(value, dict):
            where = _place(parent, step) or "the root"
            raise InvalidSchema(f"At {where}: {shortened(json_text(value))} is not a schema.")
        schema = cast("dict[str, Any]", value)
        known = self._nodes.get(id(schema))
        if known is not None:
            return known
        node = self._nodes[id(schema)] = Node(schema, draft, base, parent, step)
        node.draft = draft = _draft_of(schema, draft, node)
        stands_alone = draft < DRAFT_2019 and isinstance(schema.get("$ref"), str)
        identifier = schema.get("id" if draft == DRAFT_4 else "$id")
        if isinstance(identifier, str) and not stands_alone:
            node.base = base = self._joined(node, identifier)
            self._register(node, identifier)
        if any(isinstance(schema.get(each), str) for each in _REFERENCE_KEYWORDS):
            self._unresolved.append(node)
        for anchor in ("$anchor", "$dynamicAnchor"):
            if draft >= DRAFT_2019 and isinstance(schema.get(anchor), str):
                self._anchors.setdefault((base, schema[anchor]), node)
        if not stands_alone:
            self._check_keywords(node)
        for keyword, part, below in _parts(node):
            self._visit(part, draft, base, node, (keyword, *below))
        return node

    @staticmethod
    def _joined(node: Node, identifier: str) -> str:
        try:
            base = urldefrag(urljoin(node.base, identifier)).url
            urlsplit(base)
        except ValueError as error:
            raise InvalidSchema(f"At {node.place}: {shortened(identifier)!r} is not a URI: {error}.") from None
        if len(base) > URI_CHARACTERS_MAX:
            raise InvalidSchema(
                f"At {node.place}: the URI {shortened(base)!r} has more than {URI_CHARACTERS_MAX} characters."
            )
        return base

    def _register(self, node: Node, identifier: str) -> None:
        fragment = urldefrag(identifier).fragment
        if fragment:
            self._anchors.setdefault((node.base, fragment), node)
        else:
            self._resources.setdefault(node.base, node)

    def _check_keywords(self, node: Node) -> None:
        schema = node.keywords
        for keyword, (check, first) in _CHECKS.items():
            if keyword in schema and node.draft >= first:
                expected = check(schema[keyword])
                if expected:
                    raise InvalidSchema(_wrong(node, keyword, schema[keyword], expected))
        for keyword in ("exclusiveMaximum", "exclusiveMinimum"):
            if keyword in schema:
                expected = (_boolean if node.draft == DRAFT_4 else _number)(schema[keyword])
                if expected:
                    raise InvalidSchema(_wrong(node, keyword, schema[keyword], expected))
        if node.draft == DRAFT_4:
            for keyword in ("required", "enum"):
                if schema.get(keyword) == []:
                    raise InvalidSchema(_wrong(node, keyword, [], "an array that is not empty"))
        if isinstance(schema.get("pattern"), str):
            self._compile(schema["pattern"], node, "pattern")
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict):
            for each in patterns:
                self._compile(each, node, "patternProperties")

    def _compile(self, text: str, node: Node, keyword: str) -> None:
        if text in self._patterns:
            return
        if self._pattern_states > PATTERN_STATES_MAX:
            self._patterns[text] = None
            return
        try:
            pattern = Pattern(text)
        except PatternError as error:
            raise InvalidSchema(
                f"At {node.path}/{keyword}: {shortened(text)!r} is not a regular expression: {error}."
            ) from None
        self._pattern_states += pattern.size
        self._patterns[text] = pattern

    def _resolve(self, node: Node) -> None:
        """Find what the references of a node lead to. That may be a place no keyword of JSON Schema leads to."""
        schema = cast("dict[str, Any]", node.value)
        for keyword in _REFERENCE_KEYWORDS:
            reference = schema.get(keyword)
            if not isinstance(reference, str) or not _has_reference(node.draft, keyword):
                continue
            node.target.append(self._target(node, reference))

    def _target(self, node: Node, reference: str) -> Node:
        try:
            url, fragment = urldefrag(urljoin(node.base, reference))
            urlsplit(url)
        except ValueError as error:
            raise InvalidSchema(f"At {node.place}: {shortened(reference)!r} is not a URI: {error}.") from None
        # A document without an $id is known by the name of its reference, or by no name.
        resource = self._resources.get(url) or self._resources.get(urldefrag(reference).url)
        if _META_SCHEMA.fullmatch(url) and resource is None:
            return self._true
        fragment = unquote(fragment)
        if resource is None and (url, fragment) not in self._anchors:
            raise InvalidSchema(
                f"At {node.place}: $ref {shortened(reference)!r} leads to {shortened(url)!r}, which is "
                "neither here nor among the references. Nothing is fetched: add a reference with that name."
            )
        if fragment and not fragment.startswith("/"):
            anchor = self._anchors.get((url if resource is None else resource.base, fragment))
            if anchor is None:
                raise InvalidSchema(
                    f"At {node.place}: $ref {shortened(reference)!r} names an anchor that is not there."
                )
            return anchor
        return self._inside(cast("Node", resource), fragment, node, reference)

    def _inside(self, resource: Node, fragment: str, node: Node, reference: str) -> Node:
        value: object = resource.value
        draft, base = resource.draft, resource.base
        parts = [part.replace("~1", "/").replace("~0", "~") for part in fragment.split("/")[1:]]
        for part in parts:
            if isinstance(value, dict) and part in value:
                value = cast("dict[str, object]", value)[part]
            elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(value):
                value = cast("list[object]", value)[int(part)]
            else:
                raise InvalidSchema(
                    f"At {node.place}: $ref {shortened(reference)!r} leads nowhere: there is no {shortened(part)!r}."
                )
            inner = self._nodes.get(id(value))
            if inner is not None:
                draft, base = inner.draft, inner.base
        return self._visit(value, draft, base, resource, tuple(parts))


def _place(parent: Node | None, step: tuple[object, ...]) -> str:
    parts = list(reversed(step))
    while parent is not None:
        parts += reversed(parent.step)
        parent = parent.parent
    return pointer(reversed(parts))


def _wrong(node: Node | None, keyword: str, value: object, expected: str) -> str:
    hint = " of the object that has the property" if keyword == "required" and isinstance(value, bool) else ""
    return (
        f"At {node.path if node else ''}/{keyword}: {shortened(json_text(value))} is not allowed; use {expected}{hint}."
    )


def _has_reference(draft: int, keyword: str) -> bool:
    return keyword == "$ref" or draft == (DRAFT_2019 if keyword == "$recursiveRef" else DRAFT_2020)


def _draft_of(value: object, inherited: int, node: Node | None) -> int:
    if not isinstance(value, dict) or "$schema" not in value:
        return inherited
    uri = value["$schema"]
    if not isinstance(uri, str):
        raise InvalidSchema(_wrong(node, "$schema", uri, "the URI of a draft of JSON Schema"))
    uri = uri.rstrip("#")
    return _DRAFTS.get(uri, _DRAFTS.get(uri.replace("https:", "http:"), inherited))


def _parts(node: Node) -> Iterator[tuple[str, object, tuple[object, ...]]]:
    """The schemas inside a schema, each with its keyword and the way below it. Definitions are there in any case."""
    schema, draft = cast("dict[str, Any]", node.value), node.draft
    stands_alone = draft < DRAFT_2019 and isinstance(schema.get("$ref"), str)
    for keyword, (form, first, last) in _APPLICATORS.items():
        if keyword not in schema or not first <= draft <= last or (stands_alone and keyword != "definitions"):
            continue
        value = schema[keyword]
        if form == _LIST or (form == _ONE_OR_LIST and isinstance(value, list) and draft < DRAFT_2020):
            if not isinstance(value, list) or (form == _LIST and not value):
                raise InvalidSchema(_wrong(node, keyword, value, "an array of schemas that is not empty"))
            for index, each in enumerate(cast("list[object]", value)):
                yield keyword, each, (index,)
        elif form in (_MAP, _DEPENDENCIES):
            if not isinstance(value, dict):
                raise InvalidSchema(_wrong(node, keyword, value, "an object with schemas"))
            for name, each in cast("dict[str, object]", value).items():
                if form == _MAP or not isinstance(each, list):
                    yield keyword, each, (name,)
                elif _names(each):
                    raise InvalidSchema(_wrong(node, f"{keyword}/{name}", each, "an array of different strings"))
        elif isinstance(value, list):
            raise InvalidSchema(_wrong(node, keyword, value, "a schema; in 2020-12, a tuple is written as prefixItems"))
        else:
            yield keyword, value, ()


def active_keywords(node: Node) -> dict[str, Any]:
    """The keywords that the draft of the node knows. Others are annotations."""
    return {keyword: value for keyword, value in node.keywords.items() if _is_active(keyword, node.draft)}


def _is_active(keyword: str, draft: int) -> bool:
    if keyword in _APPLICATORS:
        _, first, last = _APPLICATORS[keyword]
        return first <= draft <= last
    if keyword == "const":
        return draft >= DRAFT_6
    return keyword not in _CHECKS or _CHECKS[keyword][1] <= draft


def in_place(node: Node, schema: JsonSchema) -> Iterator[Node]:
    """The nodes that apply to the same value as this one."""
    yield from node.target
    keywords = node.keywords
    for keyword in _IN_PLACE:
        form, first, last = _APPLICATORS[keyword]
        value = keywords.get(keyword)
        if value is None or isinstance(node.value, bool) or not first <= node.draft <= last:
            continue
        if form == _ONE:
            yield schema.node(value)
        else:
            for each in value if form == _LIST else value.values():
                if not isinstance(each, list):
                    yield schema.node(each)


def _check_ends(nodes: Sequence[Node], schema: JsonSchema) -> None:
    """A schema that leads back to itself has to do so through a part of the data, or validation would never end."""
    finished: set[int] = set()
    for start in nodes:
        if id(start) in finished:
            continue
        under_way = {id(start)}
        stack = [(start, in_place(start, schema))]
        while stack:
            node, following = stack[-1]
            step = next(following, None)
            if step is None:
                stack.pop()
                under_way.discard(id(node))
                finished.add(id(node))
            elif id(step) in under_way:
                raise InvalidSchema(
                    f"At {step.place}: the schema refers to itself without going into a part of the data, "
                    "so validation would never end."
                )
            elif id(step) not in finished:
                under_way.add(id(step))
                stack.append((step, in_place(step, schema)))
