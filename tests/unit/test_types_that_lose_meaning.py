"""Types without a counterpart in Iceberg are converted if their meaning stays, and refused otherwise."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.arrow_input import to_arrow_rows

NAIVE = datetime.fromisoformat("2024-01-01T05:00:00")


def objects(*values: object) -> pd.DataFrame:
    return pd.DataFrame({"a": pd.Series(values, dtype=object)})


def extension(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"a": pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))})


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}), "polars type Object"),
        (lambda: pl.LazyFrame({"a": pl.Series([object()], dtype=pl.Object)}), "polars type Object"),
        (lambda: pl.DataFrame({"a": pl.Series([1], dtype=pl.Int128)}), "polars type Int128"),
        (lambda: pl.DataFrame({"a": pl.Series([[1]], dtype=pl.List(pl.Int128))}), "polars type Int128"),
        (lambda: pl.DataFrame({"a": pl.Series([{"b": 1}], dtype=pl.Struct({"b": pl.UInt128}))}), "polars type UInt128"),
        (lambda: pl.DataFrame({"a": [timedelta(1)]}), "duration"),
        (lambda: pd.DataFrame({"a": [pd.Timedelta(1, "D")]}), "duration"),
        (lambda: pd.DataFrame({"a": pd.period_range("2024-01", periods=2, freq="M")}), "pandas.period"),
        (lambda: pd.DataFrame({"a": pd.interval_range(0, 2)}), "pandas.interval"),
        (lambda: pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "column a"),
        (lambda: extension(pa.opaque(pa.binary(), "geometry", "x"), [b"1"]), "arrow.opaque"),
        (lambda: extension(pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2]]), "arrow.fixed_shape_tensor"),
        (lambda: objects(1, "one"), "number, str"),
        (lambda: objects(1.5, *[True]), "bool, number"),
        (lambda: objects(2**64), "more than 64 bits"),
        (lambda: objects("text", b"bytes"), "bytes, str"),
        (lambda: objects(date(2024, 1, 1), NAIVE), "date, datetime"),
        (lambda: objects(NAIVE, datetime(2024, 1, 1, tzinfo=UTC)), "without time zone"),
        (lambda: pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_product([["a"], ["x", "y"]])), "several levels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_lose_its_meaning_is_refused(build: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        to_arrow_rows(build())

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("build", "kind", "values"),
    [
        (lambda: pl.DataFrame({"a": pl.Series(["x"], dtype=pl.Categorical)}), pa.large_string(), ["x"]),
        (lambda: pl.DataFrame({"a": pl.Series(["x"], dtype=pl.Enum(["x"]))}), pa.large_string(), ["x"]),
        (lambda: pd.DataFrame({"a": pd.Categorical([3, None])}), pa.int64(), [3, None]),
        (lambda: extension(pa.json_(), ["{}"]), pa.string(), ["{}"]),
        (lambda: extension(pa.bool8(), [1, 0]), pa.bool_(), [True, False]),
        (lambda: objects("x", None, float("nan")), pa.string(), ["x", None, None]),
        (lambda: objects(1, 2.5), pa.float64(), [1.0, 2.5]),
        (lambda: objects(Decimal("1.5"), 2), pa.decimal128(2, 1), [Decimal("1.5"), Decimal(2)]),
    ],
    ids=["categorical", "enum", "category", "json", "bool8", "missing", "numbers", "decimals"],
)
def test_what_keeps_its_meaning_is_converted(build: Callable[[], Any], kind: pa.DataType, values: list[Any]) -> None:
    rows = to_arrow_rows(build()).to_table()

    assert rows.schema.field("a").type == kind
    assert rows["a"].to_pylist() == values


def test_a_named_index_of_pandas_becomes_the_first_columns() -> None:
    sales = pd.DataFrame({"shop": ["a", "b", "a"], "day": [1, 1, 2], "amount": [1, 2, 3]})

    assert to_arrow_rows(sales.groupby("shop").sum()).to_table().to_pydict() == {
        "shop": ["a", "b"],
        "day": [3, 1],
        "amount": [4, 2],
    }
    assert to_arrow_rows(sales.groupby(["shop", "day"]).sum()).columns.names == ["shop", "day", "amount"]


def test_an_index_that_repeats_a_column_is_stored_once() -> None:
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", "b"]})

    assert to_arrow_rows(frame.set_index("id", drop=False)).columns.names == ["id", "name"]
    with pytest.raises(ValidationError, match="both named 'id', with other values"):
        to_arrow_rows(frame.set_index(pd.Index([7, 8], name="id")))


def test_row_numbers_are_no_column_and_labels_without_a_name_are_refused() -> None:
    frame = pd.DataFrame({"id": [1, 2, 3]})

    assert to_arrow_rows(frame[frame.id > 1]).to_table().to_pydict() == {"id": [2, 3]}
    assert to_arrow_rows(frame[:0]).columns.names == ["id"]
    with pytest.raises(ValidationError, match=r"rename_axis"):
        to_arrow_rows(frame.describe())
