"""Environments compared, published and dropped by runs, as CI starts them."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.place import Place

from floe_dagster_iceberg import ArrowIcebergIOManager, build_environment_definitions
from floe_dagster_iceberg.resources import IcebergResource

DAILY = dg.DailyPartitionsDefinition("2026-01-01")


@dg.asset(key=["shop", "orders"], partitions_def=DAILY, metadata={"partition_expr": "day"})
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"day": pa.array([context.partition_key]).cast(pa.date32()), "id": [1]})


@dg.asset(key=["shop", "items"])
def items() -> pa.Table:
    return pa.table({"id": [1, 2]})


class Deployment:
    """Production with a preview 'pr-12' of both assets, and jobs that are run in one of the two."""

    def __init__(self, place: Place, instance: dg.DagsterInstance) -> None:
        self.place, self.instance = place, instance
        for iceberg in (place.iceberg(), place.iceberg(environment="pr-12")):
            resources = {"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}
            dg.materialize([orders], partition_key="2026-01-02", resources=resources, instance=instance)
            dg.materialize([items], resources=resources, instance=instance)

    def run(self, job: str, environment: str | None = None, *, within: IcebergResource | None = None) -> str:
        """Run a job; returns the run's id."""
        definitions = dg.Definitions.merge(
            dg.Definitions(resources={"iceberg": within or self.place.iceberg()}), build_environment_definitions()
        )
        name = f"iceberg_environment_{job}"
        config: dict[str, Any] = {} if environment is None else {"environment": environment}
        result = definitions.resolve_job_def(name).execute_in_process(
            run_config={"ops": {name: {"config": config}}}, instance=self.instance, raise_on_error=False
        )
        return result.run_id

    def metadata(self, run_id: str) -> Mapping[str, Any]:
        """What the stored event of the op's output says."""
        (event,) = (
            each.dagster_event
            for each in self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_OUTPUT)
            if each.dagster_event is not None
        )
        return {
            key: value.records if isinstance(value, dg.TableMetadataValue) else value.value
            for key, value in event.step_output_data.metadata.items()
        }

    def failure(self, run_id: str) -> str:
        (event,) = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        assert event.dagster_event is not None
        details = event.dagster_event.step_failure_data.user_failure_data
        assert details is not None
        return str(details.description)

    def ids(self, table: str) -> list[int]:
        found = self.place.iceberg().catalog.load_table(f"shop.{table}").scan().to_arrow()
        return sorted(found["id"].to_pylist())

    def refs(self, table: str) -> set[str]:
        return set(self.place.iceberg().catalog.load_table(f"shop.{table}").metadata.refs)


@pytest.fixture
def deployment(place: Place) -> Iterator[Deployment]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(place, instance)


def records(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [record.data for record in metadata["iceberg/results"]]


def test_the_difference_is_metadata_of_the_run(deployment: Deployment) -> None:
    metadata = deployment.metadata(deployment.run("diff", "pr-12"))

    assert (metadata["iceberg/environment"], metadata["iceberg/rows_added"], metadata["iceberg/rows_removed"]) == (
        "pr-12",
        3,
        1,
    )
    found = {record["table"]: record for record in records(metadata)}
    assert found["shop.orders"]["partitions"] == "day_day=2026-01-02"
    assert (found["shop.items"]["rows in main"], found["shop.items"]["rows"], found["shop.items"]["commits"]) == (
        2,
        4,
        1,
    )
    assert deployment.refs("items") == {"main", "env-pr-12"}


def test_a_run_publishes(deployment: Deployment) -> None:
    metadata = deployment.metadata(deployment.run("publish", "pr-12"))

    assert metadata["iceberg/atomic"] is True
    assert [(record["table"], record["replayed"]) for record in records(metadata)] == [
        ("shop.items", False),
        ("shop.orders", False),
    ]
    assert deployment.ids("items") == [1, 1, 2, 2]
    assert (deployment.refs("items"), deployment.refs("orders")) == ({"main"}, {"main"})


def test_a_run_in_the_environment_drops_it(deployment: Deployment) -> None:
    metadata = deployment.metadata(deployment.run("drop", within=deployment.place.iceberg(environment="pr-12")))

    assert [record["table"] for record in records(metadata)] == ["shop.items", "shop.orders"]
    assert (deployment.refs("items"), deployment.refs("orders")) == ({"main"}, {"main"})
    assert deployment.ids("items") == [1, 2]


def test_an_environment_does_not_publish_itself(deployment: Deployment) -> None:
    run_id = deployment.run("publish", within=deployment.place.iceberg(environment="pr-12"))

    assert "this deployment is environment 'pr-12'. Nothing was changed" in deployment.failure(run_id)
    assert deployment.ids("items") == [1, 2]


@pytest.mark.parametrize(
    ("environment", "message"),
    [(None, "The run names no environment"), ("pr-99", "No table has environment 'pr-99'. Did you mean 'pr-12'?")],
)
def test_a_run_for_no_environment_fails_with_a_sentence(
    deployment: Deployment, environment: str | None, message: str
) -> None:
    assert message in deployment.failure(deployment.run("publish", environment))
