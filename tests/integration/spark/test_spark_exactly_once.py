"""Exactly once, when the response to Spark's commit gets lost; on a real HTTP catalog with scripted faults."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.http_stub import RestStub, running_stub
from support.servers.faults import Fault
from support.spark_lake import SparkLake, keyed
from support.spark_session import spark_resource

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings

COMMIT = r"/namespaces/public/tables/events$"
AFTER_THE_WORK = Fault(status=500, body="{}", after_work=True)
BEFORE_THE_WORK = Fault(status=500, body="{}")
LOST = Fault(status=409, body='{"error": {"message": "stale", "type": "CommitFailedException", "code": 409}}')


def commit_from_java(commit: Any, identifier: tuple[str, ...], body: bytes) -> tuple[int, dict[str, Any]]:
    """Java leaves the table's name to the address, and reads the status of an error in its body."""
    named = {"identifier": {"namespace": list(identifier[:-1]), "name": identifier[-1]}}
    status, response = commit(identifier, json.dumps({**named, **json.loads(body)}).encode())
    return status, {"error": {**response["error"], "code": status}} if "error" in response else response


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as running:
        running._commit = partial(commit_from_java, running._commit)  # type: ignore[method-assign]
        running.catalog.create_namespace("public")
        running.catalog.create_table("public.events", pa.schema([("region", pa.string()), ("id", pa.int64())]))
        yield running


@pytest.fixture
def lake(stub: RestStub, tmp_path: Path) -> SparkLake:
    """Events that are there already, so that the next commit is Spark's."""
    iceberg = IcebergResource(
        catalog_type="rest",
        catalog_uri=stub.url,
        catalog_properties={"access_delegation": "none", "retry": '{"max_attempts": 1}'},
        manager=TableManagerSettings(retry_base_delay_seconds=0.1, max_commit_retries=2),
    )
    opened = SparkLake(tmp_path, iceberg, spark_resource(iceberg))
    opened.write(opened.frame({"region": ["eu"], "id": [0]}), idempotency_key="first")
    return opened


def keys_of(lake: SparkLake) -> list[str | None]:
    """The work that main's history holds, oldest first."""
    return [
        snapshot.summary["floe.idempotency-key"] for snapshot in lake.table().metadata.snapshots if snapshot.summary
    ]


@pytest.mark.requirement("S2-FR-022", "S2-FR-026")
@pytest.mark.parametrize("mode", [WriteMode.APPEND, WriteMode.OVERWRITE])
@pytest.mark.parametrize("lost_response", [AFTER_THE_WORK, Fault(reset=True, after_work=True)])
def test_a_commit_that_landed_without_a_response_is_done(
    lake: SparkLake, stub: RestStub, mode: WriteMode, lost_response: Fault
) -> None:
    stub.fail("POST", COMMIT, lost_response)

    written = lake.write(lake.frame({"region": ["us"], "id": [1]}), mode=mode, idempotency_key="second")

    assert keys_of(lake) == ["first", "second"]
    assert written.snapshot.snapshot_id == lake.table().metadata.snapshots[-1].snapshot_id
    assert (written.rows, len(lake.rows())) == (1, 2 if mode is WriteMode.APPEND else 1)


def test_a_commit_that_never_arrived_is_unknown_and_found_missing_by_a_retry(lake: SparkLake, stub: RestStub) -> None:
    frame = lake.frame({"region": ["us"], "id": [1]})
    stub.fail("POST", COMMIT, BEFORE_THE_WORK)

    with pytest.raises(CommitOutcomeUnknownError) as caught:
        lake.write(frame, mode=WriteMode.APPEND, idempotency_key="second")
    assert caught.value.retryable
    assert keys_of(lake) == ["first"]

    lake.write(frame, mode=WriteMode.APPEND, idempotency_key="second")
    assert keys_of(lake) == ["first", "second"]


def test_doing_the_same_work_again_writes_nothing(lake: SparkLake) -> None:
    frame = lake.frame({"region": ["us"], "id": [1]})

    first = lake.write(frame, mode=WriteMode.APPEND, idempotency_key="second")
    again = lake.write(frame, mode=WriteMode.APPEND, idempotency_key="second")

    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again.snapshot.snapshot_id == first.snapshot.snapshot_id
    assert len(lake.rows()) == 2


@pytest.mark.requirement("S2-FR-029")
def test_a_lost_race_is_run_again_by_iceberg_itself(lake: SparkLake, stub: RestStub) -> None:
    stub.fail("POST", COMMIT, LOST, LOST)

    written = lake.write(lake.frame({"region": ["us"], "id": [1]}), mode=WriteMode.APPEND)

    assert written.attempts == 1
    assert len(lake.rows()) == 2


def just_before_the_commit(stub: RestStub, rows: pa.Table) -> None:
    """Let another writer append when Spark's commit is on its way."""
    commit, others = stub._commit, [rows]

    def after_the_other(identifier: tuple[str, ...], body: bytes) -> tuple[int, dict[str, Any]]:
        while others:
            stub.catalog.load_table(identifier).append(others.pop())
        return commit(identifier, body)

    stub._commit = after_the_other  # type: ignore[method-assign]


@pytest.mark.requirement("S2-FR-028")
def test_rows_that_another_writer_changed_are_not_overwritten(lake: SparkLake, stub: RestStub) -> None:
    just_before_the_commit(stub, pa.table({"region": ["eu"], "id": [7]}))

    with pytest.raises(CommitConflictError, match="another writer changed the rows being replaced"):
        lake.write(lake.frame({"region": ["eu"], "id": [1]}), rows=keyed("region", "eu"))

    assert lake.rows("region", "id") == [("eu", 0), ("eu", 7)]


@pytest.mark.requirement("S2-US5.3", "S2-SC-006")
def test_another_writer_of_other_rows_is_no_conflict(lake: SparkLake, stub: RestStub) -> None:
    just_before_the_commit(stub, pa.table({"region": ["us"], "id": [7]}))

    lake.write(lake.frame({"region": ["eu"], "id": [1]}), rows=keyed("region", "eu"))

    assert lake.rows("region", "id") == [("eu", 1), ("us", 7)]
