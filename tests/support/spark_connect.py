"""A real Spark Connect server, from the installed PySpark. It knows Iceberg's jars and no catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from support.processes import free_port, is_listening, running, wait_until

from floe_dagster_iceberg.spark.environment import jar_conf

SPARK_HOME = Path(pyspark.__file__).parent
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"


@contextmanager
def spark_connect_server(folder: Path) -> Iterator[str]:
    """The address of a server that runs for the length of the block."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.ui.enabled": "false",
    }
    conf |= jar_conf([SQLITE], spark_version=pyspark.__version__, spark_home=SPARK_HOME, given={})
    command = [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"),
        *(argument for key, value in conf.items() for argument in ("--conf", f"{key}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
    ]
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder)}
    with running(command, folder / "connect.log", environment):
        wait_until(lambda: is_listening(port), seconds=120, what="The Spark Connect server")
        yield f"sc://127.0.0.1:{port}"
