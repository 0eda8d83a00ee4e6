"""Settings of assets and inputs in their metadata: typed, validated, merged from definition and output."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, TypedDict, Unpack
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pydantic
from dagster import MetadataValue
from pydantic import AwareDatetime, Field

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import (
    CommitStrategy,
    PartitionSpec,
    RowFilter,
    TableIdentifier,
    WriteConfig,
    WriteMode,
)
from floe_dagster_iceberg.models.base import FrozenModel, first_duplicate
from floe_dagster_iceberg.models.faults import field_errors, nearest
from floe_dagster_iceberg.models.identifiers import Namespace, TableName
from floe_dagster_iceberg.models.writing import ColumnName, EvolutionMode, RowsOutside
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

PREFIX: Final = "iceberg/"
_DAGSTER_WORDS: Final = ("table", "schema", "columns", "partition_expr")
_WRITTEN_BY_US: Final = ("dagster.", "floe.")


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _each_once(columns: tuple[str, ...]) -> tuple[str, ...]:
    if (column := first_duplicate(columns)) is not None:
        raise ValueError(f"column '{column}' is named twice: name each column once")
    return columns


def _texts(value: object) -> object:
    # Iceberg keeps all properties as text, and writes booleans in lower case.
    if not isinstance(value, Mapping):
        return value
    return {key: str(item).lower() if isinstance(item, bool) else str(item) for key, item in value.items()}


def _read_partition_spec(value: object) -> object:
    match _one_or_more(value):
        case list() | tuple() as texts if all(isinstance(text, str) for text in texts):
            return PartitionLayout.from_strings(texts)
        case PartitionLayout() | PartitionSpec() | None:
            return value
        case {"fields": _}:
            return PartitionSpec.model_validate(value)
    raise ValueError('a partition spec is a list such as ["day(ts)", "bucket(16, id)"], or a PartitionSpec')


def _write_partition_spec(spec: PartitionLayout | PartitionSpec | None) -> object:
    return [str(field) for field in spec.fields] if isinstance(spec, PartitionLayout) else spec


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"time zone '{name}' is unknown: use a name such as 'UTC' or 'Europe/Berlin'") from error
    return name


Columns: TypeAlias = Annotated[
    tuple[ColumnName, ...], pydantic.BeforeValidator(_one_or_more), pydantic.AfterValidator(_each_once)
]
Properties: TypeAlias = Annotated[dict[str, str], pydantic.BeforeValidator(_texts)]
SpecSetting: TypeAlias = Annotated[
    PartitionLayout | PartitionSpec | None,
    pydantic.BeforeValidator(_read_partition_spec),
    pydantic.PlainSerializer(_write_partition_spec),
]


class _Settings(FrozenModel):
    """Settings whose aliases are the metadata keys that users write."""

    model_config = pydantic.ConfigDict(populate_by_name=True, hide_input_in_errors=True)
    kind: ClassVar[str]

    @classmethod
    @cache
    def metadata_keys(cls) -> frozenset[str]:
        """The metadata keys that are read."""
        return frozenset(str(field.alias) for field in cls.model_fields.values())

    @classmethod
    def _read(cls, metadata: Mapping[str, Any], owner: str) -> Self:
        known, given = cls.metadata_keys(), dict[str, Any]()
        for key, value in metadata.items():
            if key in known:
                given[key] = value
            elif key.startswith(PREFIX):
                raise ValidationError(_unknown_key_message(key, cls, owner))
        try:
            return cls.model_validate(given)
        except pydantic.ValidationError as error:
            raise ValidationError(f"Metadata of {owner} is not valid: {_reasons(error, cls)}.") from error


class AssetSettings(_Settings):
    """How an asset's output goes into its table."""

    kind: ClassVar[str] = "outputs"

    table: TableName | None = Field(default=None, alias="table", description="Name of the table.")
    namespace: Namespace | None = Field(default=None, alias="schema", description="Namespace of the table.")
    partition_expr: ColumnName | dict[str, ColumnName] | None = Field(
        default=None, alias="partition_expr", description="Column that holds the partition, or one per dimension."
    )
    write_mode: WriteMode | None = Field(
        default=None, alias="iceberg/write_mode", description="What happens to existing rows."
    )
    upsert_keys: Columns = Field(
        default=(), alias="iceberg/upsert_keys", description="Columns that identify a row; only for upsert."
    )
    schema_evolution: EvolutionMode | None = Field(
        default=None, alias="iceberg/schema_evolution", description="Which schema changes a write may cause."
    )
    partition_spec: SpecSetting = Field(
        default=None, alias="iceberg/partition_spec", description="Partitioning of a new table."
    )
    properties: Properties = Field(
        default_factory=dict, alias="iceberg/properties", description="Table properties, added to existing ones."
    )
    sort_by: Columns = Field(
        default=(), alias="iceberg/sort_by", description="Columns by which the rows of each file are sorted."
    )
    branch: str | None = Field(
        default=None, min_length=1, alias="iceberg/branch", description="Branch to write to; main if not given."
    )
    rows_outside_partition: RowsOutside | None = Field(
        default=None,
        alias="iceberg/rows_outside_partition",
        description="What happens to rows that do not belong to the partition being written.",
    )
    commit_strategy: CommitStrategy | None = Field(
        default=None, alias="iceberg/commit_strategy", description="How the commit treats manifests."
    )
    snapshot_properties: Properties = Field(
        default_factory=dict, alias="iceberg/snapshot_properties", description="Properties of the snapshot summary."
    )
    naive_timezone: Annotated[str, pydantic.AfterValidator(_known_timezone)] = Field(
        default="UTC", alias="iceberg/naive_timezone", description="Time zone of timestamps that have none."
    )

    @pydantic.model_validator(mode="after")
    def _check_upsert_keys(self) -> Self:
        if self.write_mode is WriteMode.UPSERT and not self.upsert_keys:
            raise ValueError("upsert needs the columns that identify a row: set 'iceberg/upsert_keys'")
        if self.write_mode not in {None, WriteMode.UPSERT} and self.upsert_keys:
            raise ValueError(f"'iceberg/upsert_keys' is for upsert, but 'iceberg/write_mode' is {self.write_mode}")
        return self

    @pydantic.field_validator("snapshot_properties")
    @classmethod
    def _check_snapshot_properties(cls, properties: dict[str, str]) -> dict[str, str]:
        for key in properties:
            if key.startswith(_WRITTEN_BY_US):
                raise ValueError(f"snapshot property '{key}' is written by this package: choose another name")
        return dict(WriteConfig(snapshot_properties=properties).snapshot_properties)

    @classmethod
    def from_metadata(
        cls, definition: Mapping[str, Any] | None, output: Mapping[str, Any] | None = None, *, owner: str = "the asset"
    ) -> Self:
        """Read the settings of an asset; metadata of the output overrides that of the definition.

        Args:
            definition: Metadata of the asset's definition, plain or as `MetadataValue`s.
            output: Metadata of this output.
            owner: Name of the asset in error messages.

        Raises:
            ValidationError: A value is not valid, or an `iceberg/` key is unknown.
        """
        defined, given = _plain(definition), _plain(output)
        if given.get("iceberg/write_mode", WriteMode.UPSERT) != WriteMode.UPSERT:
            # The keys were defined for another mode than that of the output.
            defined.pop("iceberg/upsert_keys", None)
        return cls._read(defined | given, owner)

    def resolve_write_mode(self, *, partitioned: bool, default: WriteMode) -> WriteMode:
        """The mode of a write: as set, else overwrite of the partition, else the IO manager's default."""
        if self.write_mode is not None:
            return self.write_mode
        if self.upsert_keys:
            return WriteMode.UPSERT
        return WriteMode.OVERWRITE if partitioned else default


class InputSettings(_Settings):
    """What an input reads of its table."""

    kind: ClassVar[str] = "inputs"

    columns: Columns = Field(default=(), alias="columns", description="Columns to read; all if not given.")
    partition_expr: ColumnName | dict[str, ColumnName] | None = Field(
        default=None, alias="partition_expr", description="Partition column, in place of the upstream asset's."
    )
    row_filter: RowFilter | None = Field(
        default=None, repr=False, alias="iceberg/row_filter", description="Which rows to read, on top of the partition."
    )
    snapshot_id: int | None = Field(default=None, alias="iceberg/snapshot_id", description="Snapshot to read.")
    as_of: AwareDatetime | None = Field(
        default=None, alias="iceberg/as_of", description="Read the table as of a time with an offset."
    )
    tag: str | None = Field(default=None, min_length=1, alias="iceberg/tag", description="Tag to read.")
    branch: str | None = Field(default=None, min_length=1, alias="iceberg/branch", description="Branch to read.")

    @pydantic.model_validator(mode="after")
    def _check_single_version(self) -> Self:
        versions = {"snapshot_id": self.snapshot_id, "as_of": self.as_of, "tag": self.tag, "branch": self.branch}
        chosen = [name for name, value in versions.items() if value is not None]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} each choose a version of the table: set one of them")
        return self

    @classmethod
    def from_metadata(cls, definition: Mapping[str, Any] | None, *, owner: str = "the input") -> Self:
        """Read the settings of an input.

        Raises:
            ValidationError: A value is not valid, or an `iceberg/` key is unknown.
        """
        return cls._read(_plain(definition), owner)


class SettingsArguments(TypedDict, total=False):
    """The keywords of `iceberg_settings`: metadata keys without their prefix."""

    table: str
    schema: str
    partition_expr: str | Mapping[str, str]
    write_mode: WriteMode | str
    upsert_keys: str | Sequence[str]
    schema_evolution: EvolutionMode | str
    partition_spec: str | Sequence[str] | PartitionSpec
    properties: Mapping[str, object]
    sort_by: str | Sequence[str]
    branch: str
    rows_outside_partition: RowsOutside
    commit_strategy: CommitStrategy | str
    snapshot_properties: Mapping[str, object]
    naive_timezone: str
    columns: str | Sequence[str]
    row_filter: RowFilter
    snapshot_id: int
    as_of: datetime | str
    tag: str


def iceberg_settings(**settings: Unpack[SettingsArguments]) -> dict[str, Any]:
    """Build the metadata of an asset, an output or an input, and validate it.

    >>> iceberg_settings(write_mode="upsert", upsert_keys=["id"])
    {'iceberg/write_mode': 'upsert', 'iceberg/upsert_keys': ['id']}

    Raises:
        ValidationError: A setting is unknown or not valid, or those of outputs and inputs are mixed.
    """
    metadata = {name if name in _DAGSTER_WORDS else PREFIX + name: value for name, value in settings.items()}
    is_input = metadata.keys() & (InputSettings.metadata_keys() - AssetSettings.metadata_keys())
    model = InputSettings if is_input else AssetSettings
    for key in metadata.keys() - model.metadata_keys():
        raise ValidationError(_unknown_key_message(key, model, "iceberg_settings()"))
    checked = model.from_metadata(metadata, owner="iceberg_settings()")
    return checked.model_dump(mode="json", by_alias=True, include=checked.model_fields_set)


def table_identifier(
    path: Sequence[str],
    settings: AssetSettings,
    *,
    default_namespace: str,
    table_name_pattern: str = "{asset_key}",
) -> TableIdentifier:
    """The table of an asset: namespace and name from its key, unless its metadata names them.

    >>> str(table_identifier(["gold", "metrics", "daily"], AssetSettings(), default_namespace="public"))
    'gold.metrics_daily'

    Args:
        path: The parts of the asset key; the first is the namespace if there are several.
        settings: The asset's settings; `table` and `schema` win over the key.
        default_namespace: Namespace of assets whose key has one part.
        table_name_pattern: Name of tables; `{asset_key}` stands for the key after its namespace.

    Raises:
        ValidationError: The key is not a valid table name.
    """
    *namespace, first = path[:2]
    name = table_name_pattern.replace("{asset_key}", "_".join((first, *path[2:])))
    try:
        return TableIdentifier(
            namespace=settings.namespace or next(iter(namespace), default_namespace), name=settings.table or name
        )
    except pydantic.ValidationError as error:
        raise ValidationError(
            f"Asset '{'/'.join(path)}' has no valid table name: {_reasons(error, TableIdentifier)}. "
            'Set metadata {"schema": "<namespace>", "table": "<name>"} on the asset.'
        ) from error


def _plain(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        key: value.value if isinstance(value, MetadataValue) else value
        for key, value in (metadata or {}).items()
        if value is not None
    }


def _reasons(error: pydantic.ValidationError, model: type[pydantic.BaseModel]) -> str:
    return "; ".join(
        f"'{refused.path}': {refused.message}" if refused.path else refused.message
        for refused in field_errors(error, model)
    )


def _unknown_key_message(key: str, model: type[_Settings], owner: str) -> str:
    other = InputSettings if model is AssetSettings else AssetSettings
    if key in other.metadata_keys():
        return f"Metadata '{key}' of {owner} is a setting of {other.kind}, not of {model.kind}. Move it there."
    known = sorted(model.metadata_keys())
    guess = nearest(key, known)
    hint = f" Did you mean '{guess}'?" if guess else ""
    return f"Metadata '{key}' of {owner} is not a setting.{hint} Known are {', '.join(known)}."
