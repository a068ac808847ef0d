"""Values of every type: what is accepted, what is rejected, how it is shown."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.broker.settings.catalogue import (
    ALIASES,
    BROKER_DEFINITIONS,
    FAMILIES,
    LISTENERS,
    SECTIONS,
    TOPIC_DEFINITIONS,
    nearest,
    scope_of,
)
from penstock.broker.settings.listener_security import SECURITY
from penstock.broker.settings.server_properties import OLD_NAMES, PER_TOPIC, RENAMED
from penstock.config_def import (
    HOUR_MS,
    MINUTE_MS,
    ConfigType,
    Definition,
    InvalidValue,
    Scope,
    Value,
    declarations,
    format_value,
    list_with,
    list_without,
    parse_numbers,
    parse_value,
)

BOOLEAN = Definition("b", ConfigType.BOOLEAN, False, "")
SHORT = Definition("s", ConfigType.SHORT, 1, "")
INT = Definition("i", ConfigType.INT, 1, "", min=1)
LEVEL = Definition("l", ConfigType.INT, -1, "", min=1, max=9, also=(-1,))
NOT_ZERO = Definition("n", ConfigType.INT, 1, "", excluded=(0,))
LONG = Definition("l", ConfigType.LONG, 1, "")
DOUBLE = Definition("d", ConfigType.DOUBLE, 0.5, "", min=0, max=1)
WIDE = Definition("w", ConfigType.DOUBLE, 0.5, "")
LIST = Definition("c", ConfigType.LIST, (), "", one_of=("compact", "delete"))
WORD = Definition("t", ConfigType.STRING, "gzip", "", one_of=("gzip", "lz4"))
TEXT = Definition("t", ConfigType.STRING, None, "")
CLASS = Definition("k", ConfigType.CLASS, None, "")
SECRET = Definition("p", ConfigType.PASSWORD, None, "")


@pytest.mark.parametrize(
    ("definition", "text", "value"),
    [
        (BOOLEAN, "true", True),
        (BOOLEAN, " FALSE ", False),
        (SHORT, "-32768", -32768),
        (INT, "2147483647", 2**31 - 1),
        (INT, " +7 ", 7),
        (INT, "007", 7),
        (LEVEL, "-1", -1),
        (LEVEL, "9", 9),
        (NOT_ZERO, "-5", -5),
        (LONG, "-9223372036854775808", -(2**63)),
        (DOUBLE, "1", 1.0),
        (DOUBLE, ".5", 0.5),
        (DOUBLE, "5e-1d", 0.5),
        (WIDE, "1.7976931348623157E308", 1.7976931348623157e308),
        (LIST, "", ()),
        (LIST, " compact , delete ", ("compact", "delete")),
        (WORD, "lz4", "lz4"),
        (TEXT, " a b ", "a b"),
        (TEXT, "", None),
        (CLASS, "org.example.Thing", "org.example.Thing"),
        (SECRET, "hunter2", "hunter2"),
    ],
)
def test_a_value_is_taken_as_kafka_writes_it(definition: Definition, text: str, value: Value) -> None:
    assert parse_value(definition, text) == value


@pytest.mark.parametrize(
    ("definition", "text", "words"),
    [
        (BOOLEAN, "yes", "true or false"),
        (BOOLEAN, "1", "true or false"),
        (BOOLEAN, "", "true or false"),
        (SHORT, "32768", "16-bit"),
        (INT, "", "an int"),
        (INT, "abc", "an int (32-bit integer), at least 1"),
        (INT, "1.0", "an int"),
        (INT, "1_000", "an int"),
        (INT, "0x10", "an int"),
        (INT, "\u0661", "an int"),
        (INT, "1 2", "an int"),
        (INT, "2147483648", "32-bit"),
        (INT, "9" * 5000, "32-bit"),
        (INT, "0", "at least 1"),
        (LEVEL, "0", "1 to 9, or -1"),
        (LEVEL, "10", "1 to 9"),
        (NOT_ZERO, "0", "not 0"),
        (LONG, "9223372036854775808", "64-bit"),
        (DOUBLE, "nan", "a double"),
        (DOUBLE, "Infinity", "a double"),
        (DOUBLE, "1e400", "a double"),
        (DOUBLE, "1e9999999999", "a double"),
        (DOUBLE, "half", "a double"),
        (DOUBLE, "1.01", "0 to 1"),
        (DOUBLE, "-0.1", "0 to 1"),
        (LIST, "compact,shred", "each one of compact, delete"),
        (LIST, "compact,", "one of compact, delete"),
        (LIST, "Compact", "one of compact, delete"),
        (WORD, "GZIP", "one of gzip, lz4"),
        (WORD, "", "one of gzip, lz4"),
        (TEXT, "x" * 200_000, "too long"),
    ],
)
def test_a_bad_value_is_rejected_with_value_type_and_range(definition: Definition, text: str, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_value(definition, text)
    message = str(caught.value)
    assert words in message
    assert len(message) < 400
    assert text[:20] in message or "too long" in message or not text.isascii()


def test_control_characters_of_a_value_do_not_reach_the_terminal() -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_value(INT, "\x1b[31m1\n2")
    assert str(caught.value).isprintable()


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*BROKER_DEFINITIONS.values(), *TOPIC_DEFINITIONS.values()]), st.text(max_size=12))
def test_any_text_is_a_value_or_rejected(definition: Definition, text: str) -> None:
    try:
        value = parse_value(definition, text)
    except InvalidValue:
        return
    shown = format_value(definition, value)
    if shown is not None:
        assert parse_value(definition, shown) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"), (0.0, "0.0"), (0.9, "0.9"), (1048576.0, "1048576.0"), (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"), (0.001, "0.001"), (0.0005, "5.0E-4"), (-2.5e-10, "-2.5E-10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)  # fmt: skip
def test_doubles_are_shown_as_java_shows_them(value: float, text: str) -> None:
    assert format_value(WIDE, value) == text


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_survives_being_shown(value: float) -> None:
    shown = format_value(WIDE, value)
    assert shown is not None
    assert math.isclose(float(shown), value, rel_tol=0)


def test_a_secret_is_never_shown() -> None:
    assert format_value(SECRET, "hunter2") is None


def test_lists_grow_and_shrink_by_elements() -> None:
    assert list_with("compact", "delete, compact") == "compact,delete"
    assert list_with("", "delete") == "delete"
    assert list_without("compact,delete", "compact,none") == "delete"
    assert list_without("compact", "compact") == ""


def test_names_with_numbers_are_read_or_rejected() -> None:
    assert parse_numbers("a:8, b:16") == {"a": 8, "b": 16}
    assert parse_numbers("::1:5") == {"::1": 5}
    assert parse_numbers("") == {}
    for bad in ("a", "a:", ":8", "a:x", "a:8,", "a:1.5"):
        with pytest.raises(InvalidValue):
            parse_numbers(bad)


# --- the tables themselves


@pytest.mark.parametrize("definitions", [BROKER_DEFINITIONS, TOPIC_DEFINITIONS])
def test_every_default_is_a_value_of_its_setting(definitions: dict[str, Definition]) -> None:
    for definition in definitions.values():
        text = format_value(definition, definition.default)
        if text is not None:
            assert parse_value(definition, text) == definition.default, definition.name


def test_every_setting_is_documented_in_sentences() -> None:
    for definition in (*BROKER_DEFINITIONS.values(), *TOPIC_DEFINITIONS.values()):
        assert definition.doc.endswith("."), definition.name
        assert definition.doc[0].isupper(), definition.name
        assert ("without effect" in definition.documentation) is not definition.has_effect


def test_every_setting_is_read_somewhere_or_listed_as_without_effect() -> None:
    """The source reads the attribute of each declared setting, or names it, outside of where settings are declared."""
    source = Path(penstock.__file__).parent
    declaring = {source / "broker/settings/catalogue.py", source / "config_def.py"}
    text = "\n".join(path.read_text() for path in source.rglob("*.py") if path not in declaring)
    read = set(re.findall(r"\.([a-z_0-9]+)\b", text))
    named = set(re.findall(r'"([a-z.]+)"', text))
    unread = {
        f"{section.__name__}.{attribute}"
        for section in SECTIONS
        for attribute, declaration in declarations(section).items()
        # The level of the codec in use is read by a name that is put together.
        if attribute not in read
        and declaration.definition.name not in named
        and not re.fullmatch("compression_(gzip|lz4|zstd)_level", attribute)
    }
    assert unread == set()


def test_only_declared_settings_and_those_of_listeners_have_an_effect() -> None:
    declared = {
        definition.name
        for section in SECTIONS
        for declaration in declarations(section).values()
        for definition in declaration.broker_definitions()
    }
    apart = {each.name for each in (*LISTENERS, *SECURITY, *ALIASES)}
    assert {each.name for each in BROKER_DEFINITIONS.values() if each.has_effect} == declared | apart


def test_members_of_a_family_give_one_value_in_other_units() -> None:
    assert FAMILIES["log.retention.ms"] == (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    )
    hours = BROKER_DEFINITIONS["log.retention.hours"]
    assert (hours.type, hours.default, hours.dynamic) == (ConfigType.INT, 168, False)
    assert hours.doc == "Same as log.retention.ms, in hours. Used if that is not set."
    assert BROKER_DEFINITIONS["log.retention.ms"].default is None
    assert TOPIC_DEFINITIONS["retention.ms"].default == 168 * HOUR_MS


def test_every_topic_setting_falls_back_on_a_setting_of_the_broker_that_exists() -> None:
    names = {each.broker_name for each in TOPIC_DEFINITIONS.values()} - {None}
    assert names <= set(BROKER_DEFINITIONS)


def test_old_names_are_aliases_of_existing_settings_and_not_settings_themselves() -> None:
    assert {name for name, _ in RENAMED.values()} <= set(BROKER_DEFINITIONS)
    assert {name for name, _ in PER_TOPIC.values()} - {""} <= set(TOPIC_DEFINITIONS)
    assert not OLD_NAMES & set(BROKER_DEFINITIONS)


def test_the_scope_of_a_name_is_known() -> None:
    assert scope_of("log.segment.bytes") is Scope.BROKER
    assert scope_of("segment.bytes") is Scope.TOPIC
    assert scope_of("min.insync.replicas") is Scope.BOTH
    assert scope_of("nothing.such") is None


def test_the_nearest_name_is_found_or_none() -> None:
    assert nearest("log.retention.hour", BROKER_DEFINITIONS) == "log.retention.hours"
    assert nearest("Num.Partitions", BROKER_DEFINITIONS) == "num.partitions"
    assert nearest("colour", BROKER_DEFINITIONS) is None
