"""Credentials that may do less than everything: what they may do works, and the rest fails with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from dagster import Failure, asset, materialize
from pyspark.sql import DataFrame
from support.distant_lake import DistantLake
from support.servers.faults import Seen
from support.servers.proxy import Response
from support.servers.running import BUCKET, Servers
from support.servers.s3_proxy import S3Proxy, Upstream, s3_error
from support.spark_session import spark_resource

from floe_dagster_iceberg import ArrowIcebergIOManager, IcebergIOManager, IcebergResource
from floe_dagster_iceberg.errors import WriteError

ROWS = pa.table({"id": [1, 2], "day": [date(2024, 1, 1), date(2024, 1, 2)]})


class Policy(S3Proxy):
    """A store whose keys may read everything, and write only below some prefixes."""

    writable: tuple[str, ...] = ()

    def respond(self, seen: Seen, upstream: Upstream) -> Response:
        path = unquote(urlsplit(seen.path).path)
        if seen.method not in ("GET", "HEAD") and not path.startswith(tuple(f"/{BUCKET}/{p}" for p in self.writable)):
            return s3_error(403, "AccessDenied", "Access Denied")
        return super().respond(seen, upstream)


@dataclass
class Restricted:
    """A lake with a table that somebody else has written."""

    lake: DistantLake
    policy: Policy

    @property
    def iceberg(self) -> IcebergResource:
        place = self.lake.place
        config = {**place.storage_config, "endpoint": self.policy.endpoint}
        return IcebergResource(
            catalog_uri=place.catalog_config["uri"],
            warehouse=place.warehouse_uri,
            storage_type="s3",
            storage_properties=config,
        )


@pytest.fixture
def restricted(tmp_path: Path, servers: Servers) -> Iterator[Restricted]:
    with DistantLake.open(servers, "sqlite", tmp_path) as lake, Policy(servers.s3).serving() as policy:
        manager = lake.place.iceberg().table_manager
        manager.create_namespace("sales")
        manager.create_table("sales.orders", ROWS.schema)
        manager.append("sales.orders", ROWS)
        manager.create_namespace("open")
        yield Restricted(lake, policy)


def write(iceberg: IcebergResource, namespace: str) -> Any:
    @asset(key=[namespace, "copies"])
    def copies() -> pa.Table:
        return ROWS

    return materialize([copies], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})


@asset(key=["sales", "orders"])
def orders() -> pa.Table:
    return ROWS


def test_keys_that_may_only_read_load_inputs(restricted: Restricted) -> None:
    loaded: list[pa.Table] = []

    @asset
    def report(orders: pa.Table) -> None:
        loaded.append(orders)

    resources = {"io_manager": ArrowIcebergIOManager(iceberg=restricted.iceberg)}
    materialize([orders, report], selection=[report], resources=resources)

    assert loaded[0].num_rows == 2
    assert {seen.method for seen in restricted.policy.seen} <= {"GET", "HEAD"}


def test_keys_that_may_only_read_load_inputs_with_spark(restricted: Restricted) -> None:
    loaded: list[int] = []

    @asset
    def report(orders: DataFrame) -> None:
        loaded.append(orders.count())

    iceberg = restricted.iceberg
    manager = IcebergIOManager(iceberg=iceberg, pyspark=spark_resource(iceberg))
    materialize([orders, report], selection=[report], resources={"io_manager": manager})

    assert loaded == [2]
    assert {seen.method for seen in restricted.policy.seen} <= {"GET", "HEAD"}


def test_keys_for_one_namespace_write_there(restricted: Restricted) -> None:
    restricted.policy.writable = ("warehouse/open/",)

    assert write(restricted.iceberg, "open").success

    assert restricted.lake.place.connect().load_table("open.copies").scan().to_arrow().num_rows == 2


def test_the_first_write_that_is_refused_says_where_and_what_to_check(restricted: Restricted) -> None:
    with pytest.raises(Failure) as caught:
        write(restricted.iceberg, "sales")

    message = str(caught.value.description)
    assert f"The location 's3://{BUCKET}/warehouse/sales/copies' cannot be written to" in message
    assert "Check that it exists and that the storage credentials may write there" in message
    assert "floe-s3-secret" not in message
    assert not restricted.lake.place.connect().table_exists("sales.copies")


def test_a_health_check_writes_only_on_request(restricted: Restricted) -> None:
    restricted.policy.seen.clear()
    assert restricted.iceberg.health_check().state == "healthy"
    assert not restricted.policy.seen

    asked = restricted.iceberg.health_check(writes=True)

    assert asked.state == "unhealthy"
    assert "cannot be written to. Check that it exists" in asked.message


def test_the_storage_is_checked_at_the_start_if_that_is_set(restricted: Restricted) -> None:
    iceberg = IcebergResource(
        **{
            **{name: getattr(restricted.iceberg, name) for name in ("catalog_uri", "warehouse", "storage_properties")},
            "storage_type": "s3",
            "check_storage_at_start": True,
        }
    )

    with pytest.raises(WriteError, match="cannot be written to"):
        iceberg.setup_for_execution(None)  # type: ignore[arg-type]
