"""The annotation of an input decides what is loaded; its metadata decides which rows and columns."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Optional, get_args

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import AssetIn, AssetsDefinition, AssetSpec, In, asset, job, op
from pyiceberg.table import Table
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-US8.2", "S2-FR-039", "S4-load_input", "D3")

NUMBERS = {"id": [1, 2, 3], "name": ["a", "b", None], "amount": [1.5, 2.5, 3.5]}
SOME: dict[str, Any] = {"columns": ["id", "amount"], "row_filter": "amount > 2 and name is null"}


@pytest.fixture
def numbers(warehouse: Warehouse) -> AssetsDefinition:
    @asset
    def numbers() -> Any:
        return warehouse.frame(NUMBERS)

    warehouse.run(numbers)
    return numbers


def load(warehouse: Warehouse, numbers: AssetsDefinition, annotation: Any, **settings: Any) -> Any:
    """What an asset gets that depends on `numbers` with such an annotation and such settings."""
    loaded: list[Any] = []

    def report(numbers: Any) -> None:
        loaded.append(numbers)

    report.__annotations__["numbers"] = annotation
    if annotation is None:
        del report.__annotations__["numbers"]
    settled = asset(ins={"numbers": AssetIn(metadata=iceberg_settings(**settings))})(report)
    warehouse.run([numbers, settled], selection=[settled])
    return loaded[0]


NAN = float("nan")
ODD = pa.table(
    {
        "id": [1, 2, 3],
        "rate": pa.array([1.5, NAN, None]),
        "narrow": pa.array([NAN, 0.5, 0.5], pa.float32()),
        "tags": [["a"], [], None],
        "by": pa.array([None, [("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize(
    ("row_filter", "ids"),
    [
        # Statistics of Parquet have no NaN, so every other value of the file is the same.
        ("rate is nan", [2]),
        ("rate != 1.5", [2]),
        ("rate not in (1.5, 7.0)", [2]),
        ("not (rate = 1.5)", [2]),
        ("narrow is nan or id = 3", [1, 3]),
        ("narrow = 0.5", [2, 3]),
        ("narrow is not nan", [2, 3]),
        ("tags is null", [3]),
        ("by is not null and tags is not null", [2]),
    ],
)
def test_nan_lists_and_maps_are_filtered(warehouse: Warehouse, row_filter: str, ids: list[int]) -> None:
    @asset
    def numbers() -> Any:
        return warehouse.frame(ODD)

    warehouse.run(numbers)

    loaded = load(warehouse, numbers, warehouse.frame_type, row_filter=row_filter, columns=["id"])
    assert sorted(warehouse.to_arrow(loaded)["id"].to_pylist()) == ids
    assert sorted(warehouse.manager.scan("public.numbers", row_filter=row_filter)["id"].to_pylist()) == ids
    warehouse.manager.delete("public.numbers", row_filter)
    assert sorted(row[0] for row in warehouse.rows("numbers", "id")) == sorted({1, 2, 3} - set(ids))


# What every engine loads, whatever it writes.
ANNOTATIONS = [
    pa.Table,
    Optional[pa.Table],  # noqa: UP045 - the old spelling must work, too
    pa.Table | None,
    pa.RecordBatchReader,
    pd.DataFrame,
    pl.DataFrame,
    pl.LazyFrame,
    Optional[pl.LazyFrame],  # noqa: UP045
    Table,
]
# How an input asks for a frame of the engine's own kind.
OWN: dict[str, Callable[[type], Any]] = {
    "its type": lambda kind: kind,
    "its type or None": lambda kind: kind | None,
    "Any": lambda _: Any,
    "nothing": lambda _: None,
}
TO_ARROW: dict[type, Callable[[Any], pa.Table]] = {
    pa.Table: lambda rows: rows,
    pa.RecordBatchReader: lambda rows: rows.read_all(),
    pd.DataFrame: lambda rows: pa.Table.from_pandas(rows, preserve_index=False),
    pl.DataFrame: lambda rows: rows.to_arrow(),
    pl.LazyFrame: lambda rows: rows.collect().to_arrow(),
    Table: lambda table: table.scan().to_arrow(),
}


def kind_of(annotation: Any) -> type:
    kind: type = next(iter(get_args(annotation)), annotation)
    return kind


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_an_input_is_what_it_is_annotated_with(
    warehouse: Warehouse, numbers: AssetsDefinition, annotation: Any
) -> None:
    loaded, kind = load(warehouse, numbers, annotation), kind_of(annotation)

    assert isinstance(loaded, kind)
    assert TO_ARROW[kind](loaded).to_pydict() == NUMBERS


@pytest.mark.parametrize("ask", OWN.values(), ids=OWN.keys())
def test_an_input_may_be_a_frame_of_the_engines_own_kind(
    warehouse: Warehouse, numbers: AssetsDefinition, ask: Callable[[type], Any]
) -> None:
    loaded = load(warehouse, numbers, ask(warehouse.frame_type))

    assert isinstance(loaded, warehouse.frame_type)
    assert warehouse.to_arrow(loaded).to_pydict() == NUMBERS


def test_any_other_annotation_is_refused_by_naming_those_that_fit(
    warehouse: Warehouse, numbers: AssetsDefinition
) -> None:
    @asset
    def report(numbers: dict) -> None:
        del numbers

    result = warehouse.run([numbers, report], selection=[report], raise_on_error=False)

    failure = failure_of(result, "report")
    assert "The annotation dict of input 'numbers' cannot be loaded from Iceberg" in failure
    assert "pyiceberg.table.Table" in failure


@pytest.mark.requirement("S3-8")
@pytest.mark.parametrize("annotation", [pa.RecordBatchReader, pd.DataFrame, pl.LazyFrame], ids=str)
def test_only_the_named_columns_and_matching_rows_are_loaded(
    warehouse: Warehouse, numbers: AssetsDefinition, annotation: Any
) -> None:
    loaded = load(warehouse, numbers, annotation, **SOME)

    assert TO_ARROW[annotation](loaded).to_pydict() == {"id": [3], "amount": [3.5]}


@pytest.mark.requirement("S3-8")
def test_a_frame_of_the_engine_has_only_the_named_columns_and_matching_rows(
    warehouse: Warehouse, numbers: AssetsDefinition
) -> None:
    loaded = load(warehouse, numbers, warehouse.frame_type, **SOME)

    assert warehouse.to_arrow(loaded).to_pydict() == {"id": [3], "amount": [3.5]}


def test_columns_of_an_input_may_be_switched_off_for_all(warehouse: Warehouse, numbers: AssetsDefinition) -> None:
    everything = warehouse.with_settings(column_projection_enabled=False)

    loaded = load(everything, numbers, warehouse.frame_type, columns=["id"])

    assert warehouse.to_arrow(loaded).column_names == ["id", "name", "amount"]


def test_a_column_that_is_not_there_is_named(warehouse: Warehouse, numbers: AssetsDefinition) -> None:
    @asset(ins={"numbers": AssetIn(metadata={"columns": ["id", "nmae"]})})
    def report(numbers: warehouse.frame_type) -> None:
        del numbers

    result = warehouse.run([numbers, report], selection=[report], raise_on_error=False)

    assert "Table 'public.numbers' has no column 'nmae'" in failure_of(result, "report")


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-023")
def test_an_input_may_read_an_earlier_version(warehouse: Warehouse, numbers: AssetsDefinition) -> None:
    first = warehouse.table("numbers").metadata.snapshots[0]
    warehouse.manager.create_tag("public.numbers", "monday")
    warehouse.manager.create_branch("public.numbers", "audit")
    warehouse.run(numbers)

    versions: list[dict[str, Any]] = [
        {"snapshot_id": first.snapshot_id},
        {"as_of": datetime.fromtimestamp(first.timestamp_ms / 1000, UTC) + timedelta(milliseconds=1)},
        {"tag": "monday"},
        {"branch": "audit"},
    ]

    found = [load(warehouse, numbers, warehouse.frame_type, **version) for version in [*versions, {"branch": "main"}]]
    assert [warehouse.to_arrow(rows).num_rows for rows in found] == [3, 3, 3, 3, 6]


def test_a_version_that_is_not_there_is_named(warehouse: Warehouse, numbers: AssetsDefinition) -> None:
    @asset(ins={"numbers": AssetIn(metadata={"iceberg/tag": "tuesday"})})
    def report(numbers: warehouse.frame_type) -> None:
        del numbers

    result = warehouse.run([numbers, report], selection=[report], raise_on_error=False)

    assert "Table 'public.numbers' has no branch or tag 'tuesday'" in failure_of(result, "report")


def test_ops_have_annotations_and_settings_too(warehouse: Warehouse) -> None:
    loaded: list[Any] = []

    @op
    def extract() -> Any:
        return warehouse.frame(NUMBERS)

    @op(ins={"rows": In(metadata={"columns": "id", "iceberg/row_filter": "id > 1"})})
    def report(rows: pd.DataFrame) -> None:
        loaded.append(rows.to_dict("list"))

    @job(resource_defs=dict(warehouse.resources))
    def pipeline() -> None:
        report(extract())

    pipeline.execute_in_process()

    assert loaded == [{"id": [2, 3]}]


@pytest.mark.lakes
def test_a_table_that_others_fill_is_loaded_by_its_key(warehouse: Warehouse) -> None:
    loaded: list[int] = []
    warehouse.manager.create_namespace("crm")
    warehouse.manager.create_table("crm.people", pa.schema([("id", pa.int64())]))
    warehouse.manager.append("crm.people", pa.table({"id": [1, 2]}))

    @asset(ins={"people": AssetIn(key=["crm", "people"])})
    def report(people: warehouse.frame_type) -> None:
        loaded.append(warehouse.to_arrow(people).num_rows)

    warehouse.run([AssetSpec(["crm", "people"]), report], selection=[report])

    assert loaded == [2]
