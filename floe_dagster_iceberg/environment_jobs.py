"""Jobs that compare, publish and drop environments, for CI and the UI."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from floe_dagster_iceberg.environments import environment_name
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.resources import IcebergResource

if TYPE_CHECKING:
    # It loads PyIceberg, which takes seconds; loading definitions must not.
    from floe_dagster_iceberg.table.environments import IcebergEnvironments

JOBS: Final = "iceberg_environment"
_MOST_PARTITIONS: Final = 20

Metadata = Mapping[str, dg.MetadataValue[Any]]
Work = Callable[["IcebergEnvironments", str], Metadata]


class EnvironmentConfig(dg.Config):
    """Run config of the jobs."""

    environment: str | None = Field(
        default=None,
        description="The environment, or the Git branch that it was made of; that of the resource if not given.",
    )


def build_environment_definitions(
    *, iceberg_resource_key: str = "iceberg", spark_resource_key: str | None = None, name: str = JOBS
) -> dg.Definitions:
    """Build three jobs for the environments of a catalog: `<name>_diff`, `<name>_publish` and `<name>_drop`.

    Their run config names the environment. What they find and do is metadata of the output of their only op, which has
    the job's name. The jobs do what `floe-iceberg env` does, where CI can start runs and no commands.

    `<name>_publish` fails in a deployment that is an environment itself: nothing there moves `main`.

    Args:
        iceberg_resource_key: Key of the `IcebergResource`.
        spark_resource_key: Key of the `IcebergSparkResource`, for tables that PyIceberg cannot commit to.
        name: The first part of the names; for several catalogs in one code location.
    """
    keys = {key for key in (iceberg_resource_key, spark_resource_key) if key is not None}

    def build_job(suffix: str, description: str, work: Work, *, moves_main: bool = False) -> dg.JobDefinition:
        @dg.op(name=f"{name}_{suffix}", description=description, required_resource_keys=keys, out=dg.Out(dg.Nothing))
        def run(context: dg.OpExecutionContext, config: EnvironmentConfig) -> None:
            iceberg: IcebergResource = getattr(context.resources, iceberg_resource_key)
            source = iceberg if spark_resource_key is None else getattr(context.resources, spark_resource_key)
            try:
                environment = _choose(iceberg, config, moves_main=moves_main)
                metadata = work(_open(source), environment)
            except FloeStorageError as error:
                raise to_failure(error) from error
            context.add_output_metadata(metadata)

        @dg.job(name=f"{name}_{suffix}", description=description)
        def environment_job() -> None:
            run()

        return environment_job

    return dg.Definitions(
        jobs=[
            build_job("diff", "Shows how an environment differs from main. Changes nothing.", _diff),
            build_job(
                "publish",
                "Puts the changes of an environment onto main, in all its tables at once, and removes its branches.",
                _publish,
                moves_main=True,
            ),
            build_job("drop", "Removes the branches of an environment from all tables.", _drop),
        ]
    )


def _choose(iceberg: IcebergResource, config: EnvironmentConfig, *, moves_main: bool) -> str:
    own = iceberg.environment_name
    if moves_main and own is not None:
        raise ValidationError(
            f"Publishing moves main, and this deployment is environment '{own}'. Nothing was changed. Run the job "
            "where IcebergResource has no environment."
        )
    if (chosen := config.environment or own) is None:
        raise ValidationError(
            "The run names no environment, and IcebergResource has none. Set 'environment' in the run config of the op."
        )
    return chosen


def _open(source: Any) -> "IcebergEnvironments":
    from floe_dagster_iceberg.table.environments import IcebergEnvironments  # noqa: PLC0415 - it loads PyIceberg

    return IcebergEnvironments(source.table_manager)


def _diff(environments: "IcebergEnvironments", name: str) -> Metadata:
    diff = environments.diff(name)
    return {
        "iceberg/environment": dg.MetadataValue.text(diff.name),
        "iceberg/rows_added": dg.MetadataValue.int(sum(each.rows_added for each in diff.tables)),
        "iceberg/rows_removed": dg.MetadataValue.int(sum(each.rows_removed for each in diff.tables)),
        "iceberg/results": _table(
            {
                "table": each.table,
                "rows in main": each.rows_in_main,
                "rows": each.rows_in_environment,
                "rows added": each.rows_added,
                "rows removed": each.rows_removed,
                "partitions": _some(each.partitions),
                "columns added": ", ".join(each.columns_added),
                "commits": each.commits,
                "commits of main": each.main_commits,
            }
            for each in diff.tables
        ),
    }


def _publish(environments: "IcebergEnvironments", name: str) -> Metadata:
    result = environments.publish(name)
    return {
        "iceberg/environment": dg.MetadataValue.text(environment_name(name)),
        "iceberg/atomic": dg.MetadataValue.bool(result.atomic),
        "iceberg/results": _table(
            # JSON has no integers that long.
            {"table": each.table, "snapshot of main": str(each.snapshot_id), "replayed": each.replayed}
            for each in result.tables
        ),
    }


def _drop(environments: "IcebergEnvironments", name: str) -> Metadata:
    dropped = environments.drop(name)
    return {
        "iceberg/environment": dg.MetadataValue.text(dropped.name),
        "iceberg/results": _table(
            {"table": table, "created by it and empty": table in dropped.empty_tables} for table in dropped.tables
        ),
    }


def _table(rows: Any) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows])


def _some(partitions: Sequence[str]) -> str:
    more = len(partitions) - _MOST_PARTITIONS
    return ", ".join([*partitions[:_MOST_PARTITIONS], *([f"{more} more"] if more > 0 else [])])
