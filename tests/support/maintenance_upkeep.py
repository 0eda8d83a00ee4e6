"""One catalog that both engines open, and maintenance of its tables by one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.maintenance_tables import EAGER, ORDERS, later

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
)
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Upkeep:
    """Maintenance by one engine."""

    engine: MaintenanceEngine
    manager: IcebergTableManager
    session: "SparkSession | None" = None

    @classmethod
    def open(cls, folder: Path, engine: MaintenanceEngine) -> "Upkeep":
        iceberg = IcebergResource(
            catalog_uri=f"sqlite:///{folder}/catalog.db?timeout=60", warehouse=f"file://{folder}/warehouse"
        )
        iceberg.table_manager.create_namespace("bronze")
        session = None
        if engine is MaintenanceEngine.SPARK:
            from support.spark_session import spark_resource  # noqa: PLC0415 - it loads pyspark

            session = spark_resource(iceberg).spark_session
        return cls(engine, iceberg.table_manager, session)

    @property
    def provider(self) -> "Callable[[], SparkSession] | None":
        """What `TableMaintenance` takes as Spark."""
        session = self.session
        return None if session is None else lambda: session

    def maintenance(self, after: timedelta = timedelta(0)) -> TableMaintenance:
        return TableMaintenance(self.manager, spark=self.provider, clock=lambda: later(after))

    def plan(
        self, operation: MaintenanceOperation, policy: MaintenancePolicy = EAGER, after: timedelta = timedelta(0)
    ) -> MaintenancePlan:
        return self.maintenance(after).plan(operation, ORDERS, self._by_engine(policy))

    def execute(
        self, operation: MaintenanceOperation, policy: MaintenancePolicy = EAGER, after: timedelta = timedelta(0)
    ) -> MaintenanceResult:
        """Do it with this engine, whatever the policy says."""
        return self.maintenance(after).execute(operation, ORDERS, self._by_engine(policy))

    def execute_auto(
        self, operation: MaintenanceOperation, policy: MaintenancePolicy = EAGER, after: timedelta = timedelta(0)
    ) -> MaintenanceResult:
        """Let the package choose, Spark being there if this is Spark's."""
        return self.maintenance(after).execute(operation, ORDERS, policy)

    def _by_engine(self, policy: MaintenancePolicy) -> MaintenancePolicy:
        return policy.model_copy(update={"engine": self.engine})

    def sql(self, statement: str) -> None:
        assert self.session is not None
        self.session.sql(statement.replace("ORDERS", f"floe.{ORDERS}"))

    def set_properties(self, **properties: str) -> None:
        pairs = ", ".join(
            f"'{key.replace('__', '.').replace('_', '-')}'='{value}'" for key, value in properties.items()
        )
        self.sql(f"ALTER TABLE ORDERS SET TBLPROPERTIES ({pairs})")


def section(name: str, policy: Any) -> MaintenancePolicy:
    """The eager policy with one section of another."""
    return EAGER.model_copy(update={name: policy})
