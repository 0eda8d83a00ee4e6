"""The table manager's operations on tables and namespaces."""

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import TableAlreadyExistsError, ValidationError
from floe_dagster_iceberg.models import IDENTIFIER_PATTERN, TableConfig, TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.manager.base import CatalogSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, to_identifier
from floe_dagster_iceberg.table.schema.convert import SchemaLike, SpecLike, to_iceberg_schema, to_iceberg_spec
from floe_dagster_iceberg.table.write.create_table import ensure_namespace, ensure_parent
from floe_dagster_iceberg.telemetry import attributes as attrs, traced


def _namespace_attributes(namespace: "NamespaceRef" = "", *_: object, **__: object) -> dict[str, str]:
    return {attrs.NAMESPACE: namespace if isinstance(namespace, str) else ".".join(namespace)}


NamespaceRef = str | Sequence[str]


class TableOperations(CatalogSession):
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
            ValidationError: The configuration is invalid; nothing was sent.
            TableAlreadyExistsError: There is a table of that name, and `if_not_exists` is not set.
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
        columns = to_iceberg_schema(identifier, schema)
        spec = to_iceberg_spec(identifier, columns, partition_spec)
        catalog = self.catalog
        try:
            with translate_errors(catalog.name, table=identifier):
                # Catalogs write the new table's metadata before they find out, and leave the file behind.
                if catalog.table_exists(identifier.as_tuple):
                    raise TableAlreadyExistsError(identifier)  # noqa: TRY301 - handled like the error of a race
                return catalog.create_table(
                    identifier.as_tuple,
                    columns,
                    location=location,
                    partition_spec=spec,
                    properties={**self.config.default_table_properties, **(properties or {})},
                )
        except TableAlreadyExistsError:
            if not if_not_exists:
                raise
            return self._load(identifier)

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
        """Whether the catalog has a table of that name."""
        identifier, catalog = to_identifier(table), self.catalog
        with translate_errors(catalog.name, table=identifier):
            return bool(catalog.table_exists(identifier.as_tuple))

    @traced("drop_table", table_attributes)
    def drop_table(self, table: TableRef, *, purge: bool = False) -> None:
        """Drop a table from the catalog.

        Args:
            table: The table.
            purge: Also delete its data and metadata files. Otherwise `register_table` brings the table back.

        Raises:
            NoSuchTableError: There is no such table.
        """
        identifier, catalog = to_identifier(table), self.catalog
        with translate_errors(catalog.name, table=identifier):
            (catalog.purge_table if purge else catalog.drop_table)(identifier.as_tuple)

    @traced("register_table", table_attributes)
    def register_table(self, table: str | TableIdentifier, metadata_location: str) -> Table:
        """Add a table that exists as files to the catalog, by its newest metadata.json.

        Raises:
            TableAlreadyExistsError: There is a table of that name.
            ScanError: There is no such metadata file, or it cannot be read.
        """
        identifier, catalog = to_identifier(table), self.catalog
        with translate_errors(catalog.name, table=identifier):
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
        """Namespaces below a parent, or the outermost ones; nested levels are joined by dots."""
        parts, catalog = _parts(parent) if parent else (), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            return sorted(".".join(name) for name in catalog.list_namespaces(parts))

    @traced("namespace_exists", _namespace_attributes)
    def namespace_exists(self, namespace: NamespaceRef) -> bool:
        """Whether the catalog has a namespace of that name."""
        parts, catalog = _parts(namespace), self.catalog
        with translate_errors(catalog.name, namespace=parts):
            return bool(catalog.namespace_exists(parts))


def _parts(namespace: NamespaceRef) -> tuple[str, ...]:
    dotted = namespace if isinstance(namespace, str) else ".".join(namespace)
    if not IDENTIFIER_PATTERN.match(dotted):
        raise ValidationError(
            f"Namespace '{dotted}' is not valid: use parts of letters, digits, '_' and '-', joined by single dots."
        )
    return tuple(dotted.split("."))
