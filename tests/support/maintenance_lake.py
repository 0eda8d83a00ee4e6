"""A lake in need of maintenance, and questions to ask it without believing the assets."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from dagster import (
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    MetadataValue,
    TableMetadataValue,
    TextMetadataValue,
)
from pyiceberg.table import Table

from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

GROUP = "iceberg_maintenance"


@dataclass
class NeglectedLake:
    """Tables of many small files and snapshots, on a SQLite catalog of their own."""

    folder: Path

    @property
    def iceberg(self) -> IcebergResource:
        return IcebergResource(
            catalog_uri=f"sqlite:///{self.folder}/catalog.db", warehouse=f"file://{self.folder}/warehouse"
        )

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def artifacts(self, *, governance: Mapping[str, Any] | None = None, **orchestrator: Any) -> dict[str, Any]:
        """Compiled artifacts that name this lake."""
        catalog = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/warehouse"}
        return {
            "metadata": {"product_name": "Shop"},
            "plugins": {
                "catalog": {"type": "sql", "config": {"catalog_name": "floe", **catalog}},
                "orchestrator": {"type": "dagster", "config": orchestrator},
            },
            "governance": dict(governance or {}),
        }

    def fill(self, table: str, *, files: int = 6, properties: Mapping[str, str] | None = None) -> None:
        """A table with so many files and snapshots."""
        namespace = table.rpartition(".")[0]
        self.manager.create_namespace(namespace, if_not_exists=True)
        self.manager.create_table(table, pa.schema([("id", pa.int64())]), properties=properties)
        self.append(table, files=files)

    def append(self, table: str, *, files: int) -> None:
        """So many more files and snapshots."""
        for number in range(files):
            self.manager.append(table, pa.table({"id": [number]}))

    def table(self, name: str) -> Table:
        return self.manager.load_table(name)

    def files(self, name: str) -> int:
        return len(self.table(name).inspect.files())

    def snapshots(self, name: str) -> int:
        return len(self.table(name).snapshots())

    def ids(self, name: str) -> list[int]:
        found: list[int] = sorted(self.table(name).scan().to_arrow()["id"].to_pylist())
        return found

    def lose_metadata(self, name: str) -> None:
        """Break a table: its metadata file is gone."""
        Path(self.table(name).metadata_location.removeprefix("file://")).unlink()

    def fingerprint(self) -> dict[str, tuple[int, str]]:
        """Every file of the lake with its modification time and content."""
        return {
            str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and "dagster" not in path.parts
        }


def run_asset(
    definitions: Definitions,
    name: str,
    config: Mapping[str, Any] | None = None,
    *,
    instance: DagsterInstance | None = None,
    succeeds: bool = True,
) -> ExecuteInProcessResult:
    """Run one maintenance asset's job with a configuration as typed into the launchpad."""
    result = definitions.resolve_job_def(f"{GROUP}_{name}_job").execute_in_process(
        run_config={"ops": {f"{GROUP}__{name}": {"config": dict(config or {})}}},
        instance=instance,
        raise_on_error=False,
    )
    assert result.success is succeeds
    return result


def metadata_of(result: ExecuteInProcessResult, name: str) -> dict[str, Any]:
    """Metadata of a maintenance asset's materialization, unwrapped."""
    [event] = result.asset_materializations_for_node(f"{GROUP}__{name}")
    return {key: _unwrapped(value) for key, value in event.metadata.items()}


def _unwrapped(value: Any) -> Any:
    """A plain value: a table as Markdown, and a count as a number also where it is shown as text."""
    match value:
        case TableMetadataValue():
            rows = [tuple(record.data.values()) for record in value.records]
            head = tuple(column.name for column in value.schema.columns)
            return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ("---",) * len(head), *rows))
        case TextMetadataValue() if str(value.text).isdecimal():
            return int(str(value.text))
        case MetadataValue():
            return value.value
        case _:
            return value
