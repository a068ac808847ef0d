"""Compiles a message class into functions that read and write one version of it.

`codec_for(ProduceRequest, 9)` compiles on first use and keeps the result; the source fixes the set of messages and
versions. Adjacent fixed-size values and the length prefix after them are one `unpack_from` or `pack`; an array of
fixed-size structs is unpacked at once. While decoding, lengths are never negative, so positions only grow and one check
at the end finds any overrun; only element counts are checked immediately, because they decide how much is built.
Records of 1 KiB or more, and file regions, are passed by reference as chunks.

For long messages the same code is a generator that yields every thousand elements or so, and decoding stops as soon as
a message announces more elements than the caller allows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import starmap
from struct import Struct as Packer
from struct import calcsize, pack, unpack_from
from struct import error as struct_error
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from penstock.wire import primitives
from penstock.wire.errors import EncodeError
from penstock.wire.layout import ArrayOf, Field, Kind, Struct, layout, minimum_size
from penstock.wire.types import BUFFERS, STRING, Buffer, Chunk, M, Message, Primitive, Value

# --------------------------------------------------------------------------------------------------------- source code


class Source:
    """Source lines of functions that are executed in one namespace of constants."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0
        self._packers: dict[str, str] = {}

    def line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def function(self, head: str) -> Iterator[None]:
        """A separate function, placed before the one being written."""
        outer, depth = self._lines, self._depth
        self._lines, self._depth = [], 0
        with self.block(head):
            yield
        self._lines, self._depth = self._lines + outer, depth

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def packer(self, codes: str, method: str) -> str:
        """The name of a bound method (`pack`, `unpack_from`, `iter_unpack`) of a precompiled format."""
        key = f"{method} {codes}"
        if key not in self._packers:
            self._packers[key] = self.constant("S", getattr(Packer(f">{codes}"), method))
        return self._packers[key]

    def default(self, field: Field) -> str:
        """An expression for a field's default; a new object each time if it is mutable."""
        if field.fresh:
            return "[]" if field.factory is list else f"{self.constant('F', field.factory)}()"
        if field.default is None or type(field.default) in (bool, int, str, float):
            return repr(field.default)
        return self.constant("D", field.default)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, name: str, label: str) -> Callable[..., Any]:
        """Execute the source and return one of its functions."""
        namespace = dict(self.constants)
        exec(compile(self.text(), f"<{label}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function


class Run(NamedTuple):
    """Adjacent fixed-size values, read or written by a single `struct` call."""

    codes: list[str]
    terms: list[str]
    """Names to assign when reading, expressions to write when writing."""

    def add(self, code: str, term: str) -> None:
        self.codes.append(code)
        self.terms.append(term)

    def take(self) -> tuple[str, list[str]]:
        codes, terms = "".join(self.codes), self.terms.copy()
        self.codes.clear()
        self.terms.clear()
        return codes, terms


# ------------------------------------------------------------------------------------------------------------- decoder


_DECODE_NAMESPACE: dict[str, Any] = {
    "FAULTS": (IndexError, struct_error, UnicodeDecodeError),
    "starmap": starmap,
    "unpack_from": unpack_from,
    "repeated": primitives.repeated,
    "read_uvarint": primitives.read_uvarint,
    "read_length": primitives.read_length,
    "read_tags": primitives.read_tags,
    "check_tag_end": primitives.check_tag_end,
    "bad_length": primitives.bad_length,
    "bad_count": primitives.bad_count,
    "too_many": primitives.too_many,
    "decode_error": primitives.decode_error,
    "overrun_error": primitives.overrun_error,
}
_UNPACK_TABLES = {code: primitives.unpack_table(code) for code in ("b", "h", "i", "q")}


def emit_decode(struct: Struct, version: int, *, sliced: bool = False) -> tuple[Callable[..., Any], str]:
    """The compiled function and its source."""
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
        self.source = Source(dict(_DECODE_NAMESPACE))
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
                source.line(f"raise decode_error(error, {claim}) from None")
            source.line(f"if p > limit: raise overrun_error({claim}, p, limit)")
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
        """Emit the fields of a struct, and put the expression that builds it into `sink`."""
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
        """A function for the tagged section: known fields are decoded, others kept as bytes."""
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
        """Emit code that reads one value; the name that holds it once the run is flushed."""
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
        """A length prefix, and the content after it unless it is null."""
        source = self.source
        n = source.name("n")
        self._run.add("B" if self._flexible else "h" if kind is STRING else "i", n)
        self._flush()
        if self._flexible:
            self._long_length(kind, n)
        present, is_null = (n, f"not {n}") if self._flexible else (f"{n} >= 0", f"{n} < 0")
        if not nullable:
            source.line(f"if {is_null}: bad_length({label!r}, {-1 if self._flexible else n})")
            self._content(kind, n, label, target)
            return
        with source.block(f"if {present}:"):
            self._content(kind, n, label, target)
        with source.block("else:"):
            if not self._flexible:
                source.line(f"if {n} != -1: bad_length({label!r}, {n})")
            source.line(f"{target} = None")

    def _long_length(self, kind: Primitive | ArrayOf, n: str) -> None:
        """Read the rest of a compact length of several bytes, which is common only for records."""
        source = self.source
        longest = primitives.LONGEST_STRING if kind is STRING else primitives.LONGEST_ANYTHING
        read = f"{n}, p = read_length(b, p, {n}, {longest + 1})"
        if isinstance(kind, ArrayOf) or kind.name != "records":
            source.line(f"if {n} > 127: {read}")
            return
        with source.block(f"if {n} > 127:"):
            source.line("e = b[p]")
            source.line(f"if e < 128: {n} += (e << 7) - 128; p += 1")
            source.line(f"else: {read}")

    def _content(self, kind: Primitive | ArrayOf, n: str, label: str, target: str) -> None:
        """The content. `n` is the prefix as read: in compact form one more than the length."""
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
                source.line(f"if s > {primitives.SLICE}: s = 0; yield")
            if isinstance(element, Struct):
                self._struct(element, f"{append}({{}})")
            else:
                value = self._value(element, False, label)
                self._flush()
                source.line(f"{append}({value})")

    def _fixed_array(self, element: Primitive, n: str, check: str, target: str) -> None:
        source, code = self.source, element.code
        if code not in _UNPACK_TABLES:
            source.line(check)
            source.line(f"{target} = list(unpack_from(repeated({code!r}, {n}), b, p)); p += {n} * {element.size}")
            return
        table = f"T_{code}"
        source.constants[table] = _UNPACK_TABLES[code]
        # A short array needs no check: unpacking beyond the end raises.
        source.line(f"if {n} < {primitives.TABLE}: {target} = list({table}[{n}](b, p))")
        with source.block("else:"):
            source.line(check)
            source.line(f"{target} = list(unpack_from(repeated({code!r}, {n}), b, p))")
        source.line(f"p += {n} * {element.size}")

    def _fixed_structs(self, struct: Struct, n: str, size: int, label: str, target: str) -> None:
        """All elements at once. Elements with tagged fields are longer and take the loop instead."""
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


# ------------------------------------------------------------------------------------------------------------- encoder


_ENCODE_NAMESPACE: dict[str, Any] = {
    "FAULTS": (struct_error, AttributeError, TypeError, ValueError, OverflowError, IndexError),
    "BUFFERS": BUFFERS,
    "pack": pack,
    "repeated": primitives.repeated,
    "ONE": primitives.ONE_BYTE,
    "uvarint": primitives.uvarint,
    "uvarint_within": primitives.uvarint_within,
    "compact_length": primitives.compact_length,
    "write_tags": primitives.write_tags,
    "lost_field": primitives.lost_field,
    "encode_error": primitives.encode_error,
}
_PACK_TABLES = {
    (prefix, code): primitives.pack_table(prefix, code) for prefix in ("B", "i") for code in ("b", "h", "i", "q")
}


def emit_encode(struct: Struct, version: int, *, sliced: bool = False) -> tuple[Callable[..., Any], str]:
    """The compiled function and its source. It returns bytes, or chunks if the message has records."""
    emitter = _Encoder(struct, version, sliced=sliced)
    return emitter.source.compile("encode", f"encode {struct.message.__name__} v{version}"), emitter.source.text()


class _Encoder:
    def __init__(self, struct: Struct, version: int, *, sliced: bool) -> None:
        self.source = Source(dict(_ENCODE_NAMESPACE))
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
                source.line(f"raise encode_error(error, {struct.message.__name__!r}, {version}) from error")

    def _flush(self) -> None:
        codes, terms = self._run.take()
        if codes:
            self.source.line(f"a({self.source.packer(codes, 'pack')}({', '.join(terms)}))")

    def _struct(self, struct: Struct, m: str) -> None:
        self._check_absent_fields(struct, m)
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

    def _check_absent_fields(self, struct: Struct, m: str) -> None:
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
                # `struct` would pad or truncate silently.
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
        """Add the prefix in `n` to the run. In compact form null is 0, and one was added to a real length.

        `wide`: lengths of two bytes are as common as those of one.
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
            self._length(n, "h", primitives.LONGEST_STRING)
        else:
            self._length(n, "i", primitives.LONGEST_ANYTHING)
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
        self._length(n, "i", primitives.LONGEST_ANYTHING, wide=True)
        with source.block(f"if {n} < {primitives.BY_REFERENCE_BYTES} and isinstance({r}, BUFFERS):"):
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
        self._length(n, "i", primitives.LONGEST_ANYTHING)
        item = source.name("m")
        with source.block(f"for {item} in {items}:"):
            if self._sliced:
                source.line("s += 1")
                source.line(f"if s > {primitives.SLICE}: s = 0; chunks.append(b''.join(parts)); parts.clear(); yield")
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
        source.constants[table] = _PACK_TABLES[prefix, code]
        k = f"len({items})"
        with source.block(f"if {n} < {primitives.TABLE}:"):
            source.line(f"a({table}[{k}]({n}, *{items}))")
        with source.block("else:"):
            source.line(
                f"a(compact_length({n}, {primitives.LONGEST_ANYTHING}))" if self._flexible else f"a(pack('>i', {n}))"
            )
            source.line(f"a(pack(repeated({code!r}, {k}), *{items}))")


def _is_default(source: Source, field: Field, m: str) -> str:
    """A cheap expression that is true if the field has its default; it is false for an equal `Value`."""
    value = f"{m}.{field.name}"
    if field.default is None or (isinstance(field.default, Value) and not field.fresh):
        return f"{value} is {source.default(field)}"
    if field.default == [] and not field.optional:
        return f"not {value}"
    if type(field.default) in (int, str, bool):
        return f"{value} == {field.default!r}"
    return f"{value} == {source.constant('D', field.default)}"


# --------------------------------------------------------------------------------------------------------------- codec


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Decode(Protocol[M_co]):
    """An emitted decode function."""

    def __call__(self, buffer: Buffer, position: int = 0, /) -> tuple[M_co, int]: ...


class Codec(Generic[M]):
    """Reads and writes one message class in one version.

    - `decode(buffer, position=0)` returns the message and the position after it. Records are views of `buffer`;
      everything else is copied.
    - `encode(message)` returns bytes.
    - `encode_chunks(message)` returns a list of chunks to send one after the other. Records of at least 1 KiB, and
      regions, are chunks of their own; they are not copied, so they must not change until they are sent.
    - `decode_slices(buffer, position, most_elements)` and `encode_slices(message)` are generators for long messages.
      They yield about every thousand elements, and return what `decode` and `encode_chunks` would. TooManyElements as
      soon as a message announces more than `most_elements` in all its arrays.
    """

    __slots__ = (
        "_decode_slices", "_encode_slices", "_struct", "decode", "decode_source", "encode", "encode_chunks",
        "encode_source", "message", "version",
    )  # fmt: skip

    decode: Decode[M]
    encode: Callable[[M], bytes]
    encode_chunks: Callable[[M], list[Chunk]]

    def __init__(self, message: type[M], version: int) -> None:
        self._struct = struct = layout(message, version)
        self._decode_slices: Callable[..., Generator[None, None, tuple[M, int]]] | None = None
        self._encode_slices: Callable[..., Generator[None, None, list[Chunk]]] | None = None
        self.message = message
        self.version = version
        self.decode, self.decode_source = emit_decode(struct, version)
        write, self.encode_source = emit_encode(struct, version)
        if holds_records(struct):
            self.encode_chunks = write
            self.encode = _joined(write)
        else:
            self.encode = write
            self.encode_chunks = lambda message: [write(message)]

    def decode_slices(self, buffer: Buffer, position: int, most_elements: int) -> Generator[None, None, tuple[M, int]]:
        if self._decode_slices is None:
            self._decode_slices, _ = emit_decode(self._struct, self.version, sliced=True)
        return self._decode_slices(buffer, position, most_elements)

    def encode_slices(self, message: M) -> Generator[None, None, list[Chunk]]:
        return self.prepare_encode_slices()(message)

    def prepare_encode_slices(self) -> Callable[..., Generator[None, None, list[Chunk]]]:
        """Compile what `encode_slices` needs, which takes milliseconds, before it is needed."""
        if self._encode_slices is None:
            self._encode_slices, _ = emit_encode(self._struct, self.version, sliced=True)
        return self._encode_slices


def _joined(write: Callable[[Any], list[Chunk]]) -> Callable[[Any], bytes]:
    def encode(message: Any) -> bytes:
        chunks = write(message)
        if not all(isinstance(chunk, BUFFERS) for chunk in chunks):
            raise EncodeError("a message with file regions can only be encoded as chunks")
        return b"".join(cast("list[bytes]", chunks))

    return encode


_codecs: Final[dict[tuple[type[Message], int], Codec[Any]]] = {}


def codec_for(message: type[M], version: int) -> Codec[M]:
    """The codec of a message class in a version. Raises UnknownVersion if the schema does not have it."""
    codec = _codecs.get((message, version))
    if codec is None:
        codec = _codecs[message, version] = Codec(message, version)
    return cast("Codec[M]", codec)
