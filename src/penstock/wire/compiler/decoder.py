"""Writes the decode function of a message in one version.

The function reads straight through, nested loops and all, with three ideas to be fast. Adjacent fixed-size
values, and the length prefix that follows them, are one `unpack_from`. Bounds are not checked at every
step: lengths are never negative, so a position only grows, and one comparison at the end finds any overrun;
until then slices beyond the end are empty and take no memory. Only counts are checked at once, against the
bytes that are left, since a count decides how much is built. And an array of structs of fixed size is
unpacked as a whole.

For long messages the same fields are read by a generator. It yields after every so many elements, so that its caller
can serve others in between, and gives up as soon as a message announces more elements than the caller allows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from struct import calcsize, unpack_from
from struct import error as struct_error
from typing import Any

from penstock.wire.compiler import support
from penstock.wire.compiler.plan import ArrayOf, Field, Kind, Struct, minimum_size
from penstock.wire.compiler.source import Run, Source
from penstock.wire.types import STRING, Primitive

_RUNTIME: dict[str, Any] = {
    "FAULTS": (IndexError, struct_error, UnicodeDecodeError),
    "starmap": starmap,
    "unpack_from": unpack_from,
    "repeated": support.repeated,
    "read_uvarint": support.read_uvarint,
    "read_length": support.read_length,
    "read_tags": support.read_tags,
    "check_tag_end": support.check_tag_end,
    "bad_length": support.bad_length,
    "bad_count": support.bad_count,
    "too_many": support.too_many,
    "refuse_decode": support.refuse_decode,
    "refuse_overrun": support.refuse_overrun,
}
_TABLES = {code: support.unpack_table(code) for code in ("b", "h", "i", "q")}


def emit_decode(struct: Struct, version: int, *, sliced: bool = False) -> tuple[Callable[..., Any], str]:
    """The compiled function, and its source for those who want to read it."""
    emitter = _Decoder(struct, version, sliced=sliced)
    return emitter.source.compile("decode", f"decode {struct.message.__name__} v{version}"), emitter.source.text()


def holds_records(kind: Kind) -> bool:
    if isinstance(kind, ArrayOf):
        return holds_records(kind.element)
    if isinstance(kind, Struct):
        return any(holds_records(field.kind) for field in kind.fields + kind.tagged)
    return kind.name == "records"


class _Decoder:
    def __init__(self, struct: Struct, version: int, *, sliced: bool) -> None:
        self.source = Source(dict(_RUNTIME))
        self._flexible = struct.flexible
        self._sliced = sliced
        # Records are views of the buffer itself; without any, one copy into `bytes` makes the rest faster.
        self._views = holds_records(struct) or sliced
        self._run = Run([], [])
        source = self.source
        claim = f"{struct.message.__name__!r}, {version}"
        with source.block("def decode(b, p, left):" if sliced else "def decode(b, p=0):"):
            with source.block("try:"):
                if sliced:
                    source.line("s = 0; u = None")
                    source.line("if False: yield")
                source.line("v = memoryview(b)" if self._views else "if type(b) is not bytes: b = bytes(b)")
                source.line("limit = len(b)")
                self._struct(struct, "m = {}")
            with source.block("except FAULTS as error:"):
                source.line(f"raise refuse_decode(error, {claim}) from None")
            source.line(f"if p > limit: raise refuse_overrun({claim}, p, limit)")
            source.line("return m, p")

    def _flush(self) -> None:
        codes, names = self._run.take()
        if not codes:
            return
        if codes == "B":
            self.source.line(f"{names[0]} = b[p]; p += 1")
            return
        targets = ", ".join(names) + ("," if len(names) == 1 else "")
        self.source.line(f"{targets} = {self.source.packer(codes, 'unpack_from')}(b, p); p += {calcsize('>' + codes)}")

    def _struct(self, struct: Struct, sink: str) -> None:
        """Emits the fields of a struct, and hands the expression that builds it to `sink`."""
        source = self.source
        values = {field.name: self._value(field.kind, field.nullable, _label(struct, field)) for field in struct.fields}
        cls = source.constant("C", struct.message)
        if not struct.flexible:
            self._flush()
            source.line(sink.format(self._build(struct, cls, values)))
            return
        count = source.name("t")
        self._run.add("B", count)
        self._flush()
        with source.block(f"if {count}:"):
            known = {field.name: source.name("k") for field in struct.tagged}
            if known:
                reader = self._tagged_reader(struct)
                source.line(f"{', '.join(known.values())}, u, p = {reader}(b, p, {count})")
            else:
                source.line(f"u, p = read_tags(b, p, {count})")
            if self._sliced:
                source.line("if u: left -= len(u); s += len(u)")
                source.line(f"if left < 0: too_many({struct.message.__name__!r})")
            source.line(sink.format(self._build(struct, cls, values | known, "u")))
        with source.block("else:"):
            source.line(sink.format(self._build(struct, cls, values)))

    def _build(self, struct: Struct, cls: str, values: dict[str, str], unknown: str = "") -> str:
        defaults = {field.name: field for field in struct.tagged + struct.absent}
        names = [name for name in struct.message.__struct_fields__ if name != "unknown_tags"]
        while names and names[-1] not in values:
            names.pop()
        arguments = [values[name] if name in values else self.source.default(defaults[name]) for name in names]
        if unknown:
            arguments.append(f"unknown_tags={unknown}")
        return f"{cls}({', '.join(arguments)})"

    def _tagged_reader(self, struct: Struct) -> str:
        """A function for the rare section: known fields decoded, the others kept as bytes."""
        source, outer_run, outer_views, outer_sliced = self.source, self._run, self._views, self._sliced
        self._run, self._views, self._sliced = Run([], []), False, False
        name = source.name("tagged")
        with source.function(f"def {name}(b, p, t):"):
            source.line("tags, end = read_tags(b, p, t)")
            results = []
            for field in struct.tagged:
                result = source.name("r")
                results.append(result)
                source.line(f"{result} = {source.default(field)}")
                source.line(f"b = tags.pop({field.tag}, None)")
                with source.block("if b is not None:"):
                    source.line("p = 0; limit = len(b)")
                    value = self._value(field.kind, field.nullable, _label(struct, field))
                    self._flush()
                    source.line(f"check_tag_end({field.tag}, p, limit)")
                    source.line(f"{result} = {value}")
            source.line(f"return {', '.join(results)}, tags or None, end")
        self._run, self._views, self._sliced = outer_run, outer_views, outer_sliced
        return name

    def _value(self, kind: Kind, nullable: bool, label: str) -> str:
        """Emits what reads one value, and answers with the name that will hold it once the run is flushed."""
        source = self.source
        target = source.name("x")
        if isinstance(kind, Struct):
            if nullable:
                self._nullable_struct(kind, label, target)
            else:
                self._struct(kind, f"{target} = {{}}")
        elif isinstance(kind, Primitive) and kind.code:
            self._run.add(kind.code, target)
        elif isinstance(kind, Primitive) and kind.name.startswith("uvar"):
            self._run.add("B", target)
            self._flush()
            bits = 32 if kind.name == "uvarint" else 64
            source.line(f"if {target} > 127: {target}, p = read_uvarint(b, p, {target}, {bits})")
        else:
            self._lengthy(kind, nullable, label, target)
        return target

    def _nullable_struct(self, struct: Struct, label: str, target: str) -> None:
        source = self.source
        present = source.name("n")
        self._run.add("b", present)
        self._flush()
        with source.block(f"if {present} == 1:"):
            self._struct(struct, f"{target} = {{}}")
        with source.block("else:"):
            source.line(f"if {present} != -1: bad_length({label!r}, {present})")
            source.line(f"{target} = None")

    def _lengthy(self, kind: Primitive | ArrayOf, nullable: bool, label: str, target: str) -> None:
        """A length prefix, and the content behind it unless it is null."""
        source = self.source
        n = source.name("n")
        self._run.add("B" if self._flexible else "h" if kind is STRING else "i", n)
        self._flush()
        if self._flexible:
            self._long_length(kind, n)
        there, refusal = (n, f"not {n}") if self._flexible else (f"{n} >= 0", f"{n} < 0")
        if not nullable:
            source.line(f"if {refusal}: bad_length({label!r}, {-1 if self._flexible else n})")
            self._content(kind, n, label, target)
            return
        with source.block(f"if {there}:"):
            self._content(kind, n, label, target)
        with source.block("else:"):
            if not self._flexible:
                source.line(f"if {n} != -1: bad_length({label!r}, {n})")
            source.line(f"{target} = None")

    def _long_length(self, kind: Primitive | ArrayOf, n: str) -> None:
        """Goes on where the first byte of a compact length is not the last, which is usual with records only."""
        source = self.source
        longest = support.LONGEST_STRING if kind is STRING else support.LONGEST_ANYTHING
        read = f"{n}, p = read_length(b, p, {n}, {longest + 1})"
        if isinstance(kind, ArrayOf) or kind.name != "records":
            source.line(f"if {n} > 127: {read}")
            return
        with source.block(f"if {n} > 127:"):
            source.line("e = b[p]")
            source.line(f"if e < 128: {n} += (e << 7) - 128; p += 1")
            source.line(f"else: {read}")

    def _content(self, kind: Primitive | ArrayOf, n: str, label: str, target: str) -> None:
        """What a prefix announces; `n` is the prefix as read, so in compact form one more than the length."""
        if isinstance(kind, ArrayOf):
            self._array(kind, n, label, target)
            return
        self.source.line(f"e = p + {n} - 1" if self._flexible else f"e = p + {n}")
        if kind is STRING:
            text = "str(b[p:e], 'utf-8')" if self._views else "b[p:e].decode()"
        elif kind.name == "records":
            text = "v[p:e]"
        else:
            text = "bytes(b[p:e])" if self._views else "b[p:e]"
        self.source.line(f"{target} = {text}; p = e")

    def _array(self, kind: ArrayOf, n: str, label: str, target: str) -> None:
        source, element = self.source, kind.element
        if self._flexible:
            source.line(f"{n} -= 1")
        if self._sliced:
            source.line(f"left -= {n}")
            source.line(f"if left < 0: too_many({label!r})")
        size = max(1, minimum_size(element, False, self._flexible))
        check = f"if {n} * {size} > limit - p: bad_count({label!r}, {n}, limit - p)"
        if isinstance(element, Primitive) and element.code:
            self._fixed_array(element, n, check, target)
            return
        source.line(check)
        if not self._sliced and isinstance(element, Struct) and all(_is_fixed(field) for field in element.fields):
            self._fixed_structs(element, n, size, label, target)
            return
        self._loop(element, n, label, target)

    def _loop(self, element: Primitive | Struct, n: str, label: str, target: str) -> None:
        source = self.source
        append = source.name("a")
        source.line(f"{target} = []; {append} = {target}.append")
        with source.block(f"for _ in range({n}):"):
            if self._sliced:
                source.line("s += 1")
                source.line(f"if s > {support.SLICE}: s = 0; yield")
            if isinstance(element, Struct):
                self._struct(element, f"{append}({{}})")
            else:
                value = self._value(element, False, label)
                self._flush()
                source.line(f"{append}({value})")

    def _fixed_array(self, element: Primitive, n: str, check: str, target: str) -> None:
        source, code = self.source, element.code
        if code not in _TABLES:
            source.line(check)
            source.line(f"{target} = list(unpack_from(repeated({code!r}, {n}), b, p)); p += {n} * {element.size}")
            return
        table = f"T_{code}"
        source.constants[table] = _TABLES[code]
        # A short array needs no check of its own: unpacking refuses what is not there.
        source.line(f"if {n} < {support.TABLE}: {target} = list({table}[{n}](b, p))")
        with source.block("else:"):
            source.line(check)
            source.line(f"{target} = list(unpack_from(repeated({code!r}, {n}), b, p))")
        source.line(f"p += {n} * {element.size}")

    def _fixed_structs(self, struct: Struct, n: str, size: int, label: str, target: str) -> None:
        """All elements at once; those with tagged fields, which are longer, take the loop instead."""
        source = self.source
        codes = "".join(field.kind.code for field in struct.fields if isinstance(field.kind, Primitive))
        names = [field.name for field in struct.fields]
        unpack = source.packer(codes + ("x" if struct.flexible else ""), "iter_unpack")
        cls = source.constant("C", struct.message)
        if list(struct.message.__struct_fields__[: len(names)]) == names:
            items = f"list(starmap({cls}, {unpack}(w)))"
        else:
            values = {name: source.name("x") for name in names}
            items = f"[{self._build(struct, cls, values)} for {', '.join(values.values())}, in {unpack}(w)]"
        raw = "bytes(b[p:e])" if self._views else "b[p:e]"
        source.line(f"e = p + {n} * {size}; w = {raw}")
        if not struct.flexible:
            source.line(f"{target} = {items}; p = e")
            return
        with source.block(f"if w[{size - 1}::{size}].count(0) == {n}:"):
            source.line(f"{target} = {items}; p = e")
        with source.block("else:"):
            self._loop(struct, n, label, target)


def _is_fixed(field: Field) -> bool:
    return isinstance(field.kind, Primitive) and bool(field.kind.code) and not field.nullable


def _label(struct: Struct, field: Field) -> str:
    return f"{struct.message.__name__}.{field.name}"
