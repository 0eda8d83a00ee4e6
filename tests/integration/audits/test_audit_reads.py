"""What ready-made checks read: metadata where that suffices, else one scan of what they need."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.reading_io import READING_IO, reading

from floe_dagster_iceberg import (
    ArrowIcebergIOManager,
    AuditCheck,
    AuditedTable,
    IcebergResource,
    audited_asset,
    iceberg_settings,
    matches_schema,
    not_null,
    row_count_between,
    row_count_change_within,
    unique,
)

ROWS = pa.table({"id": [1, 2, 3], "region": ["EU", "US", "EU"]})
BY_METADATA = [
    not_null("id", "region"),
    row_count_between(1, 10),
    row_count_change_within(0.1),
    matches_schema({"id": "long", "region": "string"}),
]


def data_files_opened(check: AuditCheck, folder: Path) -> tuple[int, str]:
    """How many data files a check opens when it is evaluated, and what its result says about that."""
    found: list[Any] = []

    def counted(table: AuditedTable) -> bool:
        with reading() as opened:
            result = check.function(table)
            found.extend([sum(location.endswith(".parquet") for location in opened), result])
        return bool(result.passed)

    @audited_asset(checks=[counted], metadata=iceberg_settings(write_mode="overwrite"))
    def orders() -> pa.Table:
        return ROWS

    iceberg = IcebergResource(
        catalog_uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        catalog_properties=READING_IO,
    )
    for _ in range(2):
        found.clear()
        assert dg.materialize([orders], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}).success
    opened, result = found
    return opened, str(result.metadata["iceberg/evaluated_by"].value)


@pytest.mark.parametrize("check", BY_METADATA, ids=lambda check: check.name)
def test_a_check_of_metadata_opens_no_data_file(check: AuditCheck, tmp_path: Path) -> None:
    assert data_files_opened(check, tmp_path) == (0, "metadata")


def test_a_scan_opens_each_data_file_once(tmp_path: Path) -> None:
    assert data_files_opened(unique("id"), tmp_path) == (1, "scan")
