"""Spark on Polaris: tokens that are renewed, keys that are vended, and an endpoint that the server chooses."""

import logging
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.polaris_lake import PolarisLake
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.errors import FloeStorageError, WriteError
from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark.exactly_once import write_once
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

ROWS = pa.table({"id": [1, 2]})
SLOW = "cast(reflect('java.lang.Thread', 'sleep', {ms}L) is null as int)"


def write(iceberg: IcebergResource, session: SparkSession, key: str, *, sleep_ms: int = 0) -> TableWriteResult:
    frame = to_frame(session, ROWS)
    if sleep_ms:
        frame = frame.selectExpr(f"id + 0 * {SLOW.format(ms=sleep_ms)} AS id")
    work = TableWrite(
        table=TableIdentifier.from_string("sales.orders"),
        idempotency_key=key,
        mode=WriteMode.APPEND,
        scope=RowScope(ALL_ROWS),
    )
    return write_once(iceberg.catalog, frame, work, CommitBudget(retries=3, base_delay_seconds=0.1))


@pytest.mark.requirement("S3-1", "S2-FR-046")
def test_spark_writes_with_vended_keys_and_nothing_secret_is_logged(
    polaris: PolarisLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    iceberg = polaris.resource()
    write(iceberg, spark_resource(iceberg).spark_session, "first")
    assert polaris.rows(iceberg.catalog.load_table("sales.orders")) == [(1,), (2,)]
    secrets = [*polaris.storage.vended, polaris.gateway.client_secret]
    assert not [secret for secret in secrets if secret in caplog.text]


@pytest.fixture
def short_tokens(polaris: PolarisLake) -> Iterator[PolarisLake]:
    polaris.gateway.tokens.lifetime_seconds = 2.0
    yield polaris
    polaris.gateway.tokens.lifetime_seconds = 3600.0


@pytest.mark.requirement("S3-1")
def test_spark_renews_its_token_while_a_long_write_runs(short_tokens: PolarisLake) -> None:
    iceberg = short_tokens.resource(catalog_name="renewing_spark")
    session = spark_resource(iceberg).spark_session
    write(iceberg, session, "first")
    issued = short_tokens.gateway.tokens.issued
    write(iceberg, session, "second", sleep_ms=2500)
    assert short_tokens.gateway.tokens.issued > issued
    assert len(short_tokens.rows(iceberg.catalog.load_table("sales.orders"))) == 4


@pytest.mark.slow
@pytest.mark.requirement("S3-1")
def test_vended_keys_that_expire_are_renewed_by_spark(polaris: PolarisLake) -> None:
    iceberg = polaris.resource(catalog_name="lent_to_spark")
    session = spark_resource(iceberg).spark_session
    write(iceberg, session, "first")
    polaris.storage.lifetime_seconds = 2.0
    write(iceberg, session, "second", sleep_ms=3500)
    polaris.storage.lifetime_seconds = 3600.0
    assert len(polaris.rows(iceberg.catalog.load_table("sales.orders"))) == 4


@pytest.mark.slow
@pytest.mark.requirement("S3-1")
def test_vended_keys_that_are_not_renewed_fail_the_write_and_the_next_run_gets_new_ones(polaris: PolarisLake) -> None:
    polaris.gateway.renews = False
    iceberg = polaris.resource(catalog_name="lent_once")
    session = spark_resource(iceberg).spark_session
    write(iceberg, session, "first")
    polaris.storage.lifetime_seconds = 2.0
    with pytest.raises(WriteError, match="denied access"):
        write(iceberg, session, "second", sleep_ms=3500)
    polaris.storage.lifetime_seconds = 3600.0
    write(iceberg, session, "second")
    assert len(polaris.rows(iceberg.catalog.load_table("sales.orders"))) == 4


@pytest.mark.requirement("S3-1")
def test_an_endpoint_that_the_server_sets_is_kept_off_by_pyiceberg_and_not_by_spark(polaris: PolarisLake) -> None:
    iceberg = polaris.resource(catalog_name="moved")
    session = spark_resource(iceberg).spark_session
    write(iceberg, session, "first")
    # Where the server knows the store by a name that means nothing here.
    polaris.gateway.table_config = {"s3.endpoint": "http://127.0.0.1:9"}

    iceberg.table_manager.append("sales.orders", ROWS)
    with pytest.raises(FloeStorageError) as failure:
        write(iceberg, session, "second")

    assert "sales.orders" in str(failure.value)
    assert len(polaris.rows(iceberg.catalog.load_table("sales.orders"))) == 4
