"""Components of a catalog and of its maintenance: the definitions that YAML makes, without a connection."""

import json
import re
import socket
from importlib.metadata import version
from pathlib import Path

import dagster as dg
import pytest
from dagster_shared.libraries import DagsterLibraryRegistry
from support.component_project import ComponentProject

from floe_dagster_iceberg.components import (
    IcebergLakehouseComponent,
    IcebergMaintenanceComponent,
    IcebergSparkSqlComponent,
)
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.models import MaintenancePolicy, TableIdentifier
from floe_dagster_iceberg.resources import IcebergResource

CANARY = "canary-secret-77d1"
FLOE = Path(__file__).resolve().parents[2] / "data" / "floe-0.3.0"
SOURCES = """
import dagster as dg

orders, products = dg.AssetSpec(["silver", "orders"]), dg.AssetSpec(["silver", "products"])
"""
DOCS = Path(__file__).resolve().parents[3] / "docs" / "components.md"
POLARIS = """
    catalog_type: polaris
    catalog_uri: "{{ env.POLARIS_URI }}"
    warehouse: analytics
    client_id: dagster
    client_secret: "{{ env('POLARIS_SECRET') }}"
    storage_type: s3
    storage_properties:
      region: eu-west-1
      path_style_access: true
      secret_access_key: {source: kubernetes, name: s3, key: secret}
    spark_config: {spark.ssl.keyPassword: "{{ env.POLARIS_SECRET }}"}
    write_mode: overwrite
"""


@pytest.fixture
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError(f"connects to {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("_no_sockets")
def test_a_catalog_loads_without_a_connection_and_without_the_values_of_its_secrets(
    project: ComponentProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("lakehouse", "IcebergLakehouseComponent", POLARIS)
    monkeypatch.setenv("POLARIS_SECRET", CANARY)

    definitions = project.load()
    iceberg = (definitions.resources or {})["iceberg"]

    assert isinstance(iceberg, IcebergResource)
    assert iceberg.client_secret == dg.EnvVar("POLARIS_SECRET")
    assert iceberg.storage_properties["path_style_access"] == "true"
    assert json.loads(iceberg.storage_properties["secret_access_key"])["key"] == "secret"
    assert dg.Definitions.validate_loadable(definitions) is None
    assert CANARY not in repr(definitions.resources)


@pytest.mark.usefixtures("_no_sockets")
@pytest.mark.parametrize("product", sorted(FLOE.glob("*.json")), ids=lambda path: path.stem)
def test_a_catalog_is_described_by_what_floe_compiled(project: ComponentProject, product: Path) -> None:
    path = project.write("lakehouse", "IcebergLakehouseComponent", "artifacts: product.json")
    compiled = json.loads(product.read_text())
    # Its collector is not here.
    del compiled["observability"]["telemetry"]
    (path.parent / "product.json").write_text(json.dumps(compiled))

    iceberg = (project.load().resources or {})["iceberg"]

    assert (iceberg.catalog_type, iceberg.storage_type, iceberg.warehouse) == ("polaris", "s3", "floe-demo")


@pytest.mark.usefixtures("_no_sockets")
def test_maintenance_is_scheduled_and_checked_as_its_yaml_says(project: ComponentProject) -> None:
    project.write("lakehouse", "IcebergLakehouseComponent", "catalog_type: sql")
    project.write(
        "maintenance",
        "IcebergMaintenanceComponent",
        """
        policies:
          - tables: ["bronze.*"]
            expiry: {max_age: 3d}
          - tables: ["bronze.events"]
            compaction: {target_file_size_bytes: 64MiB}
        schedules:
          compaction: {cron: "30 2 * * *", enabled: true}
        timezone: Europe/Zurich
        health_checks: [silver/orders]
        sensor: {enabled: true}
        """,
    )

    definitions = project.load()

    schedule = definitions.resolve_schedule_def("iceberg_maintenance_compaction_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 2 * * *", "Europe/Zurich")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    (sensor,) = definitions.sensors or ()
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    (check,) = definitions.asset_checks or ()
    assert check.check_key.asset_key == dg.AssetKey(["silver", "orders"])
    assert dg.Definitions.validate_loadable(definitions) is None


def test_the_later_policy_of_a_table_takes_precedence() -> None:
    policies = [
        MaintenancePolicy.model_validate({"tables": ["bronze.*"], "expiry": {"max_age": "3d"}}),
        MaintenancePolicy.model_validate({"tables": ["bronze.events"], "expiry": {"max_age": "2d"}, "engine": "spark"}),
    ]
    sources = PolicySources(by_table=policies)

    days = {
        name: sources.resolve(TableIdentifier.from_string(name)).policy.expiry.max_age.days
        for name in ("bronze.orders", "bronze.events", "gold.orders")
    }

    assert days == {"bronze.orders": 3, "bronze.events": 2, "gold.orders": 7}
    assert sources.resolve().policy == MaintenancePolicy()


@pytest.mark.usefixtures("_no_sockets")
def test_the_yaml_of_the_docs_loads_as_one_project(project: ComponentProject) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL):
        folder = project.root / "src" / "shop" / re.match(r"# (\S+)/defs.yaml", block)[1]  # type: ignore[index]
        folder.mkdir()
        (folder / "defs.yaml").write_text(block)

    (project.root / "src" / "shop" / "defs" / "sources.py").write_text(SOURCES)

    definitions = project.load()

    assert dg.Definitions.validate_loadable(definitions) is None
    dependencies = definitions.resolve_asset_graph().get(dg.AssetKey(["gold", "revenue"])).parent_keys
    assert {key.to_user_string() for key in dependencies} == {"silver/orders", "silver/products"}


def test_dagster_knows_the_library() -> None:
    assert DagsterLibraryRegistry.get()["floe-dagster-iceberg"] == version("floe-dagster-iceberg")


@pytest.mark.parametrize(
    "component", [IcebergLakehouseComponent, IcebergMaintenanceComponent, IcebergSparkSqlComponent]
)
def test_every_field_has_a_description(component: type[dg.Model]) -> None:
    assert [name for name, field in component.model_fields.items() if not field.description] == []
    schema = component.model().model_json_schema()  # type: ignore[attr-defined]
    assert all("description" in each for each in schema["properties"].values())
