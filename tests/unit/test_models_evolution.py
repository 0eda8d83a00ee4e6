"""Changes to a schema."""

from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg import types as iceberg

from floe_dagster_iceberg.models import ListOf, SchemaChange, SchemaChangeType, SchemaEvolution

NEEDED: dict[SchemaChangeType, dict[str, Any]] = {
    SchemaChangeType.ADD_COLUMN: {"new_type": "string"},
    SchemaChangeType.RENAME_COLUMN: {"new_name": "b"},
    SchemaChangeType.WIDEN_TYPE: {"new_type": "long"},
    SchemaChangeType.MAKE_OPTIONAL: {},
    SchemaChangeType.MAKE_REQUIRED: {},
    SchemaChangeType.DELETE_COLUMN: {},
    SchemaChangeType.UPDATE_DOC: {"new_doc": "why"},
}
SURPLUS = {"new_type": "string", "new_name": "b", "new_doc": "why", "precision": 5, "scale": 1, "length": 3}
TAKEN = {
    SchemaChangeType.ADD_COLUMN: {"new_type", "new_doc", "precision", "scale", "length"},
    SchemaChangeType.WIDEN_TYPE: {"new_type", "precision", "scale", "length"},
}


def change(change_type: SchemaChangeType, **arguments: Any) -> SchemaChange:
    return SchemaChange(change_type=change_type, column_name="a", **arguments)


@pytest.mark.parametrize("change_type", SchemaChangeType)
def test_a_change_is_built_from_what_it_needs_and_from_nothing_less(change_type: SchemaChangeType) -> None:
    assert change(change_type, **NEEDED[change_type])
    for argument in NEEDED[change_type]:
        with pytest.raises(ValidationError, match=f"{change_type} of 'a' needs {argument}"):
            change(change_type)


@pytest.mark.parametrize(
    ("change_type", "argument"),
    [
        (change_type, argument)
        for change_type in SchemaChangeType
        for argument in sorted(SURPLUS.keys() - TAKEN.get(change_type, NEEDED[change_type].keys()))
    ],
)
def test_an_argument_the_change_does_not_take_is_refused(change_type: SchemaChangeType, argument: str) -> None:
    with pytest.raises(ValidationError, match=f"{change_type} of 'a' takes no {argument}; leave it out"):
        change(change_type, **NEEDED[change_type], **{argument: SURPLUS[argument]})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"new_type": "string", "new_doc": "why"}, iceberg.StringType()),
        ({"new_type": "decimal", "precision": 9, "scale": 2}, iceberg.DecimalType(9, 2)),
        ({"new_type": "decimal", "precision": 9}, iceberg.DecimalType(9, 0)),
        ({"new_type": "fixed", "length": 4}, iceberg.FixedType(4)),
        (
            {"new_type": ListOf(element_id=1, element="int")},
            iceberg.ListType(element_id=1, element=iceberg.IntegerType(), element_required=False),
        ),
    ],
)
def test_a_new_column_takes_any_type_a_schema_takes(arguments: dict[str, Any], expected: iceberg.IcebergType) -> None:
    assert change(SchemaChangeType.ADD_COLUMN, **arguments).to_pyiceberg_type() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"new_type": "decimal"}, "add_column of 'a': decimal needs a precision from 1 to 38"),
        ({"new_type": "fixed"}, "add_column of 'a': fixed needs a length"),
        ({"new_type": "string", "precision": 3}, "only decimal takes precision"),
        ({"new_type": "varchar"}, "new_type"),
    ],
)
def test_a_new_type_without_its_arguments_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        change(SchemaChangeType.ADD_COLUMN, **arguments)


def test_documentation_is_cleared_by_empty_text() -> None:
    assert change(SchemaChangeType.UPDATE_DOC, new_doc="").new_doc == ""


@pytest.mark.parametrize("bad", [{"column_name": ""}, {"column_name": "a", "new_name": ""}])
def test_empty_names_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="at least 1 character"):
        SchemaChange(**{"change_type": SchemaChangeType.RENAME_COLUMN, "new_name": "b", **bad})


def test_a_dotted_name_is_a_path_into_structs() -> None:
    nested = SchemaChange(change_type=SchemaChangeType.DELETE_COLUMN, column_name="address.city")

    assert nested.path == ("address", "city")
    assert nested.to_pyiceberg_type() is None


def test_only_deleting_and_requiring_are_incompatible() -> None:
    evolution = SchemaEvolution(changes=[change(kind, **NEEDED[kind]) for kind in SchemaChangeType])

    assert not evolution.allow_incompatible_changes
    assert [each.change_type for each in evolution.changes if each.is_incompatible] == [
        "make_required",
        "delete_column",
    ]


def test_an_evolution_without_changes_is_refused() -> None:
    with pytest.raises(ValidationError, match="changes"):
        SchemaEvolution(changes=[])
