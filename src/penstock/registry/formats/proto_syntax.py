"""The language of .proto files: proto2, proto3 and editions, from text to declarations. Pure.

The grammar is that of the language specifications. Whether names exist and numbers may be used is decided later, in
`protobuf`: the parser only says where the text is not a .proto file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.registry.formats.schema import InvalidSchema, shortened

SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)
# As in protoc.
NESTING_MAX = 32
NUMBER_MAX = 2**29 - 1
ENUM_MAX = 2**31 - 1
ENUM_MIN = -(2**31)
_LABELS = ("optional", "required", "repeated")
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<symbol>[{}\[\]()<>=;:,.+\-/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    rb"|u(?P<unicode>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<one>.))",
    re.DOTALL,
)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of an option: `kind` is word, number or string."""

    kind: str
    text: str = ""
    data: bytes = b""  # of a string


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value in braces."""

    entries: tuple[tuple[str, OptionValue], ...]


OptionValue = Scalar | Aggregate | tuple["OptionValue", ...]


@dataclass(frozen=True, slots=True)
class Option:
    """An option. A name in parentheses is that of an extension."""

    name: str
    value: OptionValue


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(slots=True)
class Field:
    """A field. A map has the type of its keys, a group the message that it declares."""

    name: str
    number: int
    type: str
    label: str = ""
    options: list[Option] = field(default_factory=list)
    key: str = ""
    group: Message | None = None


@dataclass(slots=True)
class Oneof:
    name: str
    fields: list[Field] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Reserved:
    """Numbers and names that must not be used, or, as extensions, are for others."""

    ranges: list[Range] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class EnumValue:
    name: str
    number: int
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Enum:
    name: str
    values: list[EnumValue] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)


@dataclass(slots=True)
class Extend:
    type: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class Message:
    name: str
    fields: list[Field] = field(default_factory=list)
    oneofs: list[Oneof] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    enums: list[Enum] = field(default_factory=list)
    extensions: list[Reserved] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)

    @property
    def all_fields(self) -> list[Field]:
        """The fields, with those of oneofs."""
        return [*self.fields, *(each for oneof in self.oneofs for each in oneof.fields)]


@dataclass(slots=True)
class Method:
    name: str
    input: str
    output: str
    input_stream: bool = False
    output_stream: bool = False
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Service:
    name: str
    methods: list[Method] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Import:
    path: str
    kind: str = ""  # public or weak


@dataclass(slots=True)
class File:
    """A .proto file. `syntax` is empty where the text does not name one, which means proto2."""

    syntax: str = ""
    edition: str = ""
    package: str = ""
    imports: list[Import] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    enums: list[Enum] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)


def parse_proto(text: str) -> File:
    """The declarations of a .proto file.

    :raises InvalidSchema: with the line and what was expected there
    """
    return _Parser(text).file()


class _Parser:
    """Recursive descent with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # where the look-ahead ends
        self._begin = 0
        self._kind = ""  # of the look-ahead; empty at the end
        self._token = ""
        self._depth = 0
        self._advance()

    def _advance(self) -> str:
        """Take the look-ahead."""
        taken = self._token
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                self._begin = self._at
                self._fail(f"unexpected {self._text[self._at : self._at + 10]!r}")
            self._begin, self._at = match.start(), match.end()
            if match.group() == "/" and self._text.startswith("*", self._at):
                self._fail("a comment is not closed")
            if match.lastgroup != "blank":
                self._kind, self._token = match.lastgroup or "", match.group()
                return taken
        self._kind = self._token = ""
        self._begin = self._at
        return taken

    def _fail(self, problem: str) -> NoReturn:
        line = self._text.count("\n", 0, self._begin) + 1
        column = self._begin - self._text.rfind("\n", 0, self._begin)
        raise InvalidSchema(f"At line {line}, column {column}: {problem}.")

    def _expected(self, what: str) -> NoReturn:
        self._fail(f"expected {what}, found {shortened(repr(self._token)) if self._token else 'the end'}")

    def _expect(self, token: str) -> None:
        if self._token != token or self._kind == "string":
            self._expected(repr(token))
        self._advance()

    def _skip(self, token: str) -> bool:
        if self._token == token and self._kind != "string":
            self._advance()
            return True
        return False

    def _word(self, what: str = "a name") -> str:
        if self._kind != "word":
            self._expected(what)
        return self._advance()

    def _dotted(self, what: str = "a name") -> str:
        name = "." if self._skip(".") else ""
        name += self._word(what)
        while self._skip("."):
            name += "." + self._word(what)
        return name

    def _string(self) -> bytes:
        """One or more strings after one another."""
        if self._kind != "string":
            self._expected("a string")
        parts: list[bytes] = []
        while self._kind == "string":
            parts.append(self._unescaped(self._token[1:-1]))
            self._advance()
        return b"".join(parts)

    def _unescaped(self, text: str) -> bytes:
        def replaced(match: re.Match[bytes]) -> bytes:
            if match["octal"]:
                return bytes([int(match["octal"], 8) & 0xFF])
            if match["hex"]:
                return bytes([int(match["hex"], 16)])
            code = match["unicode"] or match["long"]
            if code:
                number = int(code, 16)
                if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                    self._fail(f"\\{code.decode()} is not a character")
                return chr(number).encode()
            return _ESCAPES.get(match["one"], match["one"])

        try:
            data = text.encode()
        except UnicodeEncodeError:
            self._fail("a string has half of a surrogate pair")
        return _ESCAPE.sub(replaced, data)

    def _name_string(self) -> str:
        try:
            return self._string().decode()
        except UnicodeDecodeError:
            self._fail("the string is not UTF-8")

    def _integer(self, what: str, low: int, high: int) -> int:
        negative = low < 0 and self._skip("-")
        if self._kind != "number" or not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", self._token):
            self._expected(what)
        octal = self._token.startswith("0") and self._token.isdigit() and len(self._token) > 1
        try:
            value = int(self._token, 8 if octal else 0)
        except ValueError:
            self._expected(what)
        value = -value if negative else value
        if not low <= value <= high:
            self._fail(f"{what} is {value}; it has to be between {low} and {high}")
        self._advance()
        return value

    def file(self) -> File:
        file = File()
        if self._token in ("syntax", "edition"):
            keyword = self._advance()
            self._expect("=")
            value = self._name_string()
            self._expect(";")
            if keyword == "syntax" and value not in ("proto2", "proto3"):
                self._fail(f"syntax is {shortened(value)!r}, not 'proto2' or 'proto3'")
            if keyword == "syntax":
                file.syntax = value
            else:
                file.edition = value
        while self._kind:
            self._file_statement(file)
        return file

    def _file_statement(self, file: File) -> None:
        match self._token:
            case ";":
                self._advance()
            case "package":
                self._advance()
                if file.package:
                    self._fail("there is more than one package")
                file.package = self._dotted()
                self._expect(";")
            case "import":
                self._advance()
                kind = "public" if self._skip("public") else "weak" if self._skip("weak") else ""
                file.imports.append(Import(self._name_string(), kind))
                self._expect(";")
            case "option":
                file.options.append(self._option_statement())
            case "message":
                file.messages.append(self._message())
            case "enum":
                file.enums.append(self._enum())
            case "extend":
                file.extends.append(self._extend(file.messages))
            case "service":
                file.services.append(self._service())
            case _:
                self._expected("message, enum, extend, service, import, option or package")

    def _block(self, statement: Callable[[], None]) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(f"declarations are nested more than {NESTING_MAX} deep")
        self._expect("{")
        while not self._skip("}"):
            if not self._kind:
                self._expected("'}'")
            if not self._skip(";"):
                statement()
        self._depth -= 1

    def _message(self) -> Message:
        self._expect("message")
        message = Message(self._word())
        self._block(lambda: self._message_statement(message))
        return message

    def _message_statement(self, message: Message) -> None:
        match self._token:
            case "message":
                message.messages.append(self._message())
            case "enum":
                message.enums.append(self._enum())
            case "oneof":
                message.oneofs.append(self._oneof(message))
            case "extend":
                message.extends.append(self._extend(message.messages))
            case "extensions":
                message.extensions.append(self._reserved(NUMBER_MAX, 1))
            case "reserved":
                message.reserved.append(self._reserved(NUMBER_MAX, 1))
            case "option":
                message.options.append(self._option_statement())
            case _:
                message.fields.append(self._field(message.messages))

    def _oneof(self, message: Message) -> Oneof:
        self._expect("oneof")
        oneof = Oneof(self._word())

        def statement() -> None:
            if self._token == "option":
                oneof.options.append(self._option_statement())
            elif self._token in _LABELS or self._token == "map":
                self._fail("a field of a oneof has no label and is not a map")
            else:
                oneof.fields.append(self._field(message.messages))

        self._block(statement)
        return oneof

    def _field(self, groups: list[Message]) -> Field:
        label = self._advance() if self._token in _LABELS else ""
        if self._kind not in ("word", "symbol") or self._token not in (
            ".",
            self._token if self._kind == "word" else "",
        ):
            self._expected("a field, message, enum, oneof, option, reserved, extensions or '}'")
        type_ = self._dotted("a type")
        key = ""
        if type_ == "map" and self._skip("<"):
            if label:
                self._fail("a map has no label")
            if self._token not in SCALARS:
                self._expected("a scalar type of the keys")
            key = self._advance()
            self._expect(",")
            type_ = self._dotted("the type of the values")
            self._expect(">")
        name = self._word("the name of the field")
        self._expect("=")
        number = self._integer(f"the number of field {name!r}", 1, NUMBER_MAX)
        options = self._options()
        if type_ == "group" and self._token == "{":
            group = Message(name)
            self._block(lambda: self._message_statement(group))
            groups.append(group)
            return Field(name.lower(), number, name, label, options, group=group)
        self._expect(";")
        return Field(name, number, type_, label, options, key)

    def _enum(self) -> Enum:
        self._expect("enum")
        enum = Enum(self._word())

        def statement() -> None:
            if self._token == "option":
                enum.options.append(self._option_statement())
            elif self._token == "reserved":
                enum.reserved.append(self._reserved(ENUM_MAX, ENUM_MIN))
            else:
                name = self._word("the name of a value")
                self._expect("=")
                number = self._integer(f"the number of {name!r}", ENUM_MIN, ENUM_MAX)
                enum.values.append(EnumValue(name, number, self._options()))
                self._expect(";")

        self._block(statement)
        return enum

    def _reserved(self, high: int, low: int) -> Reserved:
        reserved = Reserved()
        self._advance()
        while True:
            if self._kind == "string":
                reserved.names.append(self._name_string())
            elif self._kind == "word":
                reserved.names.append(self._advance())
            else:
                first = last = self._integer("a number", low, high)
                if self._skip("to"):
                    last = high if self._skip("max") else self._integer("a number", low, high)
                if last < first:
                    self._fail(f"the range {first} to {last} is empty")
                reserved.ranges.append(Range(first, last))
            if not self._skip(","):
                break
        reserved.options = self._options()
        self._expect(";")
        return reserved

    def _extend(self, groups: list[Message]) -> Extend:
        self._expect("extend")
        extend = Extend(self._dotted("a message"))
        self._block(lambda: extend.fields.append(self._field(groups)))
        return extend

    def _service(self) -> Service:
        self._expect("service")
        service = Service(self._word())

        def statement() -> None:
            if self._token == "option":
                service.options.append(self._option_statement())
            else:
                service.methods.append(self._method())

        self._block(statement)
        return service

    def _method(self) -> Method:
        self._expect("rpc")
        name = self._word()
        input_, input_stream = self._method_type()
        self._expect("returns")
        output, output_stream = self._method_type()
        method = Method(name, input_, output, input_stream, output_stream)
        if self._token == "{":
            self._block(lambda: method.options.append(self._option_statement()))
        else:
            self._expect(";")
        return method

    def _method_type(self) -> tuple[str, bool]:
        self._expect("(")
        stream = self._skip("stream")  # a word of the language here, so no type can be named like this
        name = self._dotted("a message")
        self._expect(")")
        return name, stream

    def _option_statement(self) -> Option:
        self._expect("option")
        option = self._option()
        self._expect(";")
        return option

    def _options(self) -> list[Option]:
        if not self._skip("["):
            return []
        options = [self._option()]
        while self._skip(","):
            options.append(self._option())
        self._expect("]")
        return options

    def _option(self) -> Option:
        name = self._option_name_part()
        while self._skip("."):
            name += "." + self._option_name_part()
        self._expect("=")
        return Option(name, self._option_value())

    def _option_name_part(self) -> str:
        if self._skip("("):
            name = self._dotted("an extension")
            self._expect(")")
            return f"({name})"
        return self._word("the name of an option")

    def _option_value(self) -> OptionValue:
        if self._token == "{" and self._kind == "symbol":
            return self._aggregate("{", "}")
        return self._scalar()

    def _scalar(self) -> Scalar:
        if self._kind == "string":
            return Scalar("string", data=self._string())
        sign = "-" if self._skip("-") else ""
        if self._kind == "number":
            return Scalar("number", sign + self._advance())
        if self._kind == "word":
            if sign and self._token not in ("inf", "nan"):
                self._expected("a number")
            return Scalar("number" if sign else "word", sign + self._dotted())
        return self._expected("a value")

    def _aggregate(self, opening: str, closing: str) -> Aggregate:
        """The text format: names with values, separated by nothing, commas or semicolons."""
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(f"values are nested more than {NESTING_MAX} deep")
        self._expect(opening)
        entries: list[tuple[str, OptionValue]] = []
        while not self._skip(closing):
            if self._skip("["):
                name = self._dotted("an extension")
                while self._skip("/"):
                    name += "/" + self._dotted()
                self._expect("]")
                name = f"[{name}]"
            else:
                name = self._word()
            colon = self._skip(":")
            entries.append((name, self._aggregate_value(colon=colon)))
            if not self._skip(","):
                self._skip(";")
        self._depth -= 1
        return Aggregate(tuple(entries))

    def _aggregate_value(self, *, colon: bool) -> OptionValue:
        if self._token in ("{", "<") and self._kind == "symbol":
            return self._aggregate(self._token, "}" if self._token == "{" else ">")
        if not colon:
            self._expected("':'")
        if not self._skip("["):
            return self._scalar()
        values: list[OptionValue] = []
        if not self._skip("]"):
            values.append(self._aggregate_value_in_list())
            while self._skip(","):
                values.append(self._aggregate_value_in_list())
            self._expect("]")
        return tuple(values)

    def _aggregate_value_in_list(self) -> OptionValue:
        if self._token in ("{", "<") and self._kind == "symbol":
            return self._aggregate(self._token, "}" if self._token == "{" else ">")
        return self._scalar()
