"""The table manager's operations on schemas and partition specs."""

from collections.abc import Mapping, Sequence
from functools import partial

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import SchemaChange, SchemaEvolution
from floe_dagster_iceberg.table.manager.base import MetadataSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, table_name, to_identifier
from floe_dagster_iceberg.table.schema.evolution import stage_schema_evolution
from floe_dagster_iceberg.table.schema.partition_spec import SpecChanges, stage_spec_changes
from floe_dagster_iceberg.telemetry import traced


class SchemaOperations(MetadataSession):
    """Changing a table's columns and its partitioning. No data file is rewritten."""

    @traced("evolve_schema", table_attributes)
    def evolve_schema(self, table: TableRef, evolution: SchemaEvolution | Sequence[SchemaChange]) -> Table:
        """Change columns: all changes in one commit, or none.

        The changes apply one after the other. They are checked against the table's current schema, and again if
        another writer changes it before the commit.

        Args:
            table: The table.
            evolution: The changes; deleting columns and making them required needs
                `SchemaEvolution(allow_incompatible_changes=True)`.

        Returns:
            The table in its newest version.

        Raises:
            SchemaEvolutionError: A column does not exist, or a name is taken.
            IncompatibleSchemaChangeError: A change would break readers or existing rows.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        wanted = _to_evolution(table, evolution)
        loaded = self._load_newest(table)
        self._change(loaded, partial(stage_schema_evolution, table=table_name(loaded), evolution=wanted))
        return loaded

    @traced("evolve_partition_spec", table_attributes)
    def evolve_partition_spec(
        self,
        table: TableRef,
        *,
        add: Sequence[str] | Mapping[str, str] = (),
        remove: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
    ) -> Table:
        """Change the partitioning of files written from now on, in one commit.

        Existing files keep their partitioning and stay readable. Fields are named as in Iceberg and Spark:
        `ts_day`, `id_bucket_16`, `region`.

        Args:
            table: The table.
            add: Fields such as "region", "day(ts)", "bucket(16, id)"; with names as a mapping, {"by_day": "day(ts)"}.
            remove: Names of partition fields to remove.
            rename: New names of partition fields by their old ones.

        Returns:
            The table in its newest version.

        Raises:
            ValidationError: A field is invalid, does not fit the schema, does not exist, or exists already.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        changes = SpecChanges.from_arguments(str(to_identifier(table)), add=add, remove=remove, rename=rename or {})
        loaded = self._load_newest(table)
        self._change(loaded, partial(stage_spec_changes, table=table_name(loaded), changes=changes))
        return loaded


def _to_evolution(table: TableRef, evolution: SchemaEvolution | Sequence[SchemaChange]) -> SchemaEvolution:
    if isinstance(evolution, SchemaEvolution):
        return evolution
    try:
        return SchemaEvolution(changes=evolution)
    except ValueError as error:
        name = to_identifier(table)
        raise ValidationError(f"The changes of the schema of '{name}' are invalid: {error}", table=name) from None
