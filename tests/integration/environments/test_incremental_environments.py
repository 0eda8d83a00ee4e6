"""Incremental assets in a preview: what was read there is not read again when it is published."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from dagster import AssetIn, AssetsDefinition, DagsterInstance, asset, materialize
from support.place import Place

from floe_dagster_iceberg import ArrowIcebergIOManager, IcebergEnvironments, IcebergResource, iceberg_settings
from floe_dagster_iceberg.errors import CommitConflictError


@asset(ins={"numbers": AssetIn(metadata=iceberg_settings(changes="appends"))})
def copied(numbers: pa.Table) -> pa.Table:
    return numbers


def numbers(*values: int) -> AssetsDefinition:
    @asset(name="numbers")
    def definition() -> pa.Table:
        return pa.table({"number": list(values)})

    return definition


class Lakehouse:
    """Production that has copied 1, and has 2 to copy."""

    def __init__(self, place: Place, instance: DagsterInstance) -> None:
        self.production, self.preview = place.iceberg(), place.iceberg(environment="pr-12")
        self._instance = instance
        self.run(self.production, numbers(1))
        self.copy(self.production)
        self.run(self.production, numbers(2))

    def run(self, iceberg: IcebergResource, *assets: AssetsDefinition, selection: list[str] | None = None) -> None:
        resources = {"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}
        assert materialize(assets, resources=resources, instance=self._instance, selection=selection).success

    def copy(self, iceberg: IcebergResource) -> None:
        self.run(iceberg, numbers(), copied, selection=["copied"])

    def publish(self) -> None:
        IcebergEnvironments(self.production.table_manager).publish("pr-12")

    def rows(self) -> list[int]:
        return sorted(self.production.catalog.load_table("public.copied").scan().to_arrow()["number"].to_pylist())


@pytest.fixture
def lakehouse(place: Place) -> Iterator[Lakehouse]:
    with DagsterInstance.ephemeral() as instance:
        yield Lakehouse(place, instance)


@pytest.mark.parametrize("others", [[], [99]], ids=["main stood still", "main moved"])
def test_production_goes_on_where_the_published_preview_was(lakehouse: Lakehouse, others: list[int]) -> None:
    lakehouse.copy(lakehouse.preview)
    for number in others:
        lakehouse.production.table_manager.append("public.copied", pa.table({"number": [number]}))
    lakehouse.publish()
    lakehouse.run(lakehouse.production, numbers(3))

    lakehouse.copy(lakehouse.production)

    assert lakehouse.rows() == [1, 2, 3, *others]


def test_changes_that_both_sides_have_read_are_a_conflict(lakehouse: Lakehouse) -> None:
    lakehouse.copy(lakehouse.preview)
    lakehouse.copy(lakehouse.production)

    with pytest.raises(CommitConflictError):
        lakehouse.publish()

    assert lakehouse.rows() == [1, 2]
