"""Observation over a REST catalog: how many requests it takes, and what one refused table does to the others."""

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from support.polaris_lake import PolarisLake
from support.servers.faults import Fault

from floe_dagster_iceberg import IcebergResource, build_iceberg_observations

SCHEMA = pa.schema([("id", pa.int64())])
LATENCY = Fault(delay_seconds=0.015)
TABLE = re.compile(r"/namespaces/bronze/tables/(?P<name>[^/?]+)(\?|$)")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def observe(iceberg: IcebergResource, instance: dg.DagsterInstance, *tables: str) -> dg.ExecuteInProcessResult:
    definitions = build_iceberg_observations(tables, iceberg=iceberg)
    job = definitions.resolve_job_def("iceberg_observations_job")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def requests_by_table(polaris: PolarisLake, start: int) -> Counter[str]:
    found = (TABLE.search(seen.path) for seen in polaris.gateway.seen[start:])
    return Counter(unquote(match["name"]) for match in found if match is not None)


def version(instance: dg.DagsterInstance, name: str) -> str:
    (record,) = instance.fetch_observations(dg.AssetKey(["bronze", name]), limit=1).records
    assert record.asset_observation is not None
    return (record.asset_observation.tags or {})["dagster/data_version"]


def register_many(catalog: Catalog, count: int) -> list[str]:
    """Tables that share the files of one: what observation reads of them is the same as of any other."""
    table = catalog.create_table("bronze.table_000", SCHEMA)
    table.append(pa.table({"id": [1]}))
    names = [f"table_{number:03}" for number in range(count)]
    for name in names[1:]:
        catalog.register_table(f"bronze.{name}", table.metadata_location)
    return names


@pytest.mark.slow
def test_five_hundred_tables_take_at_most_two_requests_each_side_by_side(
    polaris: PolarisLake, instance: dg.DagsterInstance
) -> None:
    iceberg = polaris.resource()
    iceberg.catalog.create_namespace("bronze")
    names = register_many(iceberg.catalog, 500)
    polaris.gateway.fail_always("GET", ".*", LATENCY)
    start = len(polaris.gateway.seen)

    with polaris.gateway.log.recorded() as log:
        assert observe(iceberg, instance, *(f"bronze.{name}" for name in names)).success

    assert log.depth <= len(names) / 3, "ten tables at a time"
    asked = requests_by_table(polaris, start)
    assert set(asked) == set(names)
    assert max(asked.values()) <= 2
    assert len(polaris.gateway.seen) - start <= 2 * len(names) + 5


def test_a_long_history_takes_as_many_requests_and_no_more_snapshots_than_a_short_one(
    polaris: PolarisLake, instance: dg.DagsterInstance
) -> None:
    iceberg = polaris.resource()
    iceberg.catalog.create_namespace("bronze")
    for name, commits in (("short", 2), ("long", 30)):
        table = iceberg.catalog.create_table(f"bronze.{name}", SCHEMA)
        for number in range(commits):
            table.append(pa.table({"id": [number]}))
    start = len(polaris.gateway.seen)

    assert observe(iceberg, instance, "bronze.short", "bronze.long").success

    assert requests_by_table(polaris, start) == {"short": 1, "long": 1}
    lean = iceberg.catalog.load_newest_snapshots("bronze.long")  # type: ignore[attr-defined]
    assert len(lean.metadata.snapshots) == 1
    (record,) = instance.fetch_observations(dg.AssetKey(["bronze", "long"]), limit=1).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["iceberg/snapshots"].value == 30


def register_history(catalog: Catalog, name: str, snapshots: int) -> None:
    """A table with so many snapshots in its metadata; all of them have the files of one."""
    table = catalog.create_table(f"bronze.files_of_{name}", SCHEMA)
    table.append(pa.table({"id": [1]}))
    document = json.loads(table.metadata.model_dump_json())
    (newest,), start = document["snapshots"], document["last-updated-ms"] - snapshots
    document["snapshots"] = [
        newest | {"snapshot-id": at, "sequence-number": at, "timestamp-ms": start + at, "parent-snapshot-id": at - 1}
        for at in range(1, snapshots + 1)
    ]
    del document["snapshots"][0]["parent-snapshot-id"]
    document["snapshot-log"] = [{"snapshot-id": at, "timestamp-ms": start + at} for at in range(1, snapshots + 1)]
    document |= {
        "table-uuid": str(uuid.uuid4()),
        "current-snapshot-id": snapshots,
        "last-sequence-number": snapshots,
        "refs": {"main": {"snapshot-id": snapshots, "type": "branch"}},
    }
    location = f"{table.location()}/metadata/00001-{uuid.uuid4()}.metadata.json"
    with table.io.new_output(location).create() as stream:
        stream.write(json.dumps(document).encode())
    catalog.register_table(f"bronze.{name}", location)


@pytest.mark.slow
def test_five_thousand_snapshots_cost_no_more_requests_than_fifty(
    polaris: PolarisLake, instance: dg.DagsterInstance
) -> None:
    iceberg = polaris.resource()
    iceberg.catalog.create_namespace("bronze")
    counts: dict[str, list[tuple[int, int]]] = {"short": [], "long": []}
    for name, synthesized in (("short", 50), ("long", 5000)):
        register_history(iceberg.catalog, name, synthesized)
        # The first look, one that finds nothing new, one that finds one snapshot, and one that finds several.
        for commits in (0, 0, 1, 3):
            table = iceberg.catalog.load_table(f"bronze.{name}")
            for number in range(commits):
                table.append(pa.table({"id": [number]}))
            start, stored = len(polaris.gateway.seen), len(polaris.storage.seen)
            assert observe(iceberg, instance, f"bronze.{name}").success
            counts[name].append((len(polaris.gateway.seen) - start, len(polaris.storage.seen) - stored))
            assert version(instance, name) == str(table.metadata.current_snapshot_id)
            (record,) = instance.fetch_observations(dg.AssetKey(["bronze", name]), limit=1).records
            assert record.asset_observation is not None
            assert record.asset_observation.metadata["iceberg/snapshots"].value == len(table.metadata.snapshots)
            assert len(table.metadata.snapshots) >= synthesized

    assert counts["long"] == counts["short"]
    assert max(requests for requests, _ in counts["long"]) <= 2


def test_older_snapshots_are_asked_for_only_if_they_are_needed(
    polaris: PolarisLake, instance: dg.DagsterInstance
) -> None:
    iceberg = polaris.resource()
    iceberg.catalog.create_namespace("bronze")
    table = iceberg.catalog.create_table("bronze.t", SCHEMA)
    counts = []
    for commits in (1, 0, 1, 3):
        for number in range(commits):
            table.append(pa.table({"id": [number]}))
        start = len(polaris.gateway.seen)
        assert observe(iceberg, instance, "bronze.t").success
        counts.append(requests_by_table(polaris, start)["t"])
        assert version(instance, "t") == str(table.metadata.current_snapshot_id)
    before = version(instance, "t")
    iceberg.table_manager.compact_table("bronze.t")
    iceberg.table_manager.compact_table("bronze.t")
    assert observe(iceberg, instance, "bronze.t").success

    assert counts == [1, 1, 1, 2]
    assert version(instance, "t") == before


def test_a_table_without_permission_a_view_and_a_broken_one_are_reported_and_the_others_observed(
    polaris: PolarisLake, instance: dg.DagsterInstance
) -> None:
    iceberg = polaris.resource()
    iceberg.catalog.create_namespace("bronze")
    for name in ("allowed", "secret", "broken"):
        iceberg.catalog.create_table(f"bronze.{name}", SCHEMA).append(pa.table({"id": [1]}))
    create_view(iceberg, "view")
    forbidden = {"error": {"message": "not authorized", "type": "ForbiddenException", "code": 403}}
    polaris.gateway.fail_always("GET", "tables/secret", Fault(status=403, body=json.dumps(forbidden)))
    polaris.gateway.fail_always("GET", "tables/broken", Fault(status=200, body='{"metadata": {"format-version": 9}}'))

    result = observe(iceberg, instance, *(f"bronze.{name}" for name in ("allowed", "secret", "broken", "view")))

    assert version(instance, "allowed").isdecimal()
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    message = str(failure.event_specific_data)
    assert all(f"Table 'bronze.{name}' was not observed" in message for name in ("secret", "broken", "view"))
    assert "There is a view of that name" in message
    assert "3 of the tables" in message


def create_view(iceberg: IcebergResource, name: str) -> None:
    """What Spark SQL does for CREATE VIEW."""
    catalog = iceberg.catalog
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    query = {"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}
    body = {
        "name": name,
        "schema": schema,
        "view-version": {
            "version-id": 1,
            "timestamp-ms": 0,
            "schema-id": 0,
            "summary": {},
            "default-namespace": ["bronze"],
            "representations": [query],
        },
        "properties": {},
    }
    response = catalog._session.post(catalog.url("namespaces/bronze/views"), json=body)  # type: ignore[attr-defined]
    response.raise_for_status()
