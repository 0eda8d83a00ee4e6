"""Commits over REST whose response is lost, in every form: none lost, none doubled, none waits for ever."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from support.lake_choice import FIGURES
from support.lost_responses import FORMS, FORMS_OF_PYICEBERG, Figures, count, try_often
from support.polaris_lake import PolarisLake
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark import exactly_once as spark_exactly_once
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite

pytestmark = pytest.mark.slow

TRIALS, FIRST_TRIALS, SPARK_TRIALS = 12, 2, 1
BUDGET = CommitBudget(retries=3, base_delay_seconds=0.1)
Show = Callable[[Figures], None]


@pytest.fixture
def show(record_property: Callable[[str, object], None]) -> Show:
    """The figures are what the suite is for; the closing lines show them."""
    return lambda figures: record_property(FIGURES, str(figures))


@pytest.fixture
def iceberg(polaris: PolarisLake, form: str) -> IcebergResource:
    # Only a client without a response waits that long; on a busy machine others may need more.
    bounds = {"read_timeout_seconds": "0.5" if form.startswith("hang") else "10", "access_delegation": "none"}
    # The storage is not what is tried.
    return polaris.resource(catalog=bounds, storage_properties=polaris.own_keys())


def append_to(table: str, number: int, key: str) -> TableWrite:
    identifier, scope = TableIdentifier.from_string(table), RowScope(ALL_ROWS)
    return TableWrite(table=identifier, idempotency_key=f"{key}-{number}", mode=WriteMode.APPEND, scope=scope)


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number]})


@pytest.mark.requirement("S3-2b", "S0-X1..6")
@pytest.mark.parametrize("form", FORMS_OF_PYICEBERG)
def test_an_append_whose_response_is_lost_is_made_exactly_once(
    polaris: PolarisLake, iceberg: IcebergResource, show: Show, form: str
) -> None:
    def write(number: int) -> None:
        write_once(iceberg.catalog, ArrowRows(rows(number)), append_to("public.events", number, form), BUDGET)

    polaris.resource().table_manager.create_namespace("public")
    polaris.resource().table_manager.create_table("public.events", rows(0).schema)
    figures = try_often(polaris.gateway, form, TRIALS, write)

    show(count(figures, polaris.resource().catalog.load_table("public.events")))
    assert (figures.trials, figures.losses, figures.doubles) == (TRIALS, 0, 0)
    assert figures.snapshots == TRIALS


@pytest.mark.requirement("S3-2b", "S0-X1..6")
@pytest.mark.parametrize("form", FORMS)
def test_a_first_write_whose_response_is_lost_makes_its_table_exactly_once(
    polaris: PolarisLake, iceberg: IcebergResource, form: str
) -> None:
    def write(number: int) -> None:
        write = append_to(f"public.table_{number}", number, form)
        write_once(iceberg.catalog, ArrowRows(rows(number)), write, BUDGET)

    try_often(polaris.gateway, form, FIRST_TRIALS, write)

    catalog = polaris.resource().catalog
    tables = [catalog.load_table(f"public.table_{number}") for number in range(FIRST_TRIALS)]
    assert [polaris.rows(table) for table in tables] == [[(number,)] for number in range(FIRST_TRIALS)]
    assert {len(table.metadata.snapshots) for table in tables} == {1}


@pytest.mark.requirement("S3-2b", "S0-X1..6")
@pytest.mark.parametrize("form", FORMS)
def test_an_append_of_spark_whose_response_is_lost_is_made_exactly_once(
    polaris: PolarisLake, show: Show, form: str
) -> None:
    iceberg = polaris.resource(catalog={"read_timeout_seconds": "1.5" if form.startswith("hang") else "10"})
    session, generous = spark_resource(iceberg).spark_session, polaris.resource()
    generous.table_manager.create_namespace("public")
    generous.table_manager.create_table("public.events", rows(0).schema)

    def write(number: int) -> None:
        frame = to_frame(session, rows(number))
        spark_exactly_once.write_once(generous.catalog, frame, append_to("public.events", number, form), BUDGET)

    figures = try_often(polaris.gateway, form, SPARK_TRIALS, write)

    show(count(figures, generous.catalog.load_table("public.events")))
    assert (figures.trials, figures.losses, figures.doubles) == (SPARK_TRIALS, 0, 0)
