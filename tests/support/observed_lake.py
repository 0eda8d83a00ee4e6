"""A lake whose tables others write, and Dagster definitions that observe them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pyarrow as pa
from support.lake import Lake

from floe_dagster_iceberg import IcebergResource, build_iceberg_observations

VERSION = "dagster/data_version"


@dataclass
class ObservedLake:
    """A plain PyIceberg client writes; the package only looks."""

    lake: Lake
    instance: dg.DagsterInstance
    tables: Sequence[str | dg.AssetSpec] = ("bronze.t",)
    iceberg: IcebergResource = field(init=False)

    def __post_init__(self) -> None:
        self.iceberg = self.lake.place.iceberg()

    def definitions(self, **settings: Any) -> dg.Definitions:
        return build_iceberg_observations(self.tables, iceberg=self.iceberg, **settings)

    def observe(self, *, fails: bool = False, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
        """Run the observation job as the daemon would."""
        job = self.definitions().resolve_job_def("iceberg_observations_job")
        run_config = {"ops": {"iceberg_observations": {"config": config or {}}}}
        result = job.execute_in_process(run_config=run_config, instance=self.instance, raise_on_error=False)
        assert result.success is not fails
        return result

    def version(self, key: str = "bronze/t") -> str:
        """The data version that an observation stores."""
        self.observe()
        return (self.last(key).tags or {})[VERSION]

    def last(self, key: str = "bronze/t") -> dg.AssetObservation:
        """The newest stored observation."""
        records = self.instance.fetch_observations(dg.AssetKey(key.split("/")), limit=1).records
        observation = records[0].asset_observation
        assert observation is not None
        return observation

    def metadata(self, key: str = "bronze/t") -> dict[str, Any]:
        return {name: value.value for name, value in self.last(key).metadata.items()}

    def materialized(self, key: str = "bronze/t") -> list[tuple[str | None, str]]:
        """Partition and data version of the stored materializations, oldest first."""
        records = self.instance.fetch_materializations(dg.AssetKey(key.split("/")), limit=1000, ascending=True).records
        found = [record.asset_materialization for record in records]
        return [(each.partition, (each.tags or {})[VERSION]) for each in found if each is not None]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})
