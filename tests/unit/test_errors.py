"""The tree of errors, and what every error in it keeps."""

import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.errors import FloeStorageError, IcebergError
from floe_dagster_iceberg.models import TableIdentifier

TABLE = TableIdentifier(namespace="bronze", name="events")
REASON = "it broke"

# One of each class, with the arguments it must keep.
EXAMPLES: list[tuple[FloeStorageError, dict[str, Any]]] = [
    (FloeStorageError("It failed. Try again."), {}),
    (errors.CatalogConnectionError("floe", reason=REASON), {"catalog": "floe", "reason": REASON}),
    (errors.CatalogAuthenticationError("floe", reason=REASON), {"catalog": "floe", "reason": REASON}),
    (IcebergError("It failed. Try again.", table=TABLE), {}),
    (errors.TableAlreadyExistsError(TABLE), {}),
    (errors.NoSuchTableError(TABLE), {}),
    (errors.NoSuchNamespaceError("bronze"), {"namespace": "bronze"}),
    (errors.ValidationError("It is invalid. Change it.", table=TABLE), {}),
    (errors.SchemaEvolutionError("It does not fit. Change it.", table=TABLE, column="a"), {"column": "a"}),
    (
        errors.IncompatibleSchemaChangeError(TABLE, column="a", reason=REASON),
        {"column": "a", "reason": REASON},
    ),
    (errors.WriteError("It failed. Try again.", table=TABLE), {}),
    (
        errors.RowsOutsidePartitionError(TABLE, columns=["day"], rows=3, null_rows=1, partition="day is '1'"),
        {"columns": ("day",), "rows": 3, "null_rows": 1, "partition": "day is '1'"},
    ),
    (errors.ScanError("It failed. Try again.", table=TABLE), {}),
    (
        errors.StaleTableMetadataError(TABLE, metadata_location="s3://a/b.metadata.json", reason=REASON),
        {"metadata_location": "s3://a/b.metadata.json", "reason": REASON},
    ),
    (errors.CommitConflictError(TABLE, attempts=3, reason=REASON), {"attempts": 3, "reason": REASON}),
    (
        errors.CommitOutcomeUnknownError(TABLE, snapshot_id=7, reason=REASON, files=["a", "b"]),
        {"snapshot_id": 7, "reason": REASON, "files": ("a", "b")},
    ),
    (errors.SnapshotNotFoundError(TABLE, "v1", refs=["main", "dev"]), {"snapshot": "v1", "refs": ("dev", "main")}),
    (errors.RollbackError(TABLE, snapshot=7, reason=REASON), {"snapshot": 7, "reason": REASON}),
    (
        errors.AuditFailedError(TABLE, checks=["a"], branch="b", others={"other": None}),
        {"checks": ("a",), "branch": "b", "others": {"other": None}},
    ),
    (errors.CompactionError("It failed. Try again.", table=TABLE), {}),
    (
        errors.MaintenanceRefusedError(TABLE, guardrail="gc_disabled", reason=REASON),
        {"guardrail": "gc_disabled", "reason": REASON},
    ),
    (errors.EngineCapabilityError("It cannot. Use Spark.", engine="pyiceberg", table=TABLE), {"engine": "pyiceberg"}),
    (
        errors.UnsupportedMetadataError(
            TABLE, reason=REASON, metadata_location="a.metadata.json", format_version=3, locations=["s3://a"]
        ),
        {
            "engine": "pyiceberg",
            "reason": REASON,
            "metadata_location": "a.metadata.json",
            "format_version": 3,
            "locations": ("s3://a",),
        },
    ),
    (
        errors.PluginNotFoundError("catalog", "x", known=["sql", "rest"]),
        {"kind": "catalog", "name": "x", "known": ("sql", "rest")},
    ),
    (
        errors.SecretNotFoundError("env:TOKEN", looked_in=["the environment"]),
        {"reference": "env:TOKEN", "looked_in": ("the environment",)},
    ),
]
RETRYABLE = {errors.CatalogConnectionError, errors.CommitConflictError, errors.CommitOutcomeUnknownError}
each_error = pytest.mark.parametrize(("error", "kept"), EXAMPLES, ids=lambda each: type(each).__name__)


def tree(root: type[FloeStorageError] = FloeStorageError) -> Iterator[type[FloeStorageError]]:
    yield root
    for child in root.__subclasses__():
        # Other modules may refine a class; the tree is what errors.py shows.
        if child.__module__ == errors.__name__:
            yield from tree(child)


@pytest.mark.requirement("S1-T005")
def test_every_class_of_the_tree_has_an_example_here() -> None:
    assert {type(error) for error, _ in EXAMPLES} == set(tree())


@pytest.mark.requirement("S1-T005", "S4-errors")
def test_the_docstring_draws_the_tree_as_it_is() -> None:
    drawing = [re.match(r"    ([ │├└─]*)(\w+Error)", line) for line in (errors.__doc__ or "").splitlines()]
    drawn = {(found[2], len(found[1]) // 4) for found in drawing if found}

    assert drawn == {
        (each.__name__, len(each.__mro__) - len(FloeStorageError.__mro__) - _extra(each)) for each in tree()
    }


def _extra(error: type[FloeStorageError]) -> int:
    """How many classes it inherits from beside its place in the tree."""
    return sum(len(base.__bases__) - 1 for base in error.__mro__ if base is not object)


@pytest.mark.requirement("S1-T005", "S4-errors")
@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("TableExistsError", "TableAlreadyExistsError"),
        ("TableNotFoundError", "NoSuchTableError"),
        ("NamespaceNotFoundError", "NoSuchNamespaceError"),
        ("ConcurrencyConflictError", "CommitConflictError"),
    ],
)
def test_an_alias_is_the_class_itself(alias: str, name: str) -> None:
    assert getattr(errors, alias) is getattr(errors, name)
    assert re.search(rf"{name} .*\(= {alias}\)", errors.__doc__ or "")


def test_a_bad_argument_is_a_value_error_too() -> None:
    assert issubclass(errors.ValidationError, ValueError)


@pytest.mark.requirement("S1-T005")
@each_error
def test_an_error_keeps_its_arguments_as_attributes(error: FloeStorageError, kept: dict[str, Any]) -> None:
    table = {"table": error.table} if isinstance(error, IcebergError) else {}

    assert error.details == {**kept, **table}
    assert table.get("table") in {None, "bronze.events"}


@pytest.mark.requirement("S1-T005")
@each_error
def test_an_error_survives_pickling(error: FloeStorageError, kept: dict[str, Any]) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert type(copy) is type(error)
    assert (str(copy), copy.details) == (str(error), error.details)
    assert kept.items() <= copy.details.items()


@each_error
def test_only_what_may_pass_by_itself_is_retryable(error: FloeStorageError, kept: dict[str, Any]) -> None:
    assert error.retryable is (type(error) in RETRYABLE)
    assert "retryable" not in kept


@each_error
def test_a_message_gives_the_arguments_that_matter_and_ends_a_sentence(
    error: FloeStorageError, kept: dict[str, Any]
) -> None:
    values = [
        kept[name] for name in kept.keys() & {"reason", "namespace", "snapshot", "reference", "catalog", "guardrail"}
    ]

    assert all(str(value) in str(error) for value in values)
    assert str(error).endswith(".")


@each_error
def test_a_message_says_the_fact_and_then_the_remedy(error: FloeStorageError, kept: dict[str, Any]) -> None:
    # Where the cause decides the remedy, the code that raises puts it into the reason.
    remedy_is_in_the_reason = {
        errors.IncompatibleSchemaChangeError,
        errors.RollbackError,
        errors.MaintenanceRefusedError,
    }

    assert ("reason" in kept and type(error) in remedy_is_in_the_reason) or len(str(error).split(". ")) > 1


def test_an_unknown_outcome_without_a_snapshot_id_still_reads_well() -> None:
    message = str(errors.CommitOutcomeUnknownError(TABLE, snapshot_id=None, reason=REASON))

    assert "None" not in message
    assert "  " not in message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.PluginNotFoundError("catalog", "x"), "Known: none."),
        (errors.PluginNotFoundError("catalog", "x", known=["sql", "rest"]), "Known: rest, sql."),
        (errors.SecretNotFoundError("env:TOKEN"), "looked in the environment"),
    ],
)
def test_a_look_up_that_failed_says_where_it_looked(error: FloeStorageError, expected: str) -> None:
    assert expected in str(error)
