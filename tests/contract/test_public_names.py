"""What users may import, frozen: a name that leaves or joins is a decision and not an accident."""

import subprocess
import sys
from pathlib import Path

import pytest

import floe_dagster_iceberg
from floe_dagster_iceberg import errors, models

ROOT = Path(__file__).resolve().parents[2]
# Everything that is neither a model nor an error.
API = {
    "AuditCheck",
    "AuditedTable",
    "accepted_values",
    "audited_asset",
    "audited_assets",
    "freshness_within",
    "matches_schema",
    "not_null",
    "row_count_between",
    "row_count_change_within",
    "unique",
    "ArrowIcebergIOManager",
    "CompiledArtifacts",
    "IcebergBundle",
    "IcebergEnvironments",
    "IcebergIOManager",
    "IcebergResource",
    "IcebergSparkResource",
    "IcebergTableManager",
    "TableChanges",
    "SparkIcebergIOManager",
    "build_catch_up_sensor",
    "build_delete_partitions_job",
    "build_environment_definitions",
    "build_health_checks",
    "build_iceberg_observations",
    "build_maintenance_definitions",
    "build_table_change_sensor",
    "build_writer_checks",
    "create_iceberg_resources",
    "create_io_manager",
    "create_io_manager_from_artifacts",
    "iceberg_settings",
}
ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.FloeStorageError)
}
MODELS = {name for name in models.__all__ if not name.isupper()}


def test_the_public_names_are_the_api_the_models_and_the_errors() -> None:
    assert set(floe_dagster_iceberg.__all__) == API | MODELS | ERRORS


def test_the_public_names_are_sorted_and_each_is_there_once() -> None:
    assert floe_dagster_iceberg.__all__ == sorted(set(floe_dagster_iceberg.__all__))


@pytest.mark.parametrize("name", sorted(API))
def test_a_name_that_is_loaded_late_is_there_when_asked_for(name: str) -> None:
    assert getattr(floe_dagster_iceberg, name).__name__ == name
    assert name in dir(floe_dagster_iceberg)


@pytest.mark.requirement("S1-T005", "S4-errors")
@pytest.mark.parametrize("name", sorted(ERRORS | MODELS))
def test_models_and_errors_are_the_same_objects_as_in_their_own_modules(name: str) -> None:
    home = errors if name in ERRORS else models

    assert getattr(floe_dagster_iceberg, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'create_iceberg_resource'"):
        _ = floe_dagster_iceberg.create_iceberg_resource  # type: ignore[attr-defined]


@pytest.mark.requirement("D9")
def test_importing_everything_public_starts_no_spark() -> None:
    code = "import sys\nfrom floe_dagster_iceberg import *\nassert 'pyspark' not in sys.modules, 'pyspark was imported'"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
