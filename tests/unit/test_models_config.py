"""Settings and their bounds."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from floe_dagster_iceberg.models import (
    CommitStrategy,
    CompactionStrategy,
    IcebergIOManagerConfig,
    IcebergTableManagerConfig,
    RetryConfig,
    WriteMode,
)

MIB = 1024 * 1024
CANARY = "canary-4711"
BOUNDS: list[Any] = [
    pytest.param(model, field, (low, high), step, default, id=f"{model.__name__}.{field}")
    for model, field, low, high, step, default in [
        (IcebergTableManagerConfig, "max_commit_retries", 1, 10, 1, 3),
        (IcebergTableManagerConfig, "retry_base_delay_seconds", 0.1, 30, 0.01, 1.0),
        (IcebergTableManagerConfig, "default_retention_days", 1, 365, 1, 7),
        (IcebergTableManagerConfig, "min_snapshots_to_keep", 1, 100, 1, 10),
        (RetryConfig, "max_attempts", 1, 10, 1, 3),
        (RetryConfig, "initial_wait_seconds", 0.1, 30, 0.01, 1.0),
        (RetryConfig, "max_wait_seconds", 1, 300, 0.01, 30.0),
        (RetryConfig, "jitter_seconds", 0, 10, 0.01, 1.0),
        (CompactionStrategy, "target_file_size_bytes", MIB, 1024 * MIB, 1, 128 * MIB),
        (CompactionStrategy, "max_concurrent_file_group_rewrites", 1, 100, 1, 5),
    ]
]


@pytest.mark.requirement("S1-T009")
@pytest.mark.parametrize(("model", "field", "bounds", "step", "default"), BOUNDS)
def test_a_number_is_taken_up_to_its_bounds_and_not_beyond(
    model: type[BaseModel], field: str, bounds: tuple[float, float], step: float, default: float
) -> None:
    low, high = bounds
    assert getattr(model(), field) == default
    assert getattr(model(**{field: low}), field) == low
    assert getattr(model(**{field: high}), field) == high
    for beyond in (low - step, high + step):
        with pytest.raises(ValidationError, match=field):
            model(**{field: beyond})


@pytest.mark.requirement("S1-T009")
def test_tables_get_production_properties_and_no_manifest_merging() -> None:
    config = IcebergTableManagerConfig()

    assert config.default_commit_strategy is CommitStrategy.FAST_APPEND
    assert config.default_table_properties == {
        "write.target-file-size-bytes": "134217728",
        "write.parquet.row-group-size-bytes": "134217728",
        "history.expire.max-snapshot-age-ms": "604800000",
        "history.expire.min-snapshots-to-keep": "10",
    }


def test_retention_of_the_manager_is_what_its_tables_say() -> None:
    properties = IcebergTableManagerConfig(default_retention_days=2, min_snapshots_to_keep=3).default_table_properties

    assert properties["history.expire.max-snapshot-age-ms"] == "172800000"
    assert properties["history.expire.min-snapshots-to-keep"] == "3"


def test_properties_that_are_given_replace_the_production_ones() -> None:
    assert IcebergTableManagerConfig(default_table_properties={"a": "b"}).default_table_properties == {"a": "b"}


def test_a_first_wait_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"initial_wait_seconds 5.0 exceeds max_wait_seconds 2.0"):
        RetryConfig(initial_wait_seconds=5, max_wait_seconds=2)


@pytest.mark.parametrize("strategy", ["sort", "z_order"])
def test_a_strategy_that_arranges_rows_needs_columns(strategy: str) -> None:
    assert CompactionStrategy(strategy_type=strategy, sort_columns=["a", "b"]).sort_columns == ("a", "b")
    with pytest.raises(ValidationError, match=f"{strategy} needs sort_columns"):
        CompactionStrategy(strategy_type=strategy)
    with pytest.raises(ValidationError, match="sort column 'a' is named twice"):
        CompactionStrategy(strategy_type=strategy, sort_columns=["a", "a"])


def test_bin_packing_takes_no_columns() -> None:
    with pytest.raises(ValidationError, match="bin_pack takes no sort_columns"):
        CompactionStrategy(sort_columns=["a"])


@pytest.mark.requirement("S4-IOMConfig")
def test_an_io_manager_needs_no_setting() -> None:
    config = IcebergIOManagerConfig()

    assert (config.default_namespace, config.table_name_pattern) == ("public", "{asset_key}")
    assert (config.write_mode, config.commit_strategy) == (WriteMode.APPEND, CommitStrategy.FAST_APPEND)
    assert (config.catalog_uri, config.warehouse, config.client_id) == (None, None, None)
    assert (config.client_secret, config.token, config.partition_column) == (None, None, None)
    assert all((config.auto_create_tables, config.schema_evolution_enabled, config.column_projection_enabled))
    assert config.infer_schema_from_data
    assert config.rows_outside_partition == "error"


@pytest.mark.parametrize(
    ("alias", "field", "value"),
    [
        ("namespace", "default_namespace", "gold"),
        ("default_write_mode", "write_mode", WriteMode.OVERWRITE),
        ("default_commit_strategy", "commit_strategy", CommitStrategy.MERGE_COMMIT),
    ],
)
def test_names_of_other_documents_are_read_as_well(alias: str, field: str, value: object) -> None:
    assert IcebergIOManagerConfig.model_validate({alias: value}) == IcebergIOManagerConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "bad", "message"),
    [
        ("default_namespace", "a b", "namespace 'a b' is not valid"),
        ("table_name_pattern", "fixed", "must contain '{asset_key}'"),
        ("write_mode", "merge", "write_mode"),
        ("rows_outside_partition", "ignore", "'error', 'drop' or 'allow'"),
        ("partition_column", "", "partition_column"),
    ],
)
def test_an_io_manager_setting_that_is_invalid_is_refused(field: str, bad: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        IcebergIOManagerConfig(**{field: bad})


def test_secrets_show_neither_in_the_repr_nor_in_errors() -> None:
    secrets = {"client_secret": CANARY, "token": CANARY, "catalog_uri": f"postgresql://me:{CANARY}@host/db"}

    assert CANARY not in repr(IcebergIOManagerConfig(**secrets))
    with pytest.raises(ValidationError) as raised:
        IcebergIOManagerConfig(**secrets, table_name_pattern="fixed")
    assert CANARY not in str(raised.value)
