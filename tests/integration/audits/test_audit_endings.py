"""How audits end when others interfere: another attempt at the same work, a catalog that deletes no files."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from support.io_results import failure_of
from support.place import Place

from floe_dagster_iceberg import (
    AuditCheck,
    AuditedTable,
    IcebergIOManagerConfig,
    IcebergTableManager,
    ValidationError,
    accepted_values,
    audited_asset,
    create_io_manager,
    not_null,
    row_count_between,
)
from floe_dagster_iceberg.table.publication import publish

ONE = pa.table({"id": [1]})


class WithoutPurge(SqlCatalog):
    """A catalog that lets nobody delete files, as Polaris does by default."""

    def purge_table(self, identifier: Any) -> None:
        raise ForbiddenError(f"{identifier} may not be purged")


@pytest.fixture
def catalog(place: Place) -> SqlCatalog:
    return WithoutPurge("floe", uri=place.catalog_config["uri"], warehouse=place.warehouse_uri)


@pytest.fixture
def manager(catalog: SqlCatalog) -> IcebergTableManager:
    return IcebergTableManager(catalog)


def run(catalog: SqlCatalog, check: AuditCheck | Callable[[Any], object]) -> dg.ExecuteInProcessResult:
    """A run of an asset that appends a row, audited by one check."""

    @audited_asset(checks=[check], metadata={"iceberg/write_mode": "append"})
    def items() -> pa.Table:
        return ONE

    io_manager = create_io_manager(IcebergIOManagerConfig(), catalog)
    return dg.materialize([items], resources={"io_manager": io_manager}, raise_on_error=False)


def test_a_new_table_that_the_catalog_does_not_purge_is_dropped(
    catalog: SqlCatalog, manager: IcebergTableManager
) -> None:
    result = run(catalog, row_count_between(2))

    assert "failed 1 check (row_count_between)" in failure_of(result, "items")
    assert not catalog.table_exists("public.items")
    assert run(catalog, row_count_between(1)).success
    assert manager.scan("public.items").num_rows == 1


def test_rows_that_another_attempt_has_published_meanwhile_are_not_published_again(
    catalog: SqlCatalog, manager: IcebergTableManager
) -> None:
    run(catalog, row_count_between(1))

    def passes(audited: AuditedTable) -> bool:
        # So that the other attempt has to repeat the rows in a snapshot of its own.
        manager.append("public.items", pa.table({"id": [2]}))
        table, branch = manager.load_table("public.items"), audited.branch or ""
        known = {key: value for key, value in audited.snapshot.summary.items() if key.startswith(("floe.", "dagster."))}
        publish(table, branch=branch, budget=manager.budget, snapshot_properties=known)
        return True

    result = run(catalog, passes)

    (event,) = result.asset_materializations_for_node("items")
    assert event.metadata["iceberg/deduplicated"].value is True
    assert sorted(manager.scan("public.items")["id"].to_pylist()) == [1, 1, 2]
    assert set(manager.load_table("public.items").metadata.refs) == {"main"}


def test_a_check_of_a_column_that_does_not_exist_names_those_that_do(catalog: SqlCatalog) -> None:
    (evaluation,) = run(catalog, not_null("ident")).get_asset_check_evaluations()

    assert not evaluation.passed
    assert evaluation.description == "'public.items' has no column 'ident', only: id."


def test_an_error_of_a_library_is_reported_at_the_line_of_the_check(catalog: SqlCatalog) -> None:
    def validates(rows: pa.Table) -> bool:
        return bool(rows["nothing"])

    (evaluation,) = run(catalog, validates).get_asset_check_evaluations()

    assert "The check raised KeyError in validates" in (evaluation.description or "")


def test_checks_that_cannot_be_defined_say_so() -> None:
    with pytest.raises(ValidationError, match="Use a function with a name"):
        AuditCheck(lambda rows: rows.num_rows > 0)
    with pytest.raises(ValidationError, match="NULL is always accepted"):
        accepted_values("id", [1, None])
