"""How tables are named."""

import re

import pytest

from floe_dagster_iceberg.models import IDENTIFIER_PATTERN, TableIdentifier
from floe_dagster_iceberg.models.identifiers import split_parts

BAD_PARTS = ["", " ", "a b", "a ", "a\n", "a/b", "a'b", 'a"b', "a`b", "a;b", ".a", "a.", "a..b"]


@pytest.mark.requirement("S4-WriteMode", "S1-T007a")
@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("bronze.events", "bronze", "events"),
        ("bronze.raw.events", "bronze.raw", "events"),
        ("a-b.c_d.1e", "a-b.c_d", "1e"),
        ("größe.событие", "größe", "событие"),
    ],
)
def test_an_identifier_reads_and_writes_the_same_text(text: str, namespace: str, name: str) -> None:
    identifier = TableIdentifier.from_string(text)

    assert identifier == TableIdentifier(namespace=namespace, name=name)
    assert str(identifier) == text
    assert IDENTIFIER_PATTERN.match(text)


def test_parts_are_those_pyiceberg_takes() -> None:
    identifier = TableIdentifier.from_string("bronze.raw.events")

    assert identifier.namespace_parts == ("bronze", "raw")
    assert identifier.as_tuple == ("bronze", "raw", "events")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("o dd", "two words"), "o dd.two words"),
        (("a.b", "v1.0"), "`a.b`.`v1.0`"),
        (("tick`s", "``"), "`tick``s`.``````"),
        (("a", "b", "c"), "a.b.c"),
        (("", "t"), "``.t"),
        ((" ", "'\""), " .'\""),
    ],
)
def test_the_name_of_an_existing_table_reads_and_writes_the_same_parts(parts: tuple[str, ...], text: str) -> None:
    identifier = TableIdentifier.from_tuple(parts)

    assert (identifier.as_tuple, identifier.namespace_parts, str(identifier)) == (parts, parts[:-1], text)
    assert split_parts(text) == parts
    assert TableIdentifier.from_tuple(split_parts(str(identifier))) == identifier
    assert identifier.follows_naming_rule is (parts == ("a", "b", "c"))


def test_backticks_are_read_as_in_spark() -> None:
    assert TableIdentifier.from_string("`o dd`.`a.b`.plain").as_tuple == ("o dd", "a.b", "plain")
    assert TableIdentifier.from_string("`bronze`.`events`") == TableIdentifier.from_string("bronze.events")
    for text in ("`a.b", "a`b`.c", "`a`b.c", "`a`", "``.t"):
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            TableIdentifier.from_string(text)


@pytest.mark.requirement("S4-WriteMode")
@pytest.mark.parametrize("text", ["events", *BAD_PARTS, *(f"ns.{part}" for part in BAD_PARTS if part != "a.b")])
def test_a_text_that_names_no_table_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        TableIdentifier.from_string(text)


@pytest.mark.parametrize("bad", BAD_PARTS)
def test_a_bad_part_is_refused_with_the_value_and_the_rule(bad: str) -> None:
    with pytest.raises(ValueError, match=f"namespace {re.escape(repr(bad))} is not valid: use parts of letters"):
        TableIdentifier(namespace=bad, name="events")
    with pytest.raises(ValueError, match=f"table name {re.escape(repr(bad))} is not valid: use letters"):
        TableIdentifier(namespace="bronze", name=bad)


def test_dots_belong_to_the_namespace_only() -> None:
    with pytest.raises(ValueError, match="dots belong to the namespace"):
        TableIdentifier(namespace="bronze", name="raw.events")
