"""Components of `dg`: YAML becomes resources, maintenance, external assets, and assets of SQL.

Each field has a description; what is invalid is refused with the file and the line. Loading connects to nothing.
"""

from floe_dagster_iceberg.components.lakehouse import IcebergLakehouseComponent
from floe_dagster_iceberg.components.maintenance import IcebergMaintenanceComponent
from floe_dagster_iceberg.components.spark_sql import IcebergSparkSqlComponent

__all__ = [
    "IcebergLakehouseComponent",
    "IcebergMaintenanceComponent",
    "IcebergSparkSqlComponent",
]
