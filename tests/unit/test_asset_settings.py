"""Metadata of assets, outputs and inputs as typed settings."""

import doctest
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pydantic
import pytest
from pyiceberg.expressions import EqualTo

from floe_dagster_iceberg import asset_settings
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings, iceberg_settings
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partitioning import PartitionField, PartitionSpec, PartitionTransform
from floe_dagster_iceberg.models.writing import CommitStrategy, EvolutionMode, MergeRules, WriteMode

NOON = datetime(2024, 1, 5, 12, tzinfo=UTC)
SPEC = PartitionSpec(
    fields=[PartitionField(source_field_id=1, partition_field_id=1000, name="ts_day", transform=PartitionTransform.DAY)]
)
ALL_OUTPUT_SETTINGS: dict[str, Any] = {
    "table": "orders",
    "schema": "bronze.raw",
    "partition_expr": {"date": "ts", "region": "region"},
    "iceberg/write_mode": "upsert",
    "iceberg/upsert_keys": ["id", "region"],
    "iceberg/delete_when": "op = 'D'",
    "iceberg/order_by": ["ts"],
    "iceberg/on_match": "update",
    "iceberg/update_columns": ["ts", "amount"],
    "iceberg/on_missing": "delete",
    "iceberg/schema_evolution": "add",
    "iceberg/partition_spec": ["day(ts)", "bucket(16, id)"],
    "iceberg/properties": {"write.format.default": "parquet"},
    "iceberg/sort_by": ["ts"],
    "iceberg/branch": "audit",
    "iceberg/rows_outside_partition": "drop",
    "iceberg/commit_strategy": "merge_commit",
    "iceberg/snapshot_properties": {"team": "sales"},
    "iceberg/naive_timezone": "Europe/Berlin",
}


def wrapped(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same metadata as Dagster hands it over at run time."""
    return {
        key: dg.MetadataValue.text(value) if isinstance(value, str) else dg.MetadataValue.json(value)
        for key, value in metadata.items()
    }


@pytest.mark.requirement("S1-T077/82-88")
def test_every_setting_of_an_output_is_read() -> None:
    settings = AssetSettings.from_metadata(ALL_OUTPUT_SETTINGS)

    assert (settings.table, settings.namespace) == ("orders", "bronze.raw")
    assert settings.partition_expr == {"date": "ts", "region": "region"}
    assert settings.write_mode is WriteMode.UPSERT
    assert settings.merge_rules == MergeRules(
        ("id", "region"), "op = 'D'", ("ts",), "update", ("ts", "amount"), "delete"
    )
    assert settings.schema_evolution is EvolutionMode.ADD
    assert str(settings.partition_spec) == "[day(ts), bucket(16, id)]"
    assert (settings.sort_by, settings.branch) == (("ts",), "audit")
    assert settings.commit_strategy is CommitStrategy.MERGE_COMMIT
    assert (settings.rows_outside_partition, settings.naive_timezone) == ("drop", "Europe/Berlin")
    assert settings.snapshot_properties == {"team": "sales"}
    assert settings.properties == {"write.format.default": "parquet"}


def test_wrapped_and_plain_values_are_the_same() -> None:
    assert AssetSettings.from_metadata(wrapped(ALL_OUTPUT_SETTINGS)) == AssetSettings.from_metadata(ALL_OUTPUT_SETTINGS)


def test_nothing_set_is_all_defaults() -> None:
    assert AssetSettings.from_metadata(None) == AssetSettings.from_metadata({"owner": "me", "table": None})
    assert AssetSettings().naive_timezone == "UTC"


def test_settings_are_frozen() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        AssetSettings().table = "other"  # type: ignore[misc]


def test_the_output_goes_before_the_definition() -> None:
    definition = {"iceberg/write_mode": "append", "iceberg/branch": "audit", "iceberg/sort_by": ["ts"]}

    settings = AssetSettings.from_metadata(definition, wrapped({"iceberg/write_mode": "overwrite", "table": "late"}))

    assert (settings.write_mode, settings.branch, settings.table) == (WriteMode.OVERWRITE, "audit", "late")


def test_an_output_may_leave_the_upsert_its_definition_asks_for() -> None:
    definition = iceberg_settings(write_mode="upsert", upsert_keys=["id"], delete_when="gone", on_missing="delete")

    settings = AssetSettings.from_metadata(definition, {"iceberg/write_mode": dg.MetadataValue.text("overwrite")})

    assert (settings.write_mode, settings.merge_rules) == (WriteMode.OVERWRITE, MergeRules())


@pytest.mark.requirement("X20")
@pytest.mark.parametrize(
    ("metadata", "partitioned", "expected"),
    [
        ({}, False, WriteMode.APPEND),
        ({}, True, WriteMode.OVERWRITE),
        ({"iceberg/write_mode": "append"}, True, WriteMode.APPEND),
        ({"iceberg/write_mode": "overwrite"}, False, WriteMode.OVERWRITE),
        ({"iceberg/upsert_keys": "id"}, True, WriteMode.UPSERT),
    ],
)
def test_an_explicit_mode_wins_and_a_partition_is_replaced_otherwise(
    metadata: dict[str, Any], *, partitioned: bool, expected: WriteMode
) -> None:
    settings = AssetSettings.from_metadata(metadata)

    assert settings.resolve_write_mode(partitioned=partitioned, default=WriteMode.APPEND) is expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"iceberg/wirte_mode": "append"}, r"'iceberg/wirte_mode' of asset 'orders' is not a setting"),
        ({"iceberg/wirte_mode": "append"}, r"Did you mean 'iceberg/write_mode'\? Known are .*iceberg/upsert_keys"),
        ({"iceberg/row_filter": "a = 1"}, "'iceberg/row_filter' of asset 'orders' is a setting of inputs, not of"),
        ({"iceberg/write_mode": "replace"}, "'iceberg/write_mode': Input should be 'append', 'overwrite' or 'upsert'"),
        ({"iceberg/write_mode": "upsert"}, "set 'iceberg/upsert_keys'"),
        (
            {"iceberg/write_mode": "append", "iceberg/upsert_keys": ["id"]},
            "for upsert, but 'iceberg/write_mode' is append",
        ),
        ({"iceberg/upsert_keys": ["id", "id"]}, "column 'id' is named twice"),
        ({"iceberg/delete_when": "gone"}, "'iceberg/delete_when' is for upsert: set 'iceberg/upsert_keys'"),
        ({"iceberg/write_mode": "append", "iceberg/on_missing": "delete"}, "'iceberg/on_missing' is for upsert"),
        (
            {"iceberg/upsert_keys": "id", "iceberg/update_columns": "a", "iceberg/order_by": "ts"},
            "'iceberg/order_by' has column 'ts', which 'iceberg/update_columns' lacks",
        ),
        ({"iceberg/schema_evolution": "drop"}, "'iceberg/schema_evolution': Input should be 'none', 'add' or 'widen'"),
        ({"iceberg/partition_spec": ["week(ts)"]}, "'iceberg/partition_spec': partition transform 'week' is unknown"),
        ({"iceberg/partition_spec": 3}, r'a partition spec is a list such as \["day\(ts\)"'),
        ({"iceberg/rows_outside_partition": "keep"}, "Input should be 'error', 'drop' or 'allow'"),
        ({"iceberg/naive_timezone": "Mars"}, "time zone 'Mars' is unknown"),
        ({"iceberg/naive_timezone": "../etc"}, "is unknown"),
        ({"iceberg/snapshot_properties": {"dagster.run-id": "x"}}, "'dagster.run-id' is written by this package"),
        ({"iceberg/snapshot_properties": {"added-records": "1"}}, "'added-records' is computed by Iceberg"),
        ({"table": "a.b"}, "'table': table name 'a.b' is not valid"),
        ({"schema": "a..b"}, "'schema': namespace 'a..b' is not valid"),
        ({"partition_expr": ""}, "'partition_expr': String should have at least 1 character"),
    ],
)
def test_a_setting_that_is_not_valid_says_which_and_why(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AssetSettings.from_metadata(metadata, owner="asset 'orders'")


def test_an_error_does_not_show_the_value() -> None:
    with pytest.raises(ValidationError) as caught:
        InputSettings.from_metadata({"iceberg/row_filter": 12345678, "iceberg/as_of": "canary-value"})

    assert "canary-value" not in str(caught.value)
    assert "12345678" not in str(caught.value)


@pytest.mark.requirement("S3-8", "S2-FR-023")
@pytest.mark.parametrize(
    ("metadata", "field", "expected"),
    [
        ({"columns": ["a", "b"]}, "columns", ("a", "b")),
        ({"columns": dg.MetadataValue.json(["a"])}, "columns", ("a",)),
        ({"columns": "a"}, "columns", ("a",)),
        ({"iceberg/row_filter": "region = 'eu'"}, "row_filter", "region = 'eu'"),
        ({"iceberg/snapshot_id": dg.MetadataValue.int(2**62)}, "snapshot_id", 2**62),
        ({"iceberg/snapshot_id": str(2**62)}, "snapshot_id", 2**62),
        ({"iceberg/as_of": "2024-01-05T12:00:00Z"}, "as_of", NOON),
        ({"iceberg/as_of": "2024-01-05T07:00:00-05:00"}, "as_of", NOON),
        ({"iceberg/as_of": dg.MetadataValue.timestamp(NOON)}, "as_of", NOON),
        ({"iceberg/tag": "month-end"}, "tag", "month-end"),
        ({"iceberg/branch": "audit"}, "branch", "audit"),
        ({"partition_expr": "ts"}, "partition_expr", "ts"),
    ],
)
def test_settings_of_an_input_are_read(metadata: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(InputSettings.from_metadata(metadata), field) == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"iceberg/write_mode": "append"}, "'iceberg/write_mode' of the input is a setting of outputs, not of inputs"),
        ({"iceberg/tags": "x"}, r"Did you mean 'iceberg/tag'\?"),
        (
            {"iceberg/as_of": "2024-01-05T12:00:00"},
            "'iceberg/as_of': It has no time zone. Add an offset, as in",
        ),
        ({"iceberg/tag": "a", "iceberg/branch": "b"}, "tag and branch each choose a version of the table"),
        ({"iceberg/snapshot_id": "latest"}, "'iceberg/snapshot_id': Input should be a valid integer"),
    ],
)
def test_an_input_setting_that_is_not_valid_says_why(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        InputSettings.from_metadata(metadata)


def test_built_metadata_is_what_is_read() -> None:
    keywords = {key.removeprefix("iceberg/"): value for key, value in ALL_OUTPUT_SETTINGS.items()}

    assert iceberg_settings(**keywords) == ALL_OUTPUT_SETTINGS


def test_built_metadata_takes_enums_numbers_and_single_names() -> None:
    built = iceberg_settings(
        write_mode=WriteMode.APPEND,
        sort_by="ts",
        partition_spec="day(ts)",
        properties={"write.target-file-size-bytes": 1024, "write.object-storage.enabled": True},
    )

    assert built == {
        "iceberg/write_mode": "append",
        "iceberg/partition_spec": ["day(ts)"],
        "iceberg/properties": {"write.target-file-size-bytes": "1024", "write.object-storage.enabled": "true"},
        "iceberg/sort_by": ["ts"],
    }


def test_a_spec_with_field_ids_survives_metadata() -> None:
    built = iceberg_settings(partition_spec=SPEC)

    assert AssetSettings.from_metadata(wrapped(built)).partition_spec == SPEC


def test_a_filter_expression_survives_metadata() -> None:
    built = iceberg_settings(columns=["a"], row_filter=EqualTo("region", "eu"))

    assert InputSettings.from_metadata(wrapped(built)).row_filter == EqualTo("region", "eu")


def test_built_metadata_of_an_input_is_what_is_read() -> None:
    built = iceberg_settings(columns=["a", "b"], as_of=datetime(2024, 1, 5, tzinfo=UTC))

    assert built == {"columns": ["a", "b"], "iceberg/as_of": "2024-01-05T00:00:00Z"}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"wirte_mode": "append"}, "Did you mean 'iceberg/write_mode'"),
        ({"write_mode": "upsert"}, r"Metadata of iceberg_settings\(\) is not valid: upsert needs"),
        ({"write_mode": "append", "tag": "x"}, "'iceberg/write_mode' .*is a setting of outputs, not of inputs"),
        ({"table": "orders", "row_filter": "a = 1"}, "'table' .*is a setting of outputs, not of inputs"),
    ],
)
def test_mistakes_are_found_where_the_asset_is_defined(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        iceberg_settings(**keywords)


class Recorder(dg.IOManager):
    """Remembers the settings of what it would store and load."""

    def __init__(self) -> None:
        self.outputs: dict[str, AssetSettings] = {}
        self.inputs: dict[str, InputSettings] = {}

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:  # noqa: ARG002
        name = context.asset_key.to_user_string()
        self.outputs[name] = AssetSettings.from_metadata(context.definition_metadata, context.output_metadata)

    def load_input(self, context: dg.InputContext) -> None:
        self.inputs[context.name] = InputSettings.from_metadata(context.definition_metadata)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_settings_arrive_through_a_real_run(instance: dg.DagsterInstance) -> None:
    @dg.asset(metadata=iceberg_settings(write_mode="append", partition_spec=["day(ts)"], properties={"a": "b"}))
    def orders() -> dg.Output[int]:
        return dg.Output(1, metadata={**iceberg_settings(write_mode="overwrite", sort_by=["ts"]), "rows": 1})

    @dg.multi_asset(
        outs={"left": dg.AssetOut(metadata=iceberg_settings(table="l")), "right": dg.AssetOut()},
        ins={"rows": dg.AssetIn("orders", metadata=iceberg_settings(columns=["a"], tag="v1"))},
    )
    def both(rows: Any) -> Iterator[dg.Output[int]]:  # noqa: ARG001
        yield dg.Output(1, "left")
        yield dg.Output(1, "right")

    recorder = Recorder()
    dg.materialize([orders, both], instance=instance, resources={"io_manager": recorder})

    stored = recorder.outputs["orders"]
    assert (stored.write_mode, stored.sort_by, stored.properties) == (WriteMode.OVERWRITE, ("ts",), {"a": "b"})
    assert str(stored.partition_spec) == "[day(ts)]"
    assert recorder.outputs["left"].table == "l"
    assert recorder.outputs["right"] == AssetSettings()
    assert recorder.inputs["rows"] == InputSettings(columns=("a",), tag="v1")


def test_examples_run() -> None:
    assert doctest.testmod(asset_settings).failed == 0
