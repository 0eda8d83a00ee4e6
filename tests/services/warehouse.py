"""An empty lake and one engine to fill it with: what behaviour tests are written against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from dagster import AssetsDefinition, DagsterInstance, ExecuteInProcessResult, materialize
from pyiceberg.table import Table

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager


@dataclass
class Warehouse:
    """An empty lake and one engine to fill it with."""

    engine: str
    iceberg: IcebergResource
    io_manager: IcebergIOManagerBase
    instance: DagsterInstance

    @property
    def resources(self) -> Mapping[str, Any]:
        return {"io_manager": self.io_manager}

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def with_settings(self, **settings: Any) -> "Warehouse":
        """The same lake through an IO manager with other settings."""
        return replace(self, io_manager=type(self.io_manager)(iceberg=self.iceberg, **settings))

    def frame(self, columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema | None = None) -> Any:
        """A frame of the engine's own kind."""
        return columns if isinstance(columns, pa.Table) else pa.table(dict(columns), schema=schema)

    def run(
        self,
        assets: AssetsDefinition | Sequence[AssetsDefinition],
        partition_key: str | None = None,
        *,
        key_range: tuple[str, str] | None = None,
        instance: DagsterInstance | None = None,
        **kwargs: Any,
    ) -> ExecuteInProcessResult:
        """Materialize assets for one partition, a range of them in one run, or none."""
        tags = dict(kwargs.pop("tags", {}))
        if key_range is not None:
            tags |= {
                "dagster/asset_partition_range_start": key_range[0],
                "dagster/asset_partition_range_end": key_range[1],
            }
        return materialize(
            [assets] if isinstance(assets, AssetsDefinition) else list(assets),
            partition_key=partition_key,
            resources=self.resources,
            instance=instance or self.instance,
            tags=tags,
            **kwargs,
        )

    def table(self, name: str) -> Table:
        """The table as a plain PyIceberg client sees it."""
        return self.iceberg.catalog.load_table(name if "." in name else f"public.{name}")

    def exists(self, name: str) -> bool:
        return bool(self.iceberg.catalog.table_exists(name if "." in name else f"public.{name}"))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, sorted."""
        found = self.table(name).scan(selected_fields=columns or ("*",)).to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)
