"""A small pipeline that breaks on demand: in its catalog, in its code, or by dying.

Tests run it in their own process or start this file as another one. All it knows is the
folder that `$FLOE_TEST_LAKE` names; what is to go wrong is written there, too. Dagster's own
storage is another folder, which several lakes share.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    Definitions,
    JobDefinition,
    MaterializeResult,
    RetryRequested,
    asset,
    define_asset_job,
    in_process_executor,
    multi_asset,
    multiprocess_executor,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.audits.asset import audited_asset, audited_assets
from floe_dagster_iceberg.io_managers.create import create_io_manager
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.models import IcebergIOManagerConfig
from floe_dagster_iceberg.resources import IcebergResource

LAKE, HOME = "FLOE_TEST_LAKE", "FLOE_TEST_DAGSTER_HOME"
READING = "The changes are read as a DataFrame."
Fault = Literal["none", "die before", "die after", "lost before", "lost after", "gone before", "gone after"]


def lake() -> Path:
    return Path(os.environ[LAKE])


def plan_faults(*faults: Fault) -> None:
    """What happens to the next commits, one each."""
    (lake() / "faults.json").write_text(json.dumps(faults))


def plan_breakdowns(*places: str) -> None:
    """What happens in the next runs of the code between its outputs: 'retry', 'fail' or nothing."""
    (lake() / "breakdowns.json").write_text(json.dumps(places))


def open_catalog() -> SqlCatalog:
    return SqlCatalog("floe", uri=f"sqlite:///{lake()}/catalog.db?timeout=60", warehouse=f"file://{lake()}/warehouse")


def _take(name: str) -> str:
    file = lake() / name
    planned = json.loads(file.read_text()) if file.exists() else []
    file.write_text(json.dumps(planned[1:]))
    return planned[0] if planned else "none"


class Faults(SqlCatalog):
    """What makes a real catalog lose responses, or go away, before or after a commit."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        return self._break_around(lambda: super(Faults, self).commit_table(table, requirements, updates))

    def commit_tables(self, changes: Any) -> None:
        self._break_around(lambda: super(Faults, self).commit_tables(changes))  # type: ignore[misc]

    def load_table(self, identifier: Any) -> Any:
        if (lake() / "gone").exists():
            (lake() / "gone").unlink()
            raise ConnectionError("the catalog went away")
        return super().load_table(identifier)

    def _break_around(self, commit: Callable[[], Any]) -> Any:
        kind, _, when = _take("faults.json").partition(" ")
        if when == "before":
            self._break(kind)
        response = commit()
        if when == "after":
            self._break(kind)
        return response

    def _break(self, kind: str) -> None:
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "gone":
            (lake() / "gone").touch()
        raise CommitStateUnknownException("the response got lost")


class FaultyCatalog(Faults):
    """A catalog that commits to one table at a time, as Glue and Hive do."""


@multi_asset(
    specs=[
        AssetSpec(name, skippable=True, metadata={"iceberg/write_mode": "append"}).with_io_manager_key("io_manager")
        for name in ("left", "right")
    ]
)
def pair(context: AssetExecutionContext) -> Iterator[Any]:
    """Two tables from one step, and a place to break between them."""
    computed = _count_computation()
    yield MaterializeResult(asset_key="left", value=pa.table({"computed": [computed]}))
    match _take("breakdowns.json"):
        case "retry":
            raise RetryRequested(max_retries=3)
        case "fail":
            raise RuntimeError("it broke between the outputs")
    context.log.info("nothing broke")
    yield MaterializeResult(asset_key="right", value=pa.table({"computed": [computed]}))


@asset
def report(left: pa.Table) -> pa.Table:
    return pa.table({"rows": [left.num_rows]})


@asset(
    ins={"left": AssetIn(metadata=iceberg_settings(changes="appends"))},
    metadata=iceberg_settings(write_mode="append"),
)
def copy(left: pa.Table) -> pa.Table:
    """What was added to a table since the last run, and a place to break after reading it."""
    if _take("breakdowns.json") == "fail":
        raise RuntimeError("it broke after reading")
    return left


def add_row(number: int) -> None:
    """A row for the asset that copies what was added."""
    with closing(open_catalog()) as catalog:
        catalog.load_table("public.left").append(pa.table({"computed": [number]}))


def has_one_row(rows: pa.Table) -> bool:
    """A check, and a place to break between the audit and the publication."""
    match _take("breakdowns.json"):
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "retry":
            raise RetryRequested(max_retries=3)
        case "refuse":
            return False
    return rows.num_rows > 0


@audited_asset(checks=[has_one_row], metadata=iceberg_settings(write_mode="append"))
def audited() -> pa.Table:
    """Rows that know which computation they come from."""
    return pa.table({"computed": [_count_computation()]})


@audited_assets(
    [AssetSpec(name, metadata={"iceberg/write_mode": "append"}) for name in ("orders", "lines")],
    checks={"orders": [has_one_row]},
)
def sales() -> Any:
    """Rows of two tables, which belong together."""
    computed = _count_computation()
    return pa.table({"computed": [computed]}), pa.table({"computed": [computed]})


def _count_computation() -> int:
    file = lake() / "computed"
    computed = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(computed))
    return computed


def build_pipeline(folder: str, job: str = "pipeline") -> JobDefinition:
    """A job on a folder's lake; Dagster keeps what it built, so the folder has to be named."""
    assets = [
        pair,
        report,
        _copy_of_frame() if job == "follow_spark" else copy,
        sales,
        _audited_frame(folder) if job == "audit_spark" else audited,
    ]
    return Definitions(
        assets=assets,
        jobs=[
            define_asset_job("pipeline", selection=[pair, report], executor_def=in_process_executor),
            define_asset_job("audit", selection=["audited"], executor_def=in_process_executor),
            define_asset_job("audit_spark", selection=["audited"], executor_def=in_process_executor),
            define_asset_job("audit_apart", selection=["audited"], executor_def=multiprocess_executor),
            define_asset_job("audit_together", selection=[sales], executor_def=in_process_executor),
            define_asset_job("audit_one_by_one", selection=[sales], executor_def=in_process_executor),
            define_asset_job("follow", selection=["copy"], executor_def=in_process_executor),
            define_asset_job("follow_spark", selection=["copy"], executor_def=in_process_executor),
        ],
        resources={"io_manager": _io_manager(folder, job)},
    ).resolve_job_def(job)


def _io_manager(folder: str, job: str) -> Any:
    if job == "audit_together":
        return IcebergIOManager(iceberg=_faulty_resource(folder))
    if job in {"audit_spark", "follow_spark"}:
        from support.spark_session import spark_resource  # noqa: PLC0415 - starts a JVM

        iceberg = _faulty_resource(folder)
        return IcebergIOManager(iceberg=iceberg, pyspark=spark_resource(iceberg))
    catalog = FaultyCatalog("floe", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    return create_io_manager(IcebergIOManagerConfig(), catalog)


def _faulty_resource(folder: str) -> IcebergResource:
    """A resource whose catalog, which is that of the package, has the same faults."""
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog = iceberg.catalog
    if not isinstance(catalog, Faults):
        catalog.__class__ = type("FaultyCatalog", (Faults, type(catalog)), {})
    return iceberg


def _audited_frame(folder: str) -> AssetsDefinition:
    from support.spark_session import spark_resource  # noqa: PLC0415 - starts a JVM

    pyspark = spark_resource(_faulty_resource(folder))

    @audited_asset(key="audited", checks=[has_one_row], metadata=iceberg_settings(write_mode="append"))
    def audited_frame() -> Any:
        return pyspark.spark_session.createDataFrame([(_count_computation(),)], "computed bigint")

    return audited_frame


def _copy_of_frame() -> AssetsDefinition:
    from pyspark.sql import DataFrame  # noqa: PLC0415 - only one of the jobs needs it

    def copy_of_frame(left: DataFrame) -> DataFrame:
        print(READING, flush=True)  # noqa: T201 - who started the process waits for it
        return left

    return asset(
        key="copy",
        ins={"left": AssetIn(metadata=iceberg_settings(changes="appends"))},
        metadata=iceberg_settings(write_mode="append"),
    )(copy_of_frame)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    with DagsterInstance.local_temp(os.environ[HOME]) as instance:
        job = build_pipeline(str(lake()), name)
        # One run; or, with a number, one for each row that is added from there on, until the process is killed.
        for number in count(int(numbers[0])) if numbers else [None]:
            if number is not None:
                add_row(number)
            job.execute_in_process(instance=instance)
