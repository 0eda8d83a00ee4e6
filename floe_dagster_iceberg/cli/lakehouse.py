"""The lakehouse that a command works on: artifacts, catalog and policy."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.artifacts.sources import find_file
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySources
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.maintenance.table_selection import select_tables
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.field_errors import nearest
from floe_dagster_iceberg.plugins.storage import embedded_home
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.secrets import resolve_text
from floe_dagster_iceberg.table.names import to_identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from floe_dagster_iceberg.table.manager import IcebergTableManager

EVERY_TABLE: Final = "*"
_MOST_NAMED: Final = 10
# Names in one namespace have that part in common.
_MIN_SIMILARITY: Final = 0.75


@dataclass(frozen=True)
class Lakehouse:
    """The artifacts, empty for the embedded default, and their catalog. Opening it connects to nothing."""

    artifacts: CompiledArtifacts
    file: Path | None
    iceberg: IcebergResource

    @classmethod
    def open(cls, given: Path | None) -> "Lakehouse":
        """Read the given file, or the artifacts that a code location would read.

        Raises:
            ValidationError: The file does not exist, contains no artifacts, or they name no catalog.
        """
        file = given or find_file()
        if file is None:
            return cls(CompiledArtifacts(), None, IcebergResource())
        artifacts = CompiledArtifacts.from_json_file(file)
        return cls(artifacts, file, IcebergResource.from_artifacts(artifacts))

    @property
    def missing_file(self) -> Path | None:
        """The file of a SQLite catalog, if it does not exist yet.

        Raises:
            SecretNotFoundError: The catalog's URI refers to a secret that does not exist.
        """
        if self.iceberg.catalog_type != "sql":
            return None
        uri = self.iceberg.catalog_uri
        file = embedded_home() / "catalog.db" if uri is None else _sqlite_file(resolve_text(uri))
        return None if file is None or file.exists() else file

    @cached_property
    def tables(self) -> "IcebergTableManager":
        """The tables of the catalog.

        Raises:
            ValidationError: The catalog is a SQLite file that does not exist; a command must not create it.
        """
        if (file := self.missing_file) is not None:
            raise ValidationError(
                f"There is no catalog at '{file}' yet; the first materialization creates it. If yours is elsewhere, "
                "change to the project's folder, or name its artifacts with --artifacts or $FLOE_ARTIFACTS."
            )
        return self.iceberg.table_manager

    @cached_property
    def spark(self) -> IcebergSparkResource:
        """Spark on the same catalog; not started."""
        return IcebergSparkResource.from_artifacts(self.artifacts, self.iceberg)

    @cached_property
    def sources(self) -> PolicySources:
        """The sources of the maintenance policy.

        Raises:
            ValidationError: The artifacts' maintenance settings are not valid.
        """
        settings = MaintenanceSettings.from_artifacts(self.artifacts.maintenance)
        return PolicySources(artifacts=settings.policy, governance=self.artifacts.governance)

    def full_name(self, name: str) -> str:
        """The name with the default namespace if it has none, as for assets."""
        is_bare = "." not in name and not set("*?[") & set(name)
        return f"{self.iceberg.default_namespace}.{name}" if is_bare else name

    def load_table(self, name: str) -> "Table":
        """Load a table.

        Raises:
            NoSuchTableError: There is no such table; a similar name is suggested.
        """
        full_name = self.full_name(name)
        try:
            return self.tables.load_table(full_name)
        except NoSuchTableError:
            raise self._not_found(full_name) from None

    def select(self, glob: str) -> list[TableIdentifier]:
        """The tables that match a glob or a name; none only for '*' in an empty catalog.

        Raises:
            NoSuchTableError: There is no table of that name.
            ValidationError: No table matches the glob.
        """
        selected = select_tables(self.tables, [self.full_name(glob)])
        for name in selected.missing:
            raise self._not_found(name)
        if not selected.found and glob != EVERY_TABLE:
            raise ValidationError(f"No table matches '{glob}'. {self._namespaces_hint()}")
        return list(selected.found)

    def policy_of(self, table: "Table") -> tuple[EffectivePolicy, str | None]:
        """The policy of a table; if it is not valid, the package's defaults and the error message."""
        try:
            return self.sources.resolve(to_identifier(table), table.properties), None
        except ValidationError as error:
            return PolicySources().resolve(), str(error)

    @property
    def policy_error(self) -> str | None:
        """The error in the artifacts' maintenance settings, if any."""
        try:
            self.sources.resolve()
        except ValidationError as error:
            return str(error)
        return None

    def _not_found(self, name: str) -> NoSuchTableError:
        existing = [str(table) for table in select_tables(self.tables, [EVERY_TABLE]).found]
        same_name = (each for each in existing if each.rpartition(".")[2] == name.rpartition(".")[2])
        guess = nearest(name, existing, cutoff=_MIN_SIMILARITY) or next(same_name, None)
        return NoSuchTableError(name, hint=f"Did you mean '{guess}'?" if guess else self._namespaces_hint())

    def _namespaces_hint(self) -> str:
        namespaces = self.tables.list_namespaces()
        if not namespaces:
            return "The catalog has no namespaces yet."
        more = f" and {len(namespaces) - _MOST_NAMED} more" if len(namespaces) > _MOST_NAMED else ""
        names = ", ".join(namespaces[:_MOST_NAMED])
        return f"Tables are matched as 'namespace.table'; namespaces are {names}{more}."


def _sqlite_file(uri: str) -> Path | None:
    """The file of a SQLAlchemy URL; None for another database or one in memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///(?P<path>[^?:]+)(?:\?.*)?", uri)
    return None if found is None else Path(found["path"])
