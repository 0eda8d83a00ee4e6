"""The table manager as its users see it: typed, documented, and made of nothing else."""

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import pytest

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.table.manager import IcebergTableManager

METHODS: dict[str, Callable[..., Any]] = {
    name: method
    for name, method in inspect.getmembers(IcebergTableManager, inspect.isfunction)
    if not name.startswith("_")
}
SECTION = re.compile(r"^ {8}(?P<name>Args|Raises|Returns):\n(?P<body>(?:^ {12}.*\n?|^\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^ {12}\**(?P<name>\w+): ", re.MULTILINE)


def documented(method: Callable[..., Any], section: str) -> list[str]:
    """What a Google docstring names in one of its sections."""
    text = (method.__doc__ or "") + "\n"
    bodies = [found["body"] for found in SECTION.finditer(text) if found["name"] == section]
    return [entry["name"] for body in bodies for entry in ENTRY.finditer(body)]


@pytest.mark.requirement("S2-US1.3")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_argument_and_result_is_typed(method: Callable[..., Any]) -> None:
    hints = typing.get_type_hints(method)

    assert hints.keys() == {*inspect.signature(method).parameters, "return"} - {"self"}


@pytest.mark.requirement("S2-US1.3")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_documented_in_a_sentence(method: Callable[..., Any]) -> None:
    first = (method.__doc__ or "").strip().splitlines()[0]

    assert first.endswith(".")
    assert first[0].isupper()


@pytest.mark.requirement("S2-US1.3")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_arguments_are_documented_in_their_order_or_not_at_all(method: Callable[..., Any]) -> None:
    named = documented(method, "Args")

    assert named in ([], [name for name in inspect.signature(method).parameters if name != "self"])


@pytest.mark.requirement("S2-US1.3")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_documented_errors_are_errors_of_ours(method: Callable[..., Any]) -> None:
    raised = documented(method, "Raises")

    assert all(issubclass(getattr(errors, name), errors.FloeStorageError) for name in raised)


@pytest.mark.requirement("S2-US1.3")
def test_methods_with_several_arguments_document_them() -> None:
    silent = [
        name
        for name, method in METHODS.items()
        if len(inspect.signature(method).parameters) > 4 and not documented(method, "Args")
    ]

    assert silent == ["create_table_if_not_exists", "scan_batches"], "their docstrings point to create_table and scan"


@pytest.mark.requirement("S4-TM-init", "S4-load_table", "S4-append", "S4-scan")
def test_the_methods_of_the_contract_take_its_arguments() -> None:
    contract = {
        "create_table": ["table", "schema", "partition_spec", "properties"],
        "create_table_if_not_exists": ["table", "schema", "partition_spec", "properties"],
        "load_table": ["table"],
        "drop_table": ["table", "purge"],
        "table_exists": ["table"],
        "list_tables": ["namespace"],
        "append": ["table", "data", "evolve_schema"],
        "overwrite": ["table", "data", "evolve_schema"],
        "scan": ["table", "columns", "row_filter", "snapshot_id", "limit"],
        "list_snapshots": ["table", "limit"],
        "get_current_snapshot": ["table"],
        "expire_snapshots": ["table", "older_than", "retain_last"],
    }

    for method, arguments in contract.items():
        assert set(arguments) <= inspect.signature(METHODS[method]).parameters.keys()
