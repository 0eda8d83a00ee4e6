"""The component of an asset whose rows are the result of a SELECT that Spark runs."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import dagster as dg
import pydantic
from pydantic import Field

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.audits import checks as audits
from floe_dagster_iceberg.audits.asset import audited_asset
from floe_dagster_iceberg.components.fields import TEMPLATE, CheckedField, StrictComponent
from floe_dagster_iceberg.components.select_tables import find_tables, with_frames
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.quantities import Duration

_IO_MANAGER: Final = "iceberg_spark_io_manager"
_KIND_TAG: Final = "dagster/kind/"
_MOST_PARTS: Final = 2
_CHECKS: Final[Mapping[str, tuple[Callable[..., audits.AuditCheck], tuple[str, ...]]]] = {
    "accepted_values": (audits.accepted_values, ("column", "values")),
    "freshness_within": (audits.freshness_within, ("column", "age")),
    "not_null": (audits.not_null, ("columns",)),
    "row_count_between": (audits.row_count_between, ("minimum", "maximum")),
    "row_count_change_within": (audits.row_count_change_within, ("fraction",)),
    "unique": (audits.unique, ("columns",)),
}
_SETTINGS: Final = {
    "write_mode": "write_mode",
    "upsert_keys": "upsert_keys",
    "partition_column": "partition_expr",
    "partition_spec": "partition_spec",
    "sort_by": "sort_by",
    "table_properties": "properties",
}


class SelectCheck(FrozenModel):
    """A check of the rows before they are published."""

    type: Literal[
        "accepted_values", "freshness_within", "not_null", "row_count_between", "row_count_change_within", "unique"
    ] = Field(description="The check.")
    columns: list[str] | None = Field(default=None, description="Columns, for not_null and unique.")
    column: str | None = Field(default=None, description="Column, for accepted_values and freshness_within.")
    values: list[str | int | float | bool] | None = Field(default=None, description="Values, for accepted_values.")
    minimum: int | None = Field(default=None, description="Least number of rows, for row_count_between.")
    maximum: int | None = Field(default=None, description="Largest number of rows, for row_count_between.")
    fraction: float | None = Field(default=None, description="Share of the rows, for row_count_change_within.")
    age: Duration[timedelta | None] = Field(default=None, description="Age, for freshness_within.")
    severity: Literal["ERROR", "WARN"] = Field(
        default="ERROR", description="Whether a failure keeps the rows from being published, or is only reported."
    )
    name: str | None = Field(default=None, description="Name of the check; made of its type and columns if not given.")

    @pydantic.model_validator(mode="after")
    def _check_arguments(self) -> Self:
        try:
            self.to_audit()
        except (TypeError, ValidationError) as error:
            raise ValueError(f"{self.type} takes {' and '.join(_CHECKS[self.type][1])}: {error}") from None
        return self

    def to_audit(self) -> audits.AuditCheck:
        """Return the check of an audited asset."""
        build, _ = _CHECKS[self.type]
        options = self.model_dump(exclude_none=True, exclude={"type", "severity", "name", "columns"})
        return build(*(self.columns or ()), severity=dg.AssetCheckSeverity[self.severity], name=self.name, **options)


def _check_select(sql: str) -> str:
    if not TEMPLATE.search(sql):
        try:
            find_tables(sql)
        except ValidationError as error:
            raise ValueError(str(error)) from None
    return sql


Select = Annotated[str, pydantic.AfterValidator(_check_select)]


class SelectScaffolder(dg.Scaffolder[Any]):
    """Writes an asset that copies a table, as a start."""

    def scaffold(self, request: Any) -> None:
        """Write the file of the component."""
        asset = {"key": "silver/orders", "owners": ["team:data"]}
        dg.scaffold_component(
            request, {"asset": asset, "sql": "SELECT * FROM bronze.orders", "write_mode": "overwrite"}
        )


@dg.scaffold_with(SelectScaffolder)
class IcebergSparkSqlComponent(StrictComponent):
    """An asset whose rows are the result of a SELECT.

    Spark runs the SELECT, and the IO manager of this package writes the result: one commit, exactly once, in place of
    the rows of the same partition. The tables that the SELECT names are upstream assets, of which it reads the
    partitions that belong to its own.
    """

    asset: dg.ResolvedAssetSpec = Field(
        description="Key, partitions, owners, group, tags, automation condition, and so on, as Dagster has them."
    )
    sql: Annotated[str | None, CheckedField(Select | None, rendered=False)] = Field(
        default=None,
        description="The SELECT, a Jinja template. ':partition_key', ':partition_start' and ':partition_end' are the "
        "partition's key and time window.",
    )
    sql_file: Annotated[str | None, CheckedField(str | None)] = Field(
        default=None, description="File with the SELECT, from the folder of this file, instead of 'sql'."
    )
    sql_vars: Annotated[Mapping[str, Any], CheckedField(dict[str, Any])] = Field(
        default_factory=dict, description="Variables of the template."
    )
    upstream: Annotated[Mapping[str, str], CheckedField(dict[str, str])] = Field(
        default_factory=dict,
        description="Keys of assets by the names that the SELECT has for their tables, where a key is not "
        "namespace/table.",
    )
    write_mode: Annotated[WriteMode | None, CheckedField(WriteMode | None)] = Field(
        default=None,
        description="append, overwrite or upsert; if not given, an asset with partitions replaces the partition, and "
        "the IO manager decides for others.",
    )
    upsert_keys: Annotated[Sequence[str], CheckedField(list[str])] = Field(
        default=(), description="Columns that identify a row, for upsert."
    )
    partition_column: Annotated[Any, CheckedField(str | dict[str, str] | None)] = Field(
        default=None, description="Column that holds the partition, or one per dimension."
    )
    partition_spec: Annotated[Sequence[str], CheckedField(list[str])] = Field(
        default=(),
        description="Iceberg partitioning of a new table, such as [day(ts)]; as the asset is if not given.",
    )
    sort_by: Annotated[Sequence[str], CheckedField(list[str])] = Field(
        default=(), description="Columns by which the rows of each file are sorted."
    )
    table_properties: Annotated[Mapping[str, str], CheckedField(dict[str, str])] = Field(
        default_factory=dict, description="Properties that are added to the table's."
    )
    checks: Annotated[Sequence[Any], CheckedField(list[SelectCheck])] = Field(
        default=(), description="Checks of the rows; only rows that pass are published."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        folder = context.path if context.path.is_dir() else context.path.parent
        try:
            return dg.Definitions(assets=[self._build_asset(self._render(folder))])
        except ValidationError as error:
            raise ValidationError(
                f"The SQL of asset '{self.asset.key.to_user_string()}' in '{folder}' is not valid: {error}"
            ) from None

    def _render(self, folder: Path) -> str:
        from jinja2 import StrictUndefined, Template, TemplateError  # noqa: PLC0415 - as Dagster does

        if (self.sql is None) == (self.sql_file is None):
            raise ValidationError("It needs a SELECT. Give either 'sql' or 'sql_file'.")
        try:
            text = (folder / self.sql_file).read_text() if self.sql_file is not None else str(self.sql)
            return str(Template(text, undefined=StrictUndefined).render(**self.sql_vars))
        except OSError:
            raise ValidationError(f"There is no file '{self.sql_file}'. Give its path from that folder.") from None
        except TemplateError as error:
            raise ValidationError(
                f"The template of the SQL is not valid: {error}. Name variables in 'sql_vars'."
            ) from None

    def _build_asset(self, sql: str) -> dg.AssetsDefinition:
        tables = find_tables(sql)
        keys = {name: self._key_of(name) for name in dict.fromkeys(table.name for table in tables)}
        inputs = {name: f"table_{number}" for number, name in enumerate(keys)}
        query = with_frames(sql, tables, inputs)

        def select_rows(context: dg.AssetExecutionContext, **frames: Any) -> Any:
            from floe_dagster_iceberg.spark.select import select  # noqa: PLC0415 - imports PySpark

            try:
                return select(context.resources.pyspark.spark_session, query, _arguments(context), frames)
            except FloeStorageError as error:
                raise to_failure(error) from error

        arguments = self._asset_arguments(sql)
        arguments["ins"] = {
            inputs[name]: dg.AssetIn(key=key, input_manager_key=_IO_MANAGER) for name, key in keys.items()
        }
        arguments["deps"] = [dep for dep in self.asset.deps if dep.asset_key not in keys.values()]
        if self.checks:
            return audited_asset(checks=[check.to_audit() for check in self.checks], **arguments)(select_rows)
        asset: dg.AssetsDefinition = dg.asset(**arguments)(select_rows)
        return asset

    def _key_of(self, name: str) -> dg.AssetKey:
        if name in self.upstream:
            return dg.AssetKey.from_user_string(self.upstream[name])
        parts = name.split(".")
        if len(parts) > _MOST_PARTS:
            raise ValidationError(f"Table '{name}' has more parts than namespace.table. Name its asset in 'upstream'.")
        key = dg.AssetKey(parts)
        if key == self.asset.key:
            raise ValidationError(f"The SELECT reads '{name}', the table that it writes. Read another table.")
        return key

    def _asset_arguments(self, sql: str) -> dict[str, Any]:
        spec = self.asset
        given = {_SETTINGS[name]: getattr(self, name) for name in _SETTINGS if name in self.model_fields_set}
        arguments: dict[str, Any] = {
            "key": spec.key,
            "description": spec.description or f"```sql\n{sql.strip()}\n```",
            "metadata": {**spec.metadata, **iceberg_settings(**given)},
            "group_name": spec.group_name,
            "code_version": spec.code_version,
            "owners": list(spec.owners),
            "tags": {name: value for name, value in spec.tags.items() if not name.startswith(_KIND_TAG)},
            "kinds": {*spec.kinds, "iceberg", "spark"},
            "automation_condition": spec.automation_condition,
            "partitions_def": spec.partitions_def,
            "freshness_policy": spec.freshness_policy,
            "io_manager_key": _IO_MANAGER,
            "required_resource_keys": {"pyspark"},
        }
        return {name: value for name, value in arguments.items() if value is not None}


def _arguments(context: dg.AssetExecutionContext) -> dict[str, Any]:
    """What a SELECT may say of its partition; with several in one run, there is a window and no key."""
    arguments: dict[str, Any] = {}
    if context.has_partition_key:
        arguments["partition_key"] = context.partition_key
    if context.has_partition_key_range and context.assets_def.partitions_def is not None:
        definition = context.assets_def.partitions_def
        if isinstance(definition, dg.TimeWindowPartitionsDefinition):
            window = context.partition_time_window
            arguments |= {"partition_start": window.start, "partition_end": window.end}
    return arguments
