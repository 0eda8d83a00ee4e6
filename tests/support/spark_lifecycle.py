"""Two runs that use Spark, as a program: what is there before, during and after them, as JSON on stdout."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import psutil

from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource

CANARY = "canary-5d0e-secret"


class _Collected(logging.Handler):
    """The records of Spark's own log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, record.levelname, record.getMessage()))


def main(folder: Path) -> dict[str, Any]:
    """Run the same two assets twice in this process."""
    os.environ["FLOE_SPARK_SCRATCH"] = str(folder)
    collected = _Collected()
    logging.getLogger("spark").addHandler(collected)
    iceberg = IcebergResource(
        catalog_uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        storage_properties={"s3.secret-access-key": CANARY},
    )
    conf = {"spark.driver.memory": "512m", "spark.hadoop.fs.s3a.secret.key": CANARY}
    resource = IcebergSparkResource(iceberg=iceberg, master="local[1]", spark_config=conf)
    facts: dict[str, Any] = {"loaded_before": "pyspark" in sys.modules, "sessions": []}

    @dg.asset
    def idle() -> None: ...

    @dg.asset
    def first(pyspark: IcebergSparkResource) -> None:
        session = pyspark.spark_session
        facts["sessions"].append((id(session), session.sparkContext.applicationId))
        facts["secret_in_process_list"] = any(CANARY in " ".join(_command(each)) for each in psutil.process_iter())
        facts["secret_arrived"] = session.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key") == CANARY
        facts["secret_shown"] = CANARY in str(session.sql("SET -v").collect()) + str(session.sql("SET").collect())
        facts["shuffle_partitions"] = session.conf.get("spark.sql.shuffle.partitions")
        facts["jars"] = session.sparkContext.getConf().get("spark.jars", "").split(",")
        facts["named_jars"] = os.environ["FLOE_SPARK_JARS"].split(",")
        facts["scratch"] = sorted(path.name for path in folder.glob("floe-spark-*/*"))
        facts["left_in_working_directory"] = sorted(path.name for path in Path.cwd().iterdir())

    @dg.asset(deps=[first])
    def second(pyspark: IcebergSparkResource) -> None:
        session = pyspark.spark_session
        facts["sessions"].append((id(session), session.sparkContext.applicationId))
        session.sparkContext.setLogLevel("WARN")
        jvm = session.sparkContext._jvm
        assert jvm is not None
        jvm.org.slf4j.LoggerFactory.getLogger("org.example.Class").warn(f'a "quoted" warning, password={CANARY}')

    dg.materialize([idle], resources={"pyspark": resource})
    facts["loaded_by_a_run_without_spark"] = "pyspark" in sys.modules
    for _ in range(2):
        dg.materialize([first, second], resources={"pyspark": resource})
    from pyspark.sql import SparkSession  # noqa: PLC0415 - that it is not loaded before is one of the facts

    facts["running_after"] = SparkSession.getActiveSession() is not None
    facts["log"] = [record for record in collected.records if record[0] == "spark.org.example.Class"]
    return facts


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


if __name__ == "__main__":
    sys.stdout.write("ANSWER" + json.dumps(main(Path(sys.argv[1]))))
