"""A misspelled field of a resource, an IO manager or a run's config is an error that names the right one."""

from collections.abc import Callable
from typing import Any

import pytest

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, IcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.maintenance.settings import HealthConfig, MaintenanceConfig
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource, TableManagerSettings

ICEBERG = IcebergResource()


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (
            lambda: IcebergResource(warehose="/lake"),
            "IcebergResource has no field 'warehose'. Did you mean 'warehouse'",
        ),
        (lambda: TableManagerSettings(max_commit_retry=1), "Did you mean 'max_commit_retries'"),
        (lambda: IcebergSparkResource(iceberg=ICEBERG, mster="yarn"), "Did you mean 'master'"),
        (lambda: IcebergIOManager(iceberg=ICEBERG, wirte_mode="append"), "Did you mean 'write_mode'"),
        (lambda: ArrowIcebergIOManager(iceberg=ICEBERG, default_name_space="x"), "Did you mean 'default_namespace'"),
        (lambda: SparkIcebergIOManager(iceberg=ICEBERG, pysparc=None), "Did you mean 'pyspark'"),
        (lambda: MaintenanceConfig(tabels=["gold.*"]), "Did you mean 'tables'"),
        (lambda: HealthConfig(xyz=1), "HealthConfig has no field 'xyz'. It has: tables, dry_run, engine"),
    ],
    ids=["resource", "manager", "spark", "io manager", "arrow", "spark io manager", "run config", "nothing close"],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(build: Callable[[], Any], hint: str) -> None:
    with pytest.raises(ValidationError) as refused:
        build()

    assert hint in str(refused.value)
