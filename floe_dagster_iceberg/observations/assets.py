"""External assets of tables: by name, by an `AssetSpec`, or by a listing of what globs match."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
import pydantic

from floe_dagster_iceberg.asset_metadata import (
    STORAGE_KIND,
    build_column_schema,
    build_table_metadata,
    describe_iceberg_assets,
)
from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.identifiers import join_parts, split_parts
from floe_dagster_iceberg.partitions import PartitionExpr, resolve_dimensions
from floe_dagster_iceberg.table.selection import has_wildcard

if TYPE_CHECKING:
    from pyiceberg.table import Table

GROUP: Final = "iceberg_observations"
# What Dagster accepts as the owner of an asset.
_OWNER: Final = re.compile(r"team:[\w-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_NOT_IN_KEYS: Final = re.compile(r"/")

ObservedTables = Sequence[str | dg.AssetSpec]


class ListedColumn(FrozenModel):
    """A column of a listed table."""

    name: str
    type: str
    nullable: bool = True
    description: str | None = None
    notes: tuple[str, ...] = ()


class ListedTable(FrozenModel):
    """A table as it was when the listing was written."""

    table: str
    description: str | None = None
    owner: str | None = None
    columns: tuple[ListedColumn, ...] = ()

    @classmethod
    def from_table(cls, table: "Table") -> "ListedTable":
        """Take from a table what an asset's definition shows."""
        columns = [
            ListedColumn(
                name=column.name,
                type=column.type,
                nullable=column.constraints.nullable,
                description=column.description,
                notes=tuple(column.constraints.other),
            )
            for column in build_column_schema(table).columns
        ]
        return cls(
            table=join_parts(table.name()),
            description=table.properties.get("comment"),
            owner=table.properties.get("owner"),
            columns=tuple(columns),
        )

    def to_column_schema(self) -> dg.TableSchema:
        return dg.TableSchema(
            columns=[
                dg.TableColumn(
                    name=each.name,
                    type=each.type,
                    description=each.description,
                    constraints=dg.TableColumnConstraints(nullable=each.nullable, other=list(each.notes)),
                )
                for each in self.columns
            ]
        )


class TableListing(FrozenModel):
    """Tables that globs matched, in a file: definitions are built from it without a connection."""

    tables: tuple[ListedTable, ...] = ()

    @classmethod
    def load(cls, path: Path) -> "TableListing":
        """Read a listing.

        Raises:
            ValidationError: The file does not exist or is no listing.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except (OSError, pydantic.ValidationError) as error:
            raise ValidationError(
                f"'{path}' is not a listing of tables ({type(error).__name__}). Write one with "
                "'floe-iceberg discover GLOB --output FILE'."
            ) from None

    def save(self, path: Path) -> None:
        """Write the listing; equal listings are equal files, so that it can be kept in version control."""
        path.write_text(json.dumps(self.model_dump(mode="json", exclude_defaults=True), indent=2) + "\n")


@dataclass(frozen=True)
class ObservedAsset:
    """A table and the external asset that stands for it.

    Attributes:
        table: The table.
        spec: The asset.
        partition_expr: Column of the asset's partitions, or one per dimension.
        naive_timezone: Time zone of timestamps without one.
    """

    table: TableIdentifier
    spec: dg.AssetSpec
    partition_expr: PartitionExpr | None = None
    naive_timezone: str = "UTC"

    @property
    def key(self) -> dg.AssetKey:
        return self.spec.key

    @property
    def partitions_def(self) -> dg.PartitionsDefinition | None:
        return self.spec.partitions_def


@dataclass(frozen=True)
class ObservationTargets:
    """What is observed: assets that are known when definitions are loaded, and globs that are matched in a run."""

    assets: Mapping[TableIdentifier, ObservedAsset]
    globs: Sequence[str]

    @classmethod
    def build(
        cls, tables: ObservedTables, *, listing: TableListing | None, default_namespace: str, group_name: str | None
    ) -> "ObservationTargets":
        """Work out the assets.

        Raises:
            ValidationError: A table's name or the settings of a spec are not valid, or two assets have one key.
        """
        globs = [each for each in tables if isinstance(each, str) and has_wildcard(each)]
        listed = {_to_identifier(each.table): each for each in (listing or TableListing()).tables}
        assets: dict[TableIdentifier, ObservedAsset] = {}
        for each in tables:
            if isinstance(each, dg.AssetSpec):
                asset = observed_asset(each, default_namespace)
                assets[asset.table] = asset
        named = [_to_identifier(each) for each in tables if isinstance(each, str) and not has_wildcard(each)]
        for table in dict.fromkeys([*named, *listed]):
            if table not in assets:
                assets[table] = ObservedAsset(table, _build_spec(table, listed.get(table), group_name))
        _refuse_shared_keys(assets.values())
        return cls(assets, globs)

    def asset_of(self, table: TableIdentifier) -> ObservedAsset:
        """The asset of a table; one without a definition if a glob matched it and the listing does not have it."""
        return self.assets.get(table) or ObservedAsset(table, _build_spec(table, None, None))


def asset_key_of(table: TableIdentifier) -> dg.AssetKey:
    """The key of a table's asset: namespace levels and name."""
    # Dagster joins the parts of a key by slashes.
    return dg.AssetKey([_NOT_IN_KEYS.sub("_", part) for part in table.as_tuple])


def _to_identifier(name: str) -> TableIdentifier:
    try:
        return TableIdentifier.from_tuple(split_parts(name))
    except ValueError as error:
        raise ValidationError(str(error), table=name) from None


def observed_asset(spec: dg.AssetSpec, default_namespace: str) -> ObservedAsset:
    """The table of an asset, and how its partitions are found in it.

    Raises:
        ValidationError: The settings of the asset are not valid, or a partition has no column.
    """
    owner = spec.key.to_user_string()
    settings = AssetSettings.from_metadata(spec.metadata, owner=f"asset '{owner}'")
    table = table_identifier(spec.key.path, settings, default_namespace=default_namespace)
    (described,) = describe_iceberg_assets([spec], {spec.key: table})
    if spec.partitions_def is not None:
        # A column that is missing is an error when definitions are built, not in each run.
        resolve_dimensions(
            spec.partitions_def, partition_expr=settings.partition_expr, partition_column=None, asset=owner
        )
    zone: dict[str, Any] = {} if settings.naive_timezone is None else {"naive_timezone": settings.naive_timezone}
    return ObservedAsset(table, described, partition_expr=settings.partition_expr, **zone)  # type: ignore[arg-type]


def _build_spec(table: TableIdentifier, listed: ListedTable | None, group_name: str | None) -> dg.AssetSpec:
    metadata: dict[str, Any] = {
        **build_table_metadata(table),
        # So that IO managers load this very table, whatever the parts of its name are.
        "schema": table.namespace,
        "table": table.name,
    }
    owners: list[str] = []
    if listed is not None:
        metadata["dagster/column_schema"] = listed.to_column_schema()
        if listed.owner is not None and _OWNER.fullmatch(listed.owner):
            owners = [listed.owner]
        elif listed.owner is not None:
            metadata["iceberg/owner"] = listed.owner
    return dg.AssetSpec(
        asset_key_of(table),
        description=None if listed is None else listed.description,
        metadata=metadata,
        owners=owners,
        kinds={STORAGE_KIND},
        group_name=group_name,
    )


def _refuse_shared_keys(assets: Iterable[ObservedAsset]) -> None:
    by_key: dict[dg.AssetKey, ObservedAsset] = {}
    for asset in assets:
        if (other := by_key.setdefault(asset.key, asset)) is not asset:
            raise ValidationError(
                f"Tables '{other.table}' and '{asset.table}' would both be asset '{asset.key.to_user_string()}'. Give "
                "one of them as an AssetSpec with another key and metadata 'schema' and 'table'.",
                table=asset.table,
            )
