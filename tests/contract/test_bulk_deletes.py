"""Files are deleted by the thousand where the store can; what it refuses is listed, and nothing else is lost."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from support.distant_lake import DistantLake
from support.servers.faults import Fault, Seen
from support.servers.proxy import Response
from support.servers.running import BUCKET, Servers
from support.servers.s3_proxy import S3Proxy, Upstream, s3_error

from floe_dagster_iceberg._pyiceberg.file_io import FloeFileIO, StoredObject
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    ExpiryPolicy,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
)
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.storage import delete_many

COMMITS = 12
EXPIRE = MaintenancePolicy(expiry=ExpiryPolicy(min_snapshots_to_keep=1))
_KEY = re.compile(rb"<Key>(?P<key>[^<]+)</Key>")


class Locked(S3Proxy):
    """A store that keeps some objects, whoever wants to delete them, as one with an object lock does."""

    kept: tuple[str, ...] = ()

    def respond(self, seen: Seen, upstream: Upstream) -> Response:
        target = urlsplit(seen.path)
        if seen.method == "DELETE" and unquote(target.path).endswith(self.kept or ("\0",)):
            return s3_error(403, "AccessDenied", "locked")
        if seen.method != "POST" or "delete" not in target.query:
            return super().respond(seen, upstream)
        keys = [found["key"].decode() for found in _KEY.finditer(seen.body)]
        refused = [key for key in keys if key.endswith(self.kept or ("\0",))]
        for key in keys:
            if key not in refused:
                (self._s3.folder / BUCKET / key).unlink(missing_ok=True)
        errors = "".join(
            f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>locked</Message></Error>" for key in refused
        )
        body = f"<DeleteResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{errors}</DeleteResult>"
        return Response(200, body.encode(), {"Content-Type": "application/xml"})


@pytest.fixture
def lake(tmp_path: Path, servers: Servers) -> Iterator[DistantLake]:
    with DistantLake.open(servers, "sqlite", tmp_path) as lake:
        yield lake


def io_of(lake: DistantLake, endpoint: str | None = None) -> FloeFileIO:
    storage = lake.place.storage_config
    return FloeFileIO(
        {
            "s3.endpoint": endpoint or storage["endpoint"],
            "s3.region": storage["region"],
            "s3.access-key-id": storage["access_key_id"],
            "s3.secret-access-key": storage["secret_access_key"],
        }
    )


def put(lake: DistantLake, names: list[str]) -> list[str]:
    """Objects, uploaded one by one."""
    io, locations = io_of(lake), [f"s3://{BUCKET}/warehouse/{name}" for name in names]
    for location in locations:
        file = io.new_output(location)
        assert isinstance(file, StoredObject)
        file.write_immutable(b"x")
    return locations


def left_in(lake: DistantLake, folder: str) -> set[str]:
    return {path.name for path in lake.place.files(f"{folder}/**/*")}


def test_a_thousand_files_are_deleted_with_one_request(lake: DistantLake) -> None:
    folder = lake.place.warehouse / "many/day=2024-01-01"
    folder.mkdir(parents=True)
    names = [f"{number}.parquet" for number in range(2500)]
    for name in names:
        # The server's objects are files.
        (folder / name).write_bytes(b"x")
    assert len(lake.place.files("many/**/*")) == 2500
    locations = [f"s3://{BUCKET}/warehouse/many/day=2024-01-01/{name}" for name in names]

    with lake.log.recorded() as log:
        left = delete_many(io_of(lake), locations)

    assert left == []
    assert left_in(lake, "many") == set()
    assert [request.method for request in log.requests] == ["POST"] * 3, log.describe()


def test_files_that_are_gone_already_do_not_count_as_left(lake: DistantLake) -> None:
    locations = put(lake, ["gone/a.parquet", "gone/b.parquet"])
    io = io_of(lake)

    delete_many(io, locations[:1])

    assert delete_many(io, locations) == []


# Their names would be others on the way: slashes are joined, XML has characters of its own, and URLs end at '#'.
@pytest.mark.parametrize(
    "name", ["a//b.parquet", "a/ b.parquet", "a/&amp;.parquet", "a/<b>.parquet", "a/ä.parquet", "a/.b"]
)
def test_a_name_that_might_become_another_is_deleted_by_itself(lake: DistantLake, name: str) -> None:
    plain = [f"s3://{BUCKET}/warehouse/odd/{n}.parquet" for n in range(2)]

    assert io_of(lake).delete_in_bulk([f"s3://{BUCKET}/warehouse/odd/{name}", *plain]) == [
        f"s3://{BUCKET}/warehouse/odd/{name}"
    ]


def test_a_store_that_refuses_some_files_deletes_the_others_and_those_are_listed(
    lake: DistantLake, servers: Servers
) -> None:
    locations = put(lake, [f"locked/{n}.parquet" for n in range(20)])
    with Locked(servers.s3).serving() as store:
        store.kept = ("/7.parquet", "/13.parquet")

        left = delete_many(io_of(lake, store.endpoint), locations)

    assert left == [locations[7], locations[13]]
    assert left_in(lake, "locked") == {"7.parquet", "13.parquet"}


@pytest.mark.parametrize("fault", [Fault(403), Fault(501), Fault(403).after()], ids=["refused", "unknown", "done"])
def test_a_store_without_bulk_deletes_deletes_one_by_one(lake: DistantLake, fault: Fault) -> None:
    locations = put(lake, [f"single/{n}.parquet" for n in range(5)])
    lake.storage.fail("POST", "delete", fault)

    assert delete_many(io_of(lake), locations) == []
    assert left_in(lake, "single") == set()


def expire(iceberg: IcebergResource) -> MaintenanceResult:
    later = datetime.now(UTC) + timedelta(days=30)
    return TableMaintenance(iceberg.table_manager, clock=lambda: later).execute(
        MaintenanceOperation.SNAPSHOT_EXPIRY, "public.orders", EXPIRE
    )


def rewritten_often(lake: DistantLake) -> IcebergResource:
    iceberg = lake.place.iceberg()
    manager = iceberg.table_manager
    manager.create_namespace("public")
    manager.create_table("public.orders", schema=pa.schema({"id": pa.int64()}))
    for number in range(COMMITS):
        manager.overwrite("public.orders", pa.table({"id": [number]}))
    return iceberg


def test_expiry_deletes_all_files_of_a_batch_with_one_request(lake: DistantLake) -> None:
    iceberg = rewritten_often(lake)
    before = len(lake.place.files())

    with lake.log.recorded() as log:
        result = expire(iceberg)

    assert (result.status, result.files_left) == (MaintenanceStatus.DONE, ())
    assert result.files_removed >= 2 * (COMMITS - 1)
    assert len(lake.place.files()) < before
    deletes = [request for request in log.requests if request.method in ("POST", "DELETE")]
    assert len(deletes) <= 2, log.describe()


def test_expiry_lists_the_files_that_the_store_does_not_delete(lake: DistantLake, servers: Servers) -> None:
    iceberg = rewritten_often(lake)
    with Locked(servers.s3).serving() as store:
        oldest = min((lake.place.warehouse / "public/orders/data").rglob("*.parquet"), key=lambda p: p.stat().st_mtime)
        store.kept = (oldest.name,)
        storage = {**lake.place.storage_config, "endpoint": store.endpoint}

        result = expire(
            IcebergResource(
                catalog_uri=lake.place.catalog_config["uri"],
                warehouse=lake.place.warehouse_uri,
                storage_type="s3",
                storage_properties=storage,
            )
        )

    assert result.status is MaintenanceStatus.DONE
    assert [location.rpartition("/")[2] for location in result.files_left] == [oldest.name]
    assert oldest.exists()
    assert iceberg.table_manager.scan("public.orders").num_rows == 1
