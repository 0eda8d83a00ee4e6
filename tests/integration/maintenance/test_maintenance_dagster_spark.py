"""The maintenance assets with Spark, as the artifacts configure it."""

from pathlib import Path

import pytest
from support.maintenance_lake import NeglectedLake, metadata_of, run_asset
from support.spark_session import SMALL_MACHINE

from floe_dagster_iceberg.factory import create_iceberg_resources


# Py4J leaves the sockets of threads that are done to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.requirement("D6", "S2-FR-030")
def test_the_launchpad_chooses_spark_and_shows_the_statement(tmp_path: Path) -> None:
    lake = NeglectedLake(tmp_path)
    lake.fill("bronze.orders", files=6)
    artifacts = lake.artifacts()
    artifacts["plugins"]["compute"] = {"type": "spark", "config": {"master": "local[2]", "conf": SMALL_MACHINE}}
    bundle = create_iceberg_resources(artifacts)
    # Started outside of a run, so that the run leaves it to the tests that follow.
    assert bundle["pyspark"].spark_session is not None

    result = run_asset(bundle.definitions(), "compaction", {"engine": "spark"})
    metadata = metadata_of(result, "compaction")
    snapshot = lake.table("bronze.orders").current_snapshot()

    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["dagster.run-id"] == result.run_id
    assert lake.files("bronze.orders") == 1
    assert lake.ids("bronze.orders") == list(range(6))
    assert "CALL `floe`.system.rewrite_data_files(" in metadata["iceberg/statements"]
    assert "| engine | spark | run config |" in metadata["iceberg/policy"]
