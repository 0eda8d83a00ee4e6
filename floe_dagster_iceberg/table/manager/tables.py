"""The table manager's operations on tables and namespaces."""

from collections.abc import Mapping, Sequence
from typing import cast

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floe_dagster_iceberg._pyiceberg.metadata_errors import read_metadata
from floe_dagster_iceberg.errors import (
    EngineCapabilityError,
    StaleTableMetadataError,
    TableAlreadyExistsError,
    UnsupportedMetadataError,
    ValidationError,
)
from floe_dagster_iceberg.models import IDENTIFIER_PATTERN, TableConfig, TableIdentifier
from floe_dagster_iceberg.models.identifiers import join_parts, split_parts
from floe_dagster_iceberg.models.writing import FORMAT_VERSIONS, FormatVersion
from floe_dagster_iceberg.plugins.base import drop_table
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG, refuse_newer_format
from floe_dagster_iceberg.table.manager.base import MetadataSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, check_new_name, table_name, to_identifier
from floe_dagster_iceberg.table.properties import check_properties, format_version_of
from floe_dagster_iceberg.table.schema.convert import SchemaLike, SpecLike, to_iceberg_schema, to_iceberg_spec
from floe_dagster_iceberg.table.write.create_table import check_new_table, ensure_namespace, ensure_parent
from floe_dagster_iceberg.table.write.handover import hand_over
from floe_dagster_iceberg.telemetry import attributes as attrs, traced


def _namespace_attributes(namespace: "NamespaceRef" = "", *_: object, **__: object) -> dict[str, str]:
    return {attrs.NAMESPACE: namespace if isinstance(namespace, str) else join_parts(namespace)}


NamespaceRef = str | Sequence[str]


class TableOperations(MetadataSession):
    """Creating, finding and dropping tables and namespaces."""

    @traced("create_table", table_attributes)
    def create_table(
        self,
        table: TableConfig | str | TableIdentifier,
        schema: SchemaLike | None = None,
        partition_spec: SpecLike = None,
        properties: Mapping[str, str] | None = None,
        *,
        location: str | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table from a `TableConfig`, or from a name and a schema.

        Everything is validated before the catalog is asked. The given properties override the manager's default
        table properties. An existing table is never changed.

        Args:
            table: A configuration, or the table's name.
            schema: Columns, when `table` is a name: TableSchema, pyarrow.Schema or PyIceberg Schema.
            partition_spec: Partitioning, when `table` is a name.
            properties: Table properties, when `table` is a name.
            location: Where the table's files go; the catalog decides if not given.
            if_not_exists: Return an existing table as it is, also if another process creates it at the same time.

        Raises:
            ValidationError: The configuration is invalid, or there is a view of that name; nothing was created.
            EngineCapabilityError: The properties ask for a format version that PyIceberg does not write.
            TableAlreadyExistsError: There is a table of that name, and `if_not_exists` is not set.
            UnsupportedMetadataError: There is one, `if_not_exists` is set, and PyIceberg cannot parse its metadata.
            NoSuchNamespaceError: The namespace does not exist.
        """
        identifier = to_identifier(table)
        if isinstance(table, TableConfig):
            if schema is not None or partition_spec is not None or properties is not None or location is not None:
                raise ValidationError(
                    f"The TableConfig of '{identifier}' has schema, spec, properties and location: do not pass them.",
                    table=identifier,
                )
            schema, partition_spec = table.table_schema, table.partition_spec
            properties, location = table.properties, table.location
        if schema is None:
            raise ValidationError(f"Table '{identifier}' needs a schema to be created.", table=identifier)
        check_new_name(identifier)
        columns = to_iceberg_schema(identifier, schema)
        spec = to_iceberg_spec(identifier, columns, partition_spec)
        properties = {**self.config.default_table_properties, **(properties or {})}
        format_version_of(properties, identifier)
        check_properties(properties, identifier)
        catalog = self.catalog
        try:
            with translate_errors(catalog.name, table=identifier):
                # Catalogs write the new table's metadata before they find out, and leave the file behind.
                if self._exists(identifier):
                    raise TableAlreadyExistsError(identifier)  # noqa: TRY301 - handled like the error of a race
                check_new_table(catalog, identifier)
                return self._create(identifier, columns, spec, properties, location=location)
        except TableAlreadyExistsError:
            if not if_not_exists:
                raise
            return self._load(identifier)

    def _create(
        self,
        table: TableIdentifier,
        schema: Schema,
        spec: PartitionSpec,
        properties: dict[str, str],
        *,
        location: str | None,
    ) -> Table:
        try:
            refuse_newer_format(table, format_version_of(properties, table))
        except EngineCapabilityError as limit:
            spark, _ = hand_over(limit, self._handover)
            return spark.create_table(self.catalog, table, schema, spec, properties, location=location)
        return self.catalog.create_table(
            table.as_tuple, schema, location=location, partition_spec=spec, properties=properties
        )

    def create_table_if_not_exists(
        self,
        table: TableConfig | str | TableIdentifier,
        schema: SchemaLike | None = None,
        partition_spec: SpecLike = None,
        properties: Mapping[str, str] | None = None,
        *,
        location: str | None = None,
    ) -> Table:
        """Create a table, or return it as it is if it exists, like `create_table(..., if_not_exists=True)`."""
        return self.create_table(table, schema, partition_spec, properties, location=location, if_not_exists=True)

    @traced("load_table", table_attributes)
    def load_table(self, table: TableRef) -> Table:
        """The table in its newest version.

        Raises:
            NoSuchTableError: There is no such table.
        """
        return self._load(to_identifier(table))

    @traced("table_exists", table_attributes)
    def table_exists(self, table: TableRef) -> bool:
        """Whether the catalog has a table of that name, readable or not."""
        return self._exists(to_identifier(table))

    def _exists(self, identifier: TableIdentifier) -> bool:
        catalog = self.catalog
        try:
            with translate_errors(catalog.name, table=identifier):
                return bool(catalog.table_exists(identifier.as_tuple))
        except (StaleTableMetadataError, UnsupportedMetadataError):
            # Some catalogs load the table to find out. It exists, although it cannot be read.
            return True

    @traced("upgrade_format_version", table_attributes)
    def upgrade_format_version(self, table: TableRef, format_version: int) -> Table:
        """Upgrade a table to a newer format version; nothing happens if it has it already.

        This cannot be undone, and engines that do not support the version can no longer write the table. Version 3
        needs the table manager of an `IcebergSparkResource`.

        Returns:
            The table in its newest version.

        Raises:
            ValidationError: The version is not 1, 2 or 3, or is older than the table's.
            EngineCapabilityError: It is 3, and there is no Spark.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        loaded = self._load_newest(table)
        name, has = table_name(loaded), loaded.metadata.format_version
        if format_version not in FORMAT_VERSIONS or format_version < has:
            raise ValidationError(
                f"Table '{name}' has format version {has} and cannot get {format_version}. "
                f"Give one of {', '.join(str(each) for each in FORMAT_VERSIONS if each >= has)}.",
                table=name,
            )
        if format_version > max(has, NEWEST_FORMAT_OF_PYICEBERG):
            try:
                refuse_newer_format(name, format_version)
            except EngineCapabilityError as limit:
                spark, _ = hand_over(limit, self._handover)
                spark.upgrade_format(loaded, format_version)
        elif format_version > has:
            newer = cast("FormatVersion", format_version)
            self._change(loaded, lambda transaction: transaction.upgrade_table_version(newer))
        return loaded

    @traced("drop_table", table_attributes)
    def drop_table(self, table: TableRef, *, purge: bool = False) -> None:
        """Drop a table from the catalog.

        Args:
            table: The table.
            purge: Also delete its data and metadata files. Otherwise `register_table` brings the table back.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: It was to be purged, but its property gc.enabled is false. Nothing was changed.
        """
        drop_table(self.catalog, to_identifier(table).as_tuple, purge=purge)

    @traced("register_table", table_attributes)
    def register_table(self, table: str | TableIdentifier, metadata_location: str) -> Table:
        """Add a table that exists as files to the catalog, by its newest metadata.json.

        Raises:
            TableAlreadyExistsError: There is a table of that name.
            ScanError: There is no such metadata file, or it cannot be read.
        """
        identifier, catalog = to_identifier(table), self.catalog
        with translate_errors(catalog.name, table=identifier):
            if isinstance(catalog, MetastoreCatalog):
                # These add the name first, and would keep it if the file turns out to be missing or corrupt.
                read_metadata(identifier, load_file_io(catalog.properties, metadata_location), metadata_location)
            return catalog.register_table(identifier.as_tuple, metadata_location)

    @traced("list_tables", _namespace_attributes)
    def list_tables(self, namespace: NamespaceRef) -> list[str]:
        """Names of the tables in a namespace, without the namespace.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
        """
        parts, catalog = _parts(namespace), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            return sorted(name[-1] for name in catalog.list_tables(parts))

    @traced("create_namespace", _namespace_attributes)
    def create_namespace(
        self, namespace: NamespaceRef, properties: Mapping[str, str] | None = None, *, if_not_exists: bool = False
    ) -> None:
        """Create a namespace; levels of a nested one are joined by dots, and missing ones above it are created.

        Raises:
            ValidationError: It exists already, and `if_not_exists` is not set.
        """
        parts, catalog = _parts(namespace), self.catalog
        if not all(IDENTIFIER_PATTERN.match(part) and "." not in part for part in parts):
            raise _invalid(namespace)
        with translate_errors(catalog.name, namespace=parts):
            if if_not_exists:
                ensure_namespace(catalog, parts, properties)
            else:
                ensure_parent(catalog, parts)
                catalog.create_namespace(parts, dict(properties or {}))

    @traced("drop_namespace", _namespace_attributes)
    def drop_namespace(self, namespace: NamespaceRef) -> None:
        """Drop an empty namespace.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
            ValidationError: It still holds tables.
        """
        parts, catalog = _parts(namespace), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            catalog.drop_namespace(parts)

    @traced("list_namespaces", _namespace_attributes)
    def list_namespaces(self, parent: NamespaceRef = ()) -> list[str]:
        """Namespaces below a parent, or the outermost ones; nested levels are joined by dots.

        Levels that contain a dot themselves are in backticks, which all methods accept.
        """
        parts, catalog = _parts(parent) if parent else (), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            return sorted(map(join_parts, catalog.list_namespaces(parts)))

    @traced("namespace_exists", _namespace_attributes)
    def namespace_exists(self, namespace: NamespaceRef) -> bool:
        """Whether the catalog has a namespace of that name."""
        parts, catalog = _parts(namespace), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            return bool(catalog.namespace_exists(parts))


def _parts(namespace: NamespaceRef) -> tuple[str, ...]:
    try:
        parts = split_parts(namespace) if isinstance(namespace, str) else tuple(namespace)
    except ValueError:
        parts = ()
    if not parts:
        raise _invalid(namespace)
    return parts


def _invalid(namespace: NamespaceRef) -> ValidationError:
    dotted = namespace if isinstance(namespace, str) else join_parts(namespace)
    return ValidationError(
        f"Namespace '{dotted}' is not valid: use parts of letters, digits, '_' and '-', joined by single dots."
    )
