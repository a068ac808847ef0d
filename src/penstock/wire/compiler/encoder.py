"""Writes the encode function of a message in one version.

Pieces are collected in a list and joined once. Adjacent fixed-size values, with the length prefix behind
them and the zero that ends a struct without tagged fields, are one `pack`. Tagged fields with a value are
rare, and written by a function of their own. A message with records is written as chunks: what is large, or
is no buffer at all but a region of a file, is passed on by reference between the joined pieces.

For long messages the same fields are written by a generator, which yields after every so many elements and answers
with chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as struct_error
from struct import pack
from typing import Any

from penstock.wire.compiler import support
from penstock.wire.compiler.decoder import holds_records
from penstock.wire.compiler.plan import ArrayOf, Field, Kind, Struct
from penstock.wire.compiler.source import Run, Source
from penstock.wire.types import BUFFERS, STRING, Primitive, Value

_RUNTIME: dict[str, Any] = {
    "FAULTS": (struct_error, AttributeError, TypeError, ValueError, OverflowError, IndexError),
    "BUFFERS": BUFFERS,
    "pack": pack,
    "repeated": support.repeated,
    "ONE": support.ONE_BYTE,
    "uvarint": support.uvarint,
    "uvarint_within": support.uvarint_within,
    "compact_length": support.compact_length,
    "write_tags": support.write_tags,
    "lost_field": support.lost_field,
    "refuse_encode": support.refuse_encode,
}
_TABLES = {(prefix, code): support.pack_table(prefix, code) for prefix in ("B", "i") for code in ("b", "h", "i", "q")}


def emit_encode(struct: Struct, version: int, *, sliced: bool = False) -> tuple[Callable[..., Any], str]:
    """The compiled function and its source; it answers with bytes, or with chunks if there are records."""
    emitter = _Encoder(struct, version, sliced=sliced)
    return emitter.source.compile("encode", f"encode {struct.message.__name__} v{version}"), emitter.source.text()


class _Encoder:
    def __init__(self, struct: Struct, version: int, *, sliced: bool) -> None:
        self.source = Source(dict(_RUNTIME))
        self._version = version
        self._sliced = sliced
        self._flexible = struct.flexible
        self._run = Run([], [])
        source = self.source
        chunked = holds_records(struct) or sliced
        with source.block("def encode(m):"):
            with source.block("try:"):
                if sliced:
                    source.line("s = 0")
                    source.line("if False: yield")
                source.line("parts = []; a = parts.append")
                if chunked:
                    source.line("chunks = []")
                self._struct(struct, "m")
                self._flush()
                if chunked:
                    source.line("if parts: chunks.append(b''.join(parts))")
                source.line("return chunks" if chunked else "return b''.join(parts)")
            with source.block("except FAULTS as error:"):
                source.line(f"raise refuse_encode(error, {struct.message.__name__!r}, {version}) from error")

    def _flush(self) -> None:
        codes, terms = self._run.take()
        if codes:
            self.source.line(f"a({self.source.packer(codes, 'pack')}({', '.join(terms)}))")

    def _struct(self, struct: Struct, m: str) -> None:
        self._refuse_lost(struct, m)
        for field in struct.fields:
            self._value(field.kind, field.nullable, f"{m}.{field.name}")
        if not struct.flexible:
            return
        source = self.source
        plain = [f"{m}.unknown_tags is None", *(_is_default(source, field, m) for field in struct.tagged)]
        codes, terms = self._run.take()
        with source.block(f"if {' and '.join(plain)}:"):
            packed = f"{source.packer(codes + 'x', 'pack')}({', '.join(terms)})" if codes else "ONE[0]"
            source.line(f"a({packed})")
        with source.block("else:"):
            if codes:
                source.line(f"a({source.packer(codes, 'pack')}({', '.join(terms)}))")
            source.line(
                f"a({self._tagged_writer(struct)}({m}))" if struct.tagged else f"a(write_tags({m}.unknown_tags))"
            )

    def _refuse_lost(self, struct: Struct, m: str) -> None:
        source = self.source
        strict = [field for field in struct.absent if not field.ignorable]
        checks = [f"not ({_is_default(source, field, m)})" for field in strict]
        if not struct.flexible:
            checks.append(f"{m}.unknown_tags")
        if checks:
            defaults = source.constant("L", {field.name: field.default for field in strict})
            source.line(f"if {' or '.join(checks)}: lost_field({m}, {self._version}, {struct.flexible}, {defaults})")

    def _tagged_writer(self, struct: Struct) -> str:
        source, outer_run, outer_sliced = self.source, self._run, self._sliced
        self._run, self._sliced = Run([], []), False
        name = source.name("tagged")
        with source.function(f"def {name}(m):"):
            source.line("tags = dict(m.unknown_tags or ())")
            for field in struct.tagged:
                default = source.constant("D", field.default)
                with source.block(f"if m.{field.name} != {default}:"):
                    source.line("parts = []; a = parts.append")
                    self._value(field.kind, field.nullable, f"m.{field.name}")
                    self._flush()
                    source.line(f"tags[{field.tag}] = b''.join(parts)")
            source.line("return write_tags(tags)")
        self._run, self._sliced = outer_run, outer_sliced
        return name

    def _value(self, kind: Kind, nullable: bool, value: str) -> None:
        source = self.source
        if isinstance(kind, Struct):
            if nullable:
                self._nullable_struct(kind, value)
            else:
                inner = source.name("m")
                source.line(f"{inner} = {value}")
                self._struct(kind, inner)
        elif isinstance(kind, ArrayOf):
            self._array(kind.element, nullable, value)
        elif kind.code:
            self._run.add(kind.code, value)
            if kind.name == "uuid":
                # `struct` would pad or cut silently.
                source.line(f"if len({value}) != 16: raise ValueError('a UUID has 16 bytes')")
        elif kind.name.startswith("uvar"):
            self._flush()
            source.line(f"a(uvarint_within({value}, {32 if kind.name == 'uvarint' else 64}))")
        elif kind.name == "records":
            self._records(nullable, value)
        else:
            self._content(kind, nullable, value)

    def _nullable_struct(self, struct: Struct, value: str) -> None:
        source = self.source
        inner = source.name("m")
        self._flush()
        source.line(f"{inner} = {value}")
        with source.block(f"if {inner} is None:"):
            source.line("a(b'\\xff')")
        with source.block("else:"):
            self._run.add("b", "1")
            self._struct(struct, inner)
            self._flush()

    def _length(self, n: str, code: str, longest: int, *, wide: bool = False) -> None:
        """The prefix in `n` joins the run; in compact form null is 0, and one was added to a real length.

        `wide` where lengths of two bytes are as usual as those of one.
        """
        source = self.source
        if not self._flexible:
            self._run.add(code, n)
            self._flush()
            return
        codes, terms = self._run.take()
        if not codes:
            source.line(f"a(ONE[{n}] if {n} < 128 else compact_length({n}, {longest + 1}))")
            return
        with source.block(f"if {n} < 128:"):
            source.line(f"a({source.packer(codes + 'B', 'pack')}({', '.join([*terms, n])}))")
        if wide:
            with source.block(f"elif {n} < 16384:"):
                two = ", ".join([*terms, f"{n} & 127 | 128", f"{n} >> 7"])
                source.line(f"a({source.packer(codes + 'BB', 'pack')}({two}))")
        with source.block("else:"):
            source.line(f"a({source.packer(codes, 'pack')}({', '.join(terms)}))")
            source.line(f"a(compact_length({n}, {longest + 1}))")

    def _content(self, kind: Primitive, nullable: bool, value: str) -> None:
        source = self.source
        n, s = source.name("n"), source.name("s")
        read = f"{value}.encode()" if kind is STRING else value
        more = " + 1" if self._flexible else ""
        if nullable:
            source.line(f"{s} = {value}")
            source.line(f"if {s} is None: {n} = {0 if self._flexible else -1}; {s} = b''")
            encoded = f"{s} = {s}.encode(); " if kind is STRING else ""
            source.line(f"else: {encoded}{n} = len({s}){more}")
        else:
            source.line(f"{s} = {read}; {n} = len({s}){more}")
        if kind is STRING:
            self._length(n, "h", support.LONGEST_STRING)
        else:
            self._length(n, "i", support.LONGEST_ANYTHING)
        source.line(f"a({s})")

    def _records(self, nullable: bool, value: str) -> None:
        source = self.source
        n, r, more = source.name("n"), source.name("r"), " + 1" if self._flexible else ""
        source.line(f"{r} = {value}")
        if nullable:
            source.line(f"if {r} is None: {n} = {0 if self._flexible else -1}; {r} = b''")
            source.line(f"elif isinstance({r}, BUFFERS): {n} = len({r}){more}")
        else:
            source.line(f"if isinstance({r}, BUFFERS): {n} = len({r}){more}")
        source.line(f"else: {n} = {r}.size{more}")
        self._length(n, "i", support.LONGEST_ANYTHING, wide=True)
        with source.block(f"if {n} < {support.BY_REFERENCE_BYTES} and isinstance({r}, BUFFERS):"):
            source.line(f"a({r})")
        with source.block("else:"):
            source.line(f"chunks.append(b''.join(parts)); chunks.append({r}); parts.clear()")

    def _array(self, element: Primitive | Struct, nullable: bool, value: str) -> None:
        source = self.source
        n, items = source.name("n"), source.name("i")
        more = " + 1" if self._flexible else ""
        source.line(f"{items} = {value}")
        if nullable:
            source.line(f"if {items} is None: {n} = {0 if self._flexible else -1}; {items} = ()")
            source.line(f"else: {n} = len({items}){more}")
        else:
            source.line(f"{n} = len({items}){more}")
        if isinstance(element, Primitive) and element.code in "bhiq" and element.code:
            self._fixed_array(element, n, items)
            return
        self._length(n, "i", support.LONGEST_ANYTHING)
        item = source.name("m")
        with source.block(f"for {item} in {items}:"):
            if self._sliced:
                source.line("s += 1")
                source.line(f"if s > {support.SLICE}: s = 0; chunks.append(b''.join(parts)); parts.clear(); yield")
            if isinstance(element, Struct):
                self._struct(element, item)
            else:
                self._value(element, False, item)
            self._flush()

    def _fixed_array(self, element: Primitive, n: str, items: str) -> None:
        """Count and numbers in one `pack`, from a table by the count."""
        source, code = self.source, element.code
        self._flush()
        prefix = "B" if self._flexible else "i"
        table = f"T_{prefix}{code}"
        source.constants[table] = _TABLES[prefix, code]
        k = f"len({items})"
        with source.block(f"if {n} < {support.TABLE}:"):
            source.line(f"a({table}[{k}]({n}, *{items}))")
        with source.block("else:"):
            source.line(
                f"a(compact_length({n}, {support.LONGEST_ANYTHING}))" if self._flexible else f"a(pack('>i', {n}))"
            )
            source.line(f"a(pack(repeated({code!r}, {k}), *{items}))")


def _is_default(source: Source, field: Field, m: str) -> str:
    """An expression that is true if the field has its default; cheap, and false for an equal `Value`."""
    value = f"{m}.{field.name}"
    if field.default is None or (isinstance(field.default, Value) and not field.fresh):
        return f"{value} is {source.default(field)}"
    if field.default == [] and not field.optional:
        return f"not {value}"
    if type(field.default) in (int, str, bool):
        return f"{value} == {field.default!r}"
    return f"{value} == {source.constant('D', field.default)}"
