"""The choice of the engine for an operation."""

import pytest

from floe_dagster_iceberg.maintenance.planning import choose_engine, commit_needs_spark
from floe_dagster_iceberg.models import MaintenanceEngine

AUTO, PYICEBERG, SPARK = MaintenanceEngine.AUTO, MaintenanceEngine.PYICEBERG, MaintenanceEngine.SPARK
NEED = "The table has 3 equality delete files"


@pytest.mark.parametrize(
    ("asked_for", "needs_spark", "has_spark", "chosen"),
    [
        (AUTO, None, True, PYICEBERG),
        (AUTO, None, False, PYICEBERG),
        (AUTO, NEED, True, SPARK),
        (PYICEBERG, None, True, PYICEBERG),
        (SPARK, None, True, SPARK),
        (SPARK, NEED, True, SPARK),
    ],
)
def test_the_engine_that_can_do_it_is_chosen(
    asked_for: MaintenanceEngine,
    needs_spark: str | None,
    has_spark: bool,  # noqa: FBT001 - a parameter of the test
    chosen: MaintenanceEngine,
) -> None:
    choice = choose_engine(asked_for, needs_spark, has_spark=has_spark)

    assert (choice.engine, choice.blocked_by) == (chosen, None)


@pytest.mark.parametrize(
    ("asked_for", "needs_spark", "message"),
    [
        (AUTO, NEED, "3 equality delete files, which PyIceberg cannot do, and there is no Spark session. Configure"),
        (SPARK, None, "Engine 'spark' was asked for, and there is no Spark session. Configure"),
        (PYICEBERG, NEED, "3 equality delete files, which PyIceberg cannot do. Use engine 'auto' or 'spark'."),
    ],
)
def test_what_no_engine_can_do_is_blocked_with_a_remedy(
    asked_for: MaintenanceEngine, needs_spark: str | None, message: str
) -> None:
    blocked_by = choose_engine(asked_for, needs_spark, has_spark=False).blocked_by

    assert blocked_by is not None
    assert message in blocked_by


@pytest.mark.parametrize(("version", "needs"), [(1, False), (2, False), (3, True)])
def test_pyiceberg_commits_to_tables_up_to_format_version_2(version: int, needs: bool) -> None:  # noqa: FBT001
    assert (commit_needs_spark(version) is not None) is needs
