"""The lakehouse that a command works on: which artifacts, which catalog, which policy."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.artifacts.sources import find_file
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.maintenance.policy_sources import PolicySources
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.maintenance.table_selection import select_tables
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.plugins.storage import embedded_home
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.secrets import resolve_text
from floe_dagster_iceberg.spark_resource import IcebergSparkResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.manager import IcebergTableManager


@dataclass(frozen=True)
class Lakehouse:
    """What the artifacts say, and the tables they lead to. Opening it connects to nothing.

    Attributes:
        artifacts: The artifacts; empty ones for the embedded default.
        file: The file they came from, if there is one.
        iceberg: The catalog.
    """

    artifacts: CompiledArtifacts
    file: Path | None
    iceberg: IcebergResource

    @classmethod
    def open(cls, given: Path | None) -> "Lakehouse":
        """Read the artifacts as a code location does; a file that is given wins.

        Raises:
            ValidationError: There is no such file, it holds no artifacts, or they name no catalog.
        """
        file = given or find_file()
        if file is None:
            return cls(CompiledArtifacts(), None, IcebergResource())
        artifacts = CompiledArtifacts.from_json_file(file)
        return cls(artifacts, file, IcebergResource.from_artifacts(artifacts))

    @property
    def missing_file(self) -> Path | None:
        """The file of a SQLite catalog, when nobody has made it yet.

        Raises:
            SecretNotFoundError: The catalog's address refers to something that is not there.
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
            ValidationError: The catalog is a SQLite file that is not there: looking must not make it.
        """
        if (file := self.missing_file) is not None:
            raise ValidationError(
                f"There is no catalog at '{file}' yet; the first materialization makes it. If yours is elsewhere, go "
                "to the project's folder, or name its artifacts with --artifacts or $FLOE_ARTIFACTS."
            )
        return self.iceberg.table_manager

    @cached_property
    def spark(self) -> IcebergSparkResource:
        """Spark on the same catalog; not started."""
        return IcebergSparkResource.from_artifacts(self.artifacts, self.iceberg)

    @cached_property
    def sources(self) -> PolicySources:
        """Who decides how tables are maintained.

        Raises:
            ValidationError: The artifacts' settings of maintenance are not valid.
        """
        settings = MaintenanceSettings.from_artifacts(self.artifacts.maintenance)
        return PolicySources(artifacts=settings.policy, governance=self.artifacts.governance)

    def full_name(self, name: str) -> str:
        """A name without a namespace is one of the default namespace, as with assets."""
        is_bare = "." not in name and not set("*?[") & set(name)
        return f"{self.iceberg.default_namespace}.{name}" if is_bare else name

    def select(self, glob: str) -> list[TableIdentifier]:
        """The tables that a glob or a name stands for.

        Raises:
            NoSuchTableError: It is a name, and there is no such table.
        """
        selected = select_tables(self.tables, [self.full_name(glob)])
        for name in selected.missing:
            raise NoSuchTableError(name)
        return list(selected.found)


def _sqlite_file(uri: str) -> Path | None:
    """The file that a URL of SQLAlchemy means; None when it is another database, or one in memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///(?P<path>[^?:]+)(?:\?.*)?", uri)
    return None if found is None else Path(found["path"])
