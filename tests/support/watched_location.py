"""A small code location that is watched as the artifacts in `$FLOE_ARTIFACTS` say; started as a process of its own."""

import json
import os
import sys
from typing import Any

import pyarrow as pa
from dagster import (
    AssetSelection,
    DagsterInstance,
    Definitions,
    asset,
    define_asset_job,
    execute_job,
    materialize,
    reconstructable,
)

from floe_dagster_iceberg import CompiledArtifacts, create_iceberg_resources


@asset(io_manager_key="iceberg_arrow_io_manager")
def orders() -> pa.Table:
    return pa.table({"id": [1, 2, 3]})


@asset(io_manager_key="iceberg_arrow_io_manager")
def customers(orders: pa.Table) -> pa.Table:
    return orders


bundle = create_iceberg_resources(CompiledArtifacts.from_environment(), assets=[orders, customers], maintenance=False)
loaded_too_early = "opentelemetry.sdk" in sys.modules


def build_job() -> Any:
    """The job as every step's process builds it."""
    whole = define_asset_job("whole", selection=AssetSelection.assets(orders, customers).without_checks())
    return Definitions.merge(bundle.definitions(), Definitions(jobs=[whole])).resolve_job_def("whole")


def run_in_this_process() -> bool:
    return materialize([orders, customers], resources=dict(bundle)).success


def run_in_processes() -> bool:
    with DagsterInstance.get() as instance, execute_job(reconstructable(build_job), instance=instance) as result:
        return result.success


def main(how: str) -> None:
    """Run both assets, and say what became of it."""
    environment = dict(os.environ)
    success = run_in_this_process() if how == "in-process" else run_in_processes()
    result = {"success": success, "environment_kept": dict(os.environ) == environment, "early": loaded_too_early}
    print(json.dumps(result))  # noqa: T201 - the result


if __name__ == "__main__":
    main(sys.argv[1])
