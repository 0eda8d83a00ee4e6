"""Settings of assets and inputs in their metadata: typed, validated, merged from definition and output."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, TypedDict, Unpack

import pydantic
from dagster import MetadataValue

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import ChangesMode, writing
from floe_dagster_iceberg.models.base import FrozenModel, field_errors, first_duplicate, nearest
from floe_dagster_iceberg.models.identifiers import Namespace, TableIdentifier, TableName
from floe_dagster_iceberg.models.partitioning import PartitionSpec
from floe_dagster_iceberg.models.quantities import SizeInBytes, TimeZone
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

PREFIX: Final = "iceberg/"
_DAGSTER_WORDS: Final = ("table", "schema", "columns", "partition_expr")
_WRITTEN_BY_US: Final = ("dagster.", "floe.")
_OF_UPSERTS: Final = ("upsert_keys", "delete_when", "order_by", "on_match", "update_columns", "on_missing")


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


def _check_limit(value: int | str | None) -> int | str | None:
    # A number of snapshots, or the text of a size.
    if isinstance(value, str):
        pydantic.TypeAdapter(SizeInBytes[int]).validate_python(value)
    return value


Columns: TypeAlias = Annotated[
    tuple[writing.ColumnName, ...], pydantic.BeforeValidator(_one_or_more), pydantic.AfterValidator(_each_once)
]
ChangesLimit: TypeAlias = Annotated[pydantic.PositiveInt | str | None, pydantic.AfterValidator(_check_limit)]
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

    table: TableName | None = pydantic.Field(default=None, alias="table", description="Name of the table.")
    namespace: Namespace | None = pydantic.Field(default=None, alias="schema", description="Namespace of the table.")
    partition_expr: writing.ColumnName | dict[str, writing.ColumnName] | None = pydantic.Field(
        default=None, alias="partition_expr", description="Column that holds the partition, or one per dimension."
    )
    write_mode: writing.WriteMode | None = pydantic.Field(
        default=None, alias="iceberg/write_mode", description="What happens to existing rows."
    )
    upsert_keys: Columns = pydantic.Field(
        default=(), alias="iceberg/upsert_keys", description="Columns that identify a row; only for upsert."
    )
    delete_when: writing.RowFilter | None = pydantic.Field(
        default=None,
        repr=False,
        alias="iceberg/delete_when",
        description="Rows of the data that delete the row of their key: a boolean column, or a filter such as "
        "`op = 'D'`; for upsert.",
    )
    order_by: Columns = pydantic.Field(
        default=(),
        alias="iceberg/order_by",
        description="Columns that say which row of a key is the newest; older ones are ignored; for upsert.",
    )
    on_match: writing.OnMatch = pydantic.Field(
        default="update",
        alias="iceberg/on_match",
        description="Whether an upsert updates rows whose key is in the data, or ignores them.",
    )
    update_columns: Columns = pydantic.Field(
        default=(),
        alias="iceberg/update_columns",
        description="The columns that an upsert updates; all that the data has if not given.",
    )
    on_missing: writing.OnMissing = pydantic.Field(
        default="keep",
        alias="iceberg/on_missing",
        description="Whether an upsert keeps rows whose key is not in the data, or deletes them: those of the "
        "partitions being written, or of the whole table.",
    )
    schema_evolution: writing.EvolutionMode | None = pydantic.Field(
        default=None, alias="iceberg/schema_evolution", description="Which schema changes a write may cause."
    )
    partition_spec: SpecSetting = pydantic.Field(
        default=None, alias="iceberg/partition_spec", description="Partitioning of a new table."
    )
    properties: Properties = pydantic.Field(
        default_factory=dict, alias="iceberg/properties", description="Table properties, added to existing ones."
    )
    sort_by: Columns = pydantic.Field(
        default=(), alias="iceberg/sort_by", description="Columns by which the rows of each file are sorted."
    )
    branch: str | None = pydantic.Field(
        default=None, min_length=1, alias="iceberg/branch", description="Branch to write to; main if not given."
    )
    rows_outside_partition: writing.RowsOutside | None = pydantic.Field(
        default=None,
        alias="iceberg/rows_outside_partition",
        description="What happens to rows that do not belong to the partition being written.",
    )
    commit_strategy: writing.CommitStrategy | None = pydantic.Field(
        default=None, alias="iceberg/commit_strategy", description="How the commit treats manifests."
    )
    snapshot_properties: Properties = pydantic.Field(
        default_factory=dict, alias="iceberg/snapshot_properties", description="Properties of the snapshot summary."
    )
    naive_timezone: TimeZone = pydantic.Field(
        default="UTC", alias="iceberg/naive_timezone", description="Time zone of timestamps that have none."
    )
    format_version: writing.FormatVersion | None = pydantic.Field(
        default=None,
        alias="iceberg/format_version",
        description="Format version of a new table: 1, 2 or 3, which needs Spark. An existing table keeps its own.",
    )

    @pydantic.model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.write_mode is writing.WriteMode.UPSERT and not self.upsert_keys:
            raise ValueError("upsert needs the columns that identify a row: set 'iceberg/upsert_keys'")
        if self.write_mode not in {None, writing.WriteMode.UPSERT} and self.upsert_keys:
            raise ValueError(f"'iceberg/upsert_keys' is for upsert, but 'iceberg/write_mode' is {self.write_mode}")
        if not self.merge_rules.only_upserts and not self.upsert_keys:
            option = next(name for name in _OF_UPSERTS if name in self.model_fields_set)
            raise ValueError(f"'iceberg/{option}' is for upsert: set 'iceberg/upsert_keys'")
        if (conflict := self.merge_rules.describe_conflict(PREFIX)) is not None:
            raise ValueError(conflict)
        given = self.properties.get(writing.FORMAT_VERSION)
        if given is not None and given not in map(str, writing.FORMAT_VERSIONS):
            raise ValueError(f"property '{writing.FORMAT_VERSION}' is '{given}': use 1, 2 or 3")
        if given is not None and self.format_version not in {None, int(given)}:
            raise ValueError(
                f"'iceberg/format_version' is {self.format_version}, property '{writing.FORMAT_VERSION}' is {given}: "
                "keep one"
            )
        return self

    @property
    def merge_rules(self) -> writing.MergeRules:
        """What an upsert does to the rows of the table."""
        return writing.MergeRules(
            keys=self.upsert_keys,
            delete_when=self.delete_when,
            order_by=self.order_by,
            on_match=self.on_match,
            update_columns=self.update_columns,
            on_missing=self.on_missing,
        )

    @property
    def new_format_version(self) -> int | None:
        """The format version of a new table, by its own setting or by the table property of that name."""
        given = self.properties.get(writing.FORMAT_VERSION)
        return self.format_version or (None if given is None else int(given))

    @pydantic.field_validator("snapshot_properties")
    @classmethod
    def _check_snapshot_properties(cls, properties: dict[str, str]) -> dict[str, str]:
        for key in properties:
            if key.startswith(_WRITTEN_BY_US):
                raise ValueError(f"snapshot property '{key}' is written by this package: choose another name")
        return dict(writing.WriteConfig(snapshot_properties=properties).snapshot_properties)

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
        if given.get("iceberg/write_mode", writing.WriteMode.UPSERT) != writing.WriteMode.UPSERT:
            # They were defined for another mode than that of the output.
            for name in _OF_UPSERTS:
                defined.pop(f"{PREFIX}{name}", None)
        return cls._read(defined | given, owner)

    def resolve_write_mode(self, *, partitioned: bool, default: writing.WriteMode) -> writing.WriteMode:
        """The mode of a write: as set, else overwrite of the partition, else the IO manager's default."""
        if self.write_mode is not None:
            return self.write_mode
        if self.upsert_keys:
            return writing.WriteMode.UPSERT
        return writing.WriteMode.OVERWRITE if partitioned else default


class InputSettings(_Settings):
    """What an input reads of its table."""

    kind: ClassVar[str] = "inputs"

    columns: Columns = pydantic.Field(default=(), alias="columns", description="Columns to read; all if not given.")
    partition_expr: writing.ColumnName | dict[str, writing.ColumnName] | None = pydantic.Field(
        default=None, alias="partition_expr", description="Partition column, in place of the upstream asset's."
    )
    row_filter: writing.RowFilter | None = pydantic.Field(
        default=None, repr=False, alias="iceberg/row_filter", description="Which rows to read, on top of the partition."
    )
    snapshot_id: int | None = pydantic.Field(default=None, alias="iceberg/snapshot_id", description="Snapshot to read.")
    as_of: pydantic.AwareDatetime | None = pydantic.Field(
        default=None, alias="iceberg/as_of", description="Read the table as of a time with an offset."
    )
    tag: str | None = pydantic.Field(default=None, min_length=1, alias="iceberg/tag", description="Tag to read.")
    branch: str | None = pydantic.Field(
        default=None,
        min_length=1,
        alias="iceberg/branch",
        description="Branch to read; that of the asset if not given.",
    )

    changes: ChangesMode | None = pydantic.Field(
        default=None,
        alias="iceberg/changes",
        description="Read only what changed since the asset last ran: appends, changelog or partitions.",
    )
    changes_limit: ChangesLimit = pydantic.Field(
        default=None,
        alias="iceberg/changes_limit",
        description="Changes to read in one run: a number of snapshots, or a size such as '10GB'; all if not given.",
    )
    net_changes: bool = pydantic.Field(
        default=False,
        alias="iceberg/net_changes",
        description="Leave rows that came and went since the last run out of a changelog.",
    )
    identifier_columns: Columns = pydantic.Field(
        default=(),
        alias="iceberg/identifier_columns",
        description="Columns that identify a row, for update images in a changelog.",
    )

    @pydantic.model_validator(mode="after")
    def _check_changes(self) -> Self:
        options = ("changes_limit", "net_changes", "identifier_columns")
        if self.changes is None and (given := [name for name in options if getattr(self, name)]):
            raise ValueError(f"'iceberg/{given[0]}' is for inputs that read changes: set 'iceberg/changes'")
        for name in ("snapshot_id", "as_of", "tag"):
            if self.changes is not None and getattr(self, name) is not None:
                raise ValueError(f"'iceberg/changes' reads up to the newest snapshot: leave out 'iceberg/{name}'")
        return self

    @pydantic.model_validator(mode="after")
    def _check_single_version(self) -> Self:
        versions = {"snapshot_id": self.snapshot_id, "as_of": self.as_of, "tag": self.tag, "branch": self.branch}
        chosen = [name for name, value in versions.items() if value is not None]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} each choose a version of the table: set one of them")
        return self

    @property
    def names_version(self) -> bool:
        """Whether a version is set, a branch included."""
        return any(value is not None for value in (self.snapshot_id, self.as_of, self.tag, self.branch))

    @classmethod
    def from_metadata(cls, definition: Mapping[str, Any] | None, *, owner: str = "the input") -> Self:
        """Read the settings of an input.

        Raises:
            ValidationError: A value is not valid, or an `iceberg/` key is unknown.
        """
        return cls._read(_plain(definition), owner)


class ChangesArguments(TypedDict, total=False):
    """The keywords of `IcebergResource.read_changes`: settings of an incremental input."""

    columns: str | Sequence[str]
    row_filter: writing.RowFilter
    branch: str
    changes_limit: int | str
    net_changes: bool
    identifier_columns: str | Sequence[str]


class SettingsArguments(ChangesArguments, total=False):
    """The keywords of `iceberg_settings`: metadata keys without their prefix."""

    table: str
    schema: str
    partition_expr: str | Mapping[str, str]
    write_mode: writing.WriteMode | str
    upsert_keys: str | Sequence[str]
    delete_when: writing.RowFilter
    order_by: str | Sequence[str]
    on_match: writing.OnMatch
    update_columns: str | Sequence[str]
    on_missing: writing.OnMissing
    schema_evolution: writing.EvolutionMode | str
    partition_spec: str | Sequence[str] | PartitionSpec
    properties: Mapping[str, object]
    sort_by: str | Sequence[str]
    rows_outside_partition: writing.RowsOutside
    commit_strategy: writing.CommitStrategy | str
    snapshot_properties: Mapping[str, object]
    naive_timezone: str
    format_version: int
    snapshot_id: int
    as_of: datetime | str
    tag: str
    changes: ChangesMode | str


def iceberg_settings(**settings: Unpack[SettingsArguments]) -> dict[str, Any]:
    """Build the metadata of an asset, an output or an input, and validate it.

    Examples:
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
