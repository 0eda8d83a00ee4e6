"""The lakehouse that a command works on: artifacts or a code location, catalog and policy."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import dagster as dg

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.artifacts.sources import find_file
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring, collect_wirings
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySources
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.models.identifiers import split_parts
from floe_dagster_iceberg.plugins.storage import embedded_home
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.secrets import describe_failure, resolve_text
from floe_dagster_iceberg.table import selection
from floe_dagster_iceberg.table.names import to_identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from floe_dagster_iceberg.table.manager import IcebergTableManager

# Parts of a name with blanks, without those that are in backticks.
_BLANKS: Final = re.compile(r"\s+")
_WITH_BLANKS: Final = re.compile(r"(?<![^.])[^.`]*\s[^.`]*(?![^.])")


@dataclass(frozen=True)
class CodeLocation:
    """The definitions of a Python module, with the resources and the policy that they give to maintenance."""

    module: str
    definitions: dg.Definitions
    iceberg: IcebergResource
    spark: IcebergSparkResource | None
    sources: PolicySources

    @classmethod
    @contextmanager
    def load(cls, module: str) -> "Iterator[CodeLocation]":
        """Import a module from the working directory or the environment; its resources are closed at the end.

        Raises:
            ValidationError: The module cannot be imported, or has no definitions with an `IcebergResource`.
        """
        with collect_wirings() as wirings:
            definitions = _definitions_of(module)
            wirings += [MaintenanceWiring(PolicySources(), spark_resource_key="pyspark")]
        wiring, resources = wirings[0], definitions.resources or {}
        keys = wiring.resource_keys & resources.keys()
        with dg.build_resources({key: resources[key] for key in keys}) as opened:
            iceberg = getattr(opened, wiring.iceberg_resource_key, None)
            if not isinstance(iceberg, IcebergResource):
                raise ValidationError(
                    f"The definitions of module '{module}' have no IcebergResource at key "
                    f"'{wiring.iceberg_resource_key}'. Add one, or name the catalog with --artifacts."
                )
            spark = getattr(opened, wiring.spark_resource_key or "", None)
            yield cls(
                module, definitions, iceberg, spark if isinstance(spark, IcebergSparkResource) else None, wiring.sources
            )


def _definitions_of(name: str) -> dg.Definitions:
    if (folder := str(Path.cwd())) not in sys.path:
        # As `dagster dev -m` does.
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    # Of any kind: it is the user's code.
    except Exception as error:
        raise ValidationError(
            f"Module '{name}' cannot be imported: {describe_failure(error)}. Give -m the name that you give to "
            "'dagster dev -m', in the same folder."
        ) from error
    found = [value for value in vars(module).values() if isinstance(value, dg.Definitions)]
    if len(found) != 1:
        raise ValidationError(
            f"Module '{name}' has {len(found)} objects of type Definitions. Name a module that has one."
        )
    return found[0]


@dataclass(frozen=True)
class Lakehouse:
    """A catalog, by a code location or by artifacts, which are empty for the embedded default.

    Opening it connects to nothing.
    """

    artifacts: CompiledArtifacts
    file: Path | None
    iceberg: IcebergResource
    code: CodeLocation | None = None

    @classmethod
    def open(cls, artifacts: Path | None = None, module: str | None = None) -> "Lakehouse":
        """Load a module, or read the given file, or the artifacts that a code location would read.

        Raises:
            ValidationError: The module cannot be used; or the file does not exist, contains no artifacts, or they name
                no catalog.
        """
        if module is not None:
            code = click.get_current_context().with_resource(CodeLocation.load(module))
            return cls(CompiledArtifacts(), None, code.iceberg, code)
        file = artifacts or find_file()
        if file is None:
            return cls(CompiledArtifacts(), None, IcebergResource())
        content = CompiledArtifacts.from_json_file(file)
        return cls(content, file, IcebergResource.from_artifacts(content))

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
        if self.code is not None and self.code.spark is not None:
            return self.code.spark
        return IcebergSparkResource.from_artifacts(self.artifacts, self.iceberg)

    @cached_property
    def sources(self) -> PolicySources:
        """The sources of the maintenance policy.

        Raises:
            ValidationError: The artifacts' maintenance settings are not valid.
        """
        if self.code is not None:
            return self.code.sources
        settings = MaintenanceSettings.from_artifacts(self.artifacts.maintenance)
        return PolicySources(artifacts=settings.policy, governance=self.artifacts.governance)

    def full_name(self, name: str) -> str:
        """The name with the default namespace if it has none, as for assets; blanks get the backticks of policies."""
        if selection.has_wildcard(name):
            return _BLANKS.sub(r"`\g<0>`", name) if "`" not in name else name
        try:
            is_bare = len(split_parts(name)) == 1
        except ValueError:
            is_bare = False
        name = _WITH_BLANKS.sub(r"`\g<0>`", name)
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
            raise selection.not_found(self.tables, full_name) from None

    def select(self, glob: str) -> selection.SelectedTables:
        """The tables that match a glob or a name; none only for '*' in an empty catalog.

        Raises:
            NoSuchTableError: There is no table of that name.
            ValidationError: No table matches the glob.
        """
        selected = selection.select_tables(self.tables, [self.full_name(glob)])
        for name in selected.missing:
            raise selection.not_found(self.tables, name)
        if not selected.found and glob != selection.EVERY_TABLE:
            raise selection.no_match(self.tables, glob)
        return selected

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


def _sqlite_file(uri: str) -> Path | None:
    """The file of a SQLAlchemy URL; None for another database or one in memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///(?P<path>[^?:]+)(?:\?.*)?", uri)
    return None if found is None else Path(found["path"])
