"""The Spark session as a Dagster resource, configured by the same `IcebergResource` as everything else."""

from typing import TYPE_CHECKING, Any, Self

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark.leases import LEASES

if TYPE_CHECKING:
    # Loading a code location must not load Spark.
    from pyspark.sql import SparkSession

    from floe_dagster_iceberg.spark.conf import SparkSettings


class IcebergSparkResource(ConfigurableResource[Any]):
    """A Spark session that knows the Iceberg catalog. Spark starts when the session is first used.

    Assets and IO managers of one process share it. A run that started Spark stops it at its
    end. Where Spark runs is a matter of `master` or `remote`; pipelines do not change.
    """

    iceberg: IcebergResource = Field(description="Catalog and storage of the tables.")
    master: str = Field(
        default="local[*]", description="Where Spark runs: local[*], spark://host:7077, k8s://https://host, yarn."
    )
    remote: str | None = Field(
        default_factory=lambda: None,
        repr=False,
        json_schema_extra={"dagster__is_secret": True},
        description="Address of a Spark Connect server, such as sc://host:15002, instead of a master.",
    )
    spark_config: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        json_schema_extra={"dagster__is_secret": True},
        description="Spark conf; it wins over what this package sets.",
    )

    @classmethod
    def from_artifacts(cls, artifacts: CompiledArtifacts, iceberg: IcebergResource) -> Self:
        """Configure from the `plugins.compute.config` of compiled artifacts; Spark is not started."""
        spark = artifacts.spark
        given: dict[str, Any] = {"master": spark.master, "remote": spark.remote, "spark_config": spark.conf}
        # What is not given stays unset: the launchpad begins with what is set, and with asterisks for secrets.
        return cls(iceberg=iceberg, **{name: value for name, value in given.items() if value})

    @property
    def spark_session(self) -> "SparkSession":
        """The session; the first use starts Spark.

        Raises:
            EngineCapabilityError: Spark cannot run here: no Java, no jars for this version, no answer.
        """
        from floe_dagster_iceberg.spark.sessions import REGISTRY  # noqa: PLC0415 - brings PySpark along

        return REGISTRY.open_session(self._settings(), _start_lazily)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Take part in the session of this process, should somebody start it."""
        del context
        LEASES.take()

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop Spark if this run started it and nobody else uses it."""
        del context
        LEASES.give_back()

    def _settings(self) -> "SparkSettings":
        from floe_dagster_iceberg.spark.conf import SparkSettings  # noqa: PLC0415 - brings PySpark along

        return SparkSettings(
            master=self.master,
            remote=self.remote,
            packages=tuple(self.iceberg.spark_packages()),
            conf=dict(self.spark_config),
            catalog_conf=self.iceberg.spark_conf(),
        )


def _start_lazily(conf: dict[str, str]) -> "SparkSession":
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415 - brings PySpark along

    session: SparkSession = LazyPySparkResource(spark_config=conf).spark_session
    return session
