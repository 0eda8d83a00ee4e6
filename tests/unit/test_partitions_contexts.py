"""Slices of the contexts that Dagster hands to IO managers, in real runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dagster as dg
import pytest

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, KeySet, PartitionSlice
from floe_dagster_iceberg.partitions import build_slice, load_slice

NO_ROWS = PartitionSlice(any_of=())

pytestmark = pytest.mark.requirement("S2-FR-040", "D4")

DAILY = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
REGIONS = dg.StaticPartitionsDefinition(["ap", "eu", "us"])
DAILY_BY_REGION = dg.MultiPartitionsDefinition({"date": DAILY, "region": REGIONS})
BY_COLUMN = {"date": "ts", "region": "region"}


@dataclass
class Recorder(dg.IOManager):
    """Stores nothing; remembers which rows each context meant."""

    outputs: dict[str, PartitionSlice] = field(default_factory=dict)
    inputs: dict[str, PartitionSlice] = field(default_factory=dict)

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:  # noqa: ARG002
        metadata = context.definition_metadata
        name = context.asset_key.to_user_string() if context.has_asset_key else context.name
        self.outputs[name] = load_slice(context, partition_expr=metadata.get("partition_expr"))

    def load_input(self, context: dg.InputContext) -> None:
        assert context.upstream_output is not None
        metadata = context.upstream_output.definition_metadata
        self.inputs[context.name] = load_slice(context, partition_expr=metadata.get("partition_expr"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@dataclass
class Runs:
    """Materializes assets for real and keeps what their contexts meant."""

    instance: dg.DagsterInstance

    def run(
        self, *assets: Any, key: str | None = None, keys: tuple[str, str] | None = None, select: Any = None
    ) -> Recorder:
        tags: Mapping[str, str] = {}
        if keys is not None:
            tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[1]}
        recorder = Recorder()
        dg.materialize(
            [*assets],
            partition_key=key,
            tags=tags,
            selection=select,
            instance=self.instance,
            resources={"io_manager": recorder},
        )
        return recorder


@pytest.fixture
def runs(instance: dg.DagsterInstance) -> Runs:
    return Runs(instance)


def asset_of(
    partitions_def: dg.PartitionsDefinition | None, expr: Any = None, name: str = "orders"
) -> dg.AssetsDefinition:
    metadata = {} if expr is None else {"partition_expr": expr}

    @dg.asset(name=name, partitions_def=partitions_def, metadata=metadata)
    def orders() -> int:
        return 1

    return orders


def reader_of(
    upstream: str, partitions_def: dg.PartitionsDefinition | None, mapping: dg.PartitionMapping | None = None
) -> dg.AssetsDefinition:
    @dg.asset(partitions_def=partitions_def, ins={"rows": dg.AssetIn(upstream, partition_mapping=mapping)})
    def report(rows: Any) -> None:  # noqa: ARG001
        return

    return report


def days(*keys: str) -> PartitionSlice:
    return build_slice(DAILY, keys, partition_expr="ts")


def regions(*keys: str) -> PartitionSlice:
    return build_slice(REGIONS, keys, partition_expr="region")


def multi(*keys: str) -> PartitionSlice:
    return build_slice(DAILY_BY_REGION, keys, partition_expr=BY_COLUMN)


def test_an_asset_without_partitions_is_all_rows(runs: Runs) -> None:
    assert runs.run(asset_of(None)).outputs == {"orders": ALL_ROWS}


def test_an_op_output_is_all_rows(instance: dg.DagsterInstance) -> None:
    @dg.op
    def produce() -> int:
        return 1

    @dg.op
    def consume(rows: Any) -> None:  # noqa: ARG001
        return

    recorder = Recorder()

    @dg.job(resource_defs={"io_manager": dg.IOManagerDefinition.hardcoded_io_manager(recorder)})
    def plain() -> None:
        consume(produce())

    plain.execute_in_process(instance=instance)

    assert recorder.outputs["result"] == ALL_ROWS
    assert recorder.inputs == {"rows": ALL_ROWS}


def test_a_run_of_one_key_writes_its_rows(runs: Runs) -> None:
    assert runs.run(asset_of(DAILY, "ts"), key="2024-01-05").outputs == {"orders": days("2024-01-05")}


def test_a_single_run_backfill_writes_the_whole_range(runs: Runs) -> None:
    recorder = runs.run(asset_of(DAILY, "ts"), keys=("2024-01-05", "2024-01-09"))

    ((window,),) = recorder.outputs["orders"].any_of
    assert window.keys == ("2024-01-05", "2024-01-06", "2024-01-07", "2024-01-08", "2024-01-09")


def test_a_range_over_excluded_days_does_not_own_them(runs: Runs) -> None:
    weekdays = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01", exclusions=["0 0 * * 6", "0 0 * * 0"])

    recorder = runs.run(asset_of(weekdays, "ts"), keys=("2024-01-05", "2024-01-08"))

    assert recorder.outputs["orders"] == build_slice(weekdays, ["2024-01-05", "2024-01-08"], partition_expr="ts")
    assert len(recorder.outputs["orders"].any_of) == 2


def test_hours_of_a_daylight_saving_day_run_one_by_one(runs: Runs) -> None:
    hourly = dg.HourlyPartitionsDefinition("2024-11-03-00:00", end_date="2024-11-04-00:00", timezone="America/New_York")
    asset = asset_of(hourly, "ts")

    written = [runs.run(asset, key=key).outputs["orders"].any_of[0][0] for key in hourly.get_partition_keys()]

    assert len(written) == 25
    assert all(before.end == after.start for before, after in pairwise(written))


@pytest.mark.parametrize("key", ["eu", "us"])
def test_a_static_key_is_a_value(runs: Runs, key: str) -> None:
    assert runs.run(asset_of(REGIONS, "region"), key=key).outputs == {"orders": regions(key)}


def test_a_range_of_static_keys_is_their_set(runs: Runs) -> None:
    assert runs.run(asset_of(REGIONS, "region"), keys=("ap", "eu")).outputs == {"orders": regions("ap", "eu")}


def test_a_dynamic_key_is_a_value(runs: Runs, instance: dg.DagsterInstance) -> None:
    customers = dg.DynamicPartitionsDefinition(name="customers")
    instance.add_dynamic_partitions("customers", ["o'brien", "smith", "zoë"])

    assert runs.run(asset_of(customers, "who"), key="o'brien").outputs["orders"].any_of == (
        (KeySet(column="who", keys=("o'brien",)),),
    )
    assert runs.run(asset_of(customers, "who"), keys=("o'brien", "smith")).outputs["orders"].any_of == (
        (KeySet(column="who", keys=("o'brien", "smith")),),
    )


def test_a_multi_key_is_a_conjunction(runs: Runs) -> None:
    key = dg.MultiPartitionKey({"date": "2024-01-05", "region": "eu"})

    assert runs.run(asset_of(DAILY_BY_REGION, BY_COLUMN), key=key).outputs == {"orders": multi("2024-01-05|eu")}


def test_a_multi_range_is_one_product(runs: Runs) -> None:
    recorder = runs.run(asset_of(DAILY_BY_REGION, BY_COLUMN), keys=("2024-01-05|ap", "2024-01-06|eu"))

    assert recorder.outputs["orders"] == multi("2024-01-05|ap", "2024-01-05|eu", "2024-01-06|ap", "2024-01-06|eu")
    assert len(recorder.outputs["orders"].any_of) == 1


def test_a_time_and_dynamic_key_is_a_conjunction(runs: Runs, instance: dg.DagsterInstance) -> None:
    both = dg.MultiPartitionsDefinition({"date": DAILY, "who": dg.DynamicPartitionsDefinition(name="customers")})
    instance.add_dynamic_partitions("customers", ["o'brien"])
    key = dg.MultiPartitionKey({"date": "2024-01-05", "who": "o'brien"})

    rows = runs.run(asset_of(both, {"date": "ts", "who": "who"}), key=key).outputs["orders"]

    assert rows == build_slice(both, [key], partition_expr={"date": "ts", "who": "who"})
    assert rows.columns == ("ts", "who")


def test_a_partitioned_asset_run_without_a_partition_is_refused(runs: Runs) -> None:
    with pytest.raises(ValidationError, match="'orders' is partitioned, but this run has no partition"):
        runs.run(asset_of(DAILY, "ts"))


def test_an_asset_that_names_no_column_is_refused_by_its_name(runs: Runs) -> None:
    with pytest.raises(ValidationError, match="Asset 'orders' is partitioned, but no column is named"):
        runs.run(asset_of(DAILY), key="2024-01-05")


@pytest.mark.parametrize(
    ("upstream", "downstream", "mapping", "key", "expected"),
    [
        pytest.param(DAILY, DAILY, None, "2024-01-05", days("2024-01-05"), id="identity"),
        pytest.param(
            DAILY,
            DAILY,
            dg.TimeWindowPartitionMapping(start_offset=-2, end_offset=-1),
            "2024-01-05",
            days("2024-01-03", "2024-01-04"),
            id="offset",
        ),
        pytest.param(
            DAILY,
            DAILY,
            dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
            "2024-01-01",
            NO_ROWS,
            id="before the first",
        ),
        pytest.param(DAILY, None, dg.LastPartitionMapping(), None, days("2024-01-31"), id="last"),
        pytest.param(DAILY, None, None, None, days(*DAILY.get_partition_keys()), id="all"),
        pytest.param(
            DAILY,
            None,
            dg.SpecificPartitionsPartitionMapping(["2024-01-02", "2024-01-05"]),
            None,
            days("2024-01-02", "2024-01-05"),
            id="not contiguous",
        ),
        pytest.param(
            REGIONS,
            dg.StaticPartitionsDefinition(["coasts"]),
            dg.StaticPartitionMapping({"ap": "coasts", "us": "coasts"}),
            "coasts",
            regions("ap", "us"),
            id="static",
        ),
        pytest.param(
            DAILY,
            dg.WeeklyPartitionsDefinition("2024-01-01", end_date="2024-02-01"),
            None,
            "2024-01-07",
            days(*(f"2024-01-{day:02}" for day in range(7, 14))),
            id="week of days",
        ),
        pytest.param(
            DAILY_BY_REGION,
            REGIONS,
            None,
            "eu",
            multi(*(f"{day}|eu" for day in DAILY.get_partition_keys())),
            id="multi to single",
        ),
        pytest.param(
            REGIONS,
            DAILY_BY_REGION,
            None,
            "2024-01-05|eu",
            regions("eu"),
            id="single to multi",
        ),
        pytest.param(
            DAILY_BY_REGION, DAILY_BY_REGION, None, "2024-01-05|eu", multi("2024-01-05|eu"), id="multi identity"
        ),
    ],
)
def test_an_input_reads_what_its_partition_mapping_says(  # noqa: PLR0917
    runs: Runs,
    upstream: dg.PartitionsDefinition,
    downstream: dg.PartitionsDefinition | None,
    mapping: dg.PartitionMapping | None,
    key: str | None,
    expected: PartitionSlice,
) -> None:
    exprs: dict[int, Any] = {id(DAILY): "ts", id(REGIONS): "region", id(DAILY_BY_REGION): BY_COLUMN}
    source, report = asset_of(upstream, exprs[id(upstream)]), reader_of("orders", downstream, mapping)
    run_key = (
        downstream.get_partition_key_from_str(key)
        if isinstance(downstream, dg.MultiPartitionsDefinition) and key
        else key
    )

    assert runs.run(source, report, key=run_key, select=[report]).inputs == {"rows": expected}


def test_a_range_of_an_input_is_the_range_of_the_run(runs: Runs) -> None:
    source, report = asset_of(DAILY, "ts"), reader_of("orders", DAILY)

    recorder = runs.run(source, report, keys=("2024-01-05", "2024-01-06"), select=[report])

    assert recorder.inputs == {"rows": days("2024-01-05", "2024-01-06")}


def test_an_external_asset_is_read_by_its_own_column(runs: Runs) -> None:
    source = dg.AssetSpec(
        "orders", partitions_def=DAILY, metadata={"partition_expr": "ts", "dagster/io_manager_key": "io_manager"}
    )
    report = reader_of("orders", DAILY)

    assert runs.run(source, report, key="2024-01-05").inputs == {"rows": days("2024-01-05")}


@pytest.mark.parametrize(("key", "expected"), [("2024-01-01", NO_ROWS), ("2024-01-05", days("2024-01-04"))])
def test_an_asset_may_read_its_own_earlier_partition(runs: Runs, key: str, expected: PartitionSlice) -> None:
    previous = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        partitions_def=DAILY,
        metadata={"partition_expr": "ts"},
        ins={"before": dg.AssetIn("balance", partition_mapping=previous)},
    )
    def balance(before: Any) -> int:  # noqa: ARG001
        return 1

    recorder = runs.run(balance, key=key)

    assert recorder.inputs == {"before": expected}
    assert recorder.outputs == {"balance": days(key)}


def test_contexts_built_for_tests_mean_the_same() -> None:
    output = dg.build_output_context(asset_key="orders", partition_key="2024-01-05", asset_partitions_def=DAILY)
    loaded = dg.build_input_context(asset_key="orders", partition_key="2024-01-05", asset_partitions_def=DAILY)

    assert load_slice(output, partition_column="ts") == days("2024-01-05")
    assert load_slice(loaded, partition_column="ts") == days("2024-01-05")


def test_a_key_without_a_definition_is_a_value() -> None:
    context = dg.build_output_context(asset_key="orders", partition_key="eu")

    assert load_slice(context, partition_column="region") == regions("eu")
