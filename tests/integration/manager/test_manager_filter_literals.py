"""Literals of text filters mean values of the column's type, in scans, deletes and overwrites; or they are refused."""

import datetime as dt
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, In, LessThan, NotEqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from support.lake import Lake

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import RowFilter
from floe_dagster_iceberg.table.manager import IcebergTableManager

IDS = [uuid.UUID(int=1), uuid.UUID(int=2**127 + 5), uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")]
NAN = float("nan")
INT_MAX = 2**31 - 1
# Four rows each; the last is NULL.
COLUMNS: dict[str, pa.Array] = {
    "u": pa.array([*(each.bytes for each in IDS), None], pa.uuid()),
    "i": pa.array([1, 2, INT_MAX, None], pa.int32()),
    "l": pa.array([1, 2, 2**63 - 1, None], pa.int64()),
    "f": pa.array([0.1, -0.0, NAN, None], pa.float32()),
    "x": pa.array([0.1, -0.0, NAN, None], pa.float64()),
    "m": pa.array([Decimal("0.10"), Decimal("1.50"), Decimal("-9.99"), None], pa.decimal128(9, 2)),
    "big": pa.array([Decimal("12345678901234567.89"), Decimal(0), Decimal(1), None], pa.decimal128(38, 2)),
    "d": pa.array([dt.date(2024, 1, 31), dt.date(1960, 1, 1), dt.date(2024, 2, 1), None]),
    "t": pa.array([dt.time(14, 30), dt.time(0), dt.time(23, 59, 59, 999999), None], pa.time64("us")),
    "ts": pa.array([0, 1, -1, None], pa.timestamp("us")),
    "tz": pa.array([0, 1, -1, None], pa.timestamp("us", "UTC")),
    "b": pa.array([True, False, True, None]),
    "s": pa.array(["a", "", "ab", None]),
    "raw": pa.array([b"a", b"", b"\xff", None], pa.binary()),
    "fix": pa.array([b"ab", b"\x00\x00", b"zz", None], pa.binary(2)),
}
ROWS = pa.table({**COLUMNS, "row": range(4)})

MATCHES: list[tuple[RowFilter, list[int]]] = [
    (f"u = '{IDS[2]}'", [2]),
    (f"u = '{str(IDS[2]).upper()}'", [2]),
    (f"'{IDS[0]}' = u", [0]),
    (f"u != '{IDS[2]}'", [0, 1]),
    (f"u in ('{IDS[0]}', '{IDS[1]}')", [0, 1]),
    (f"u not in ('{IDS[0]}', '{IDS[1]}')", [2]),
    (f"not u = '{IDS[0]}' or u is null", [1, 2, 3]),
    ("u is null", [3]),
    (f"u is not null and u < '{IDS[1]}'", [0]),
    (EqualTo("u", IDS[1]), [1]),
    ("i = 1.0", [0]),
    ("i < 3000000000", [0, 1, 2]),
    ("i > -3000000000", [0, 1, 2]),
    ("i != 3000000000", [0, 1, 2]),
    ("i >= 3000000000", []),
    ("i in (1, 3000000000)", [0]),
    ("i in (3000000000, 3000000001)", []),
    ("i not in (3000000000, 3000000001)", [0, 1, 2]),
    ("l = '2'", [1]),
    ("f = 0.1", [0]),
    ("f in (0.1, 7.5)", [0]),
    ("f = 0.0", [1]),
    ("f != 0.0", [0, 2]),
    ("f <= 0.0", [1]),
    ("f < 0.0", []),
    ("x = 0.0", [1]),
    ("x = '-0.0'", [1]),
    ("x >= 0", [0, 1]),
    ("x > 0", [0]),
    ("x is nan", [2]),
    ("m = 0.1", [0]),
    ("m = '0.1'", [0]),
    ("m = 0.10", [0]),
    ("m > 1", [1]),
    ("m in (0.1, 1.5)", [0, 1]),
    (LessThan("m", 0.1), [2]),
    (In("m", [Decimal("1.5"), Decimal("0.1000")]), [0, 1]),
    ("big = '12345678901234567.89'", [0]),
    ("d = '2024-01-31'", [0]),
    ("d < '1970-01-01'", [1]),
    ("t >= '14:30:00'", [0, 2]),
    ("t = '23:59:59.999999'", [2]),
    ("ts = '1970-01-01T00:00:00.000001'", [1]),
    ("tz < '1970-01-01T01:00:00+01:00'", [2]),
    ("b = true", [0, 2]),
    ("b = 'false'", [1]),
    ("s like 'a%'", [0, 2]),
    ("s not like 'a%'", [1]),
    (EqualTo("raw", b"\xff"), [2]),
    (NotEqualTo("fix", b"ab"), [1, 2]),
    ("raw is null or fix is null", [3]),
]


@pytest.fixture
def table(manager: IcebergTableManager) -> str:
    manager.create_table("bronze.types", ROWS.schema)
    manager.append("bronze.types", ROWS)
    return "bronze.types"


@pytest.fixture
def file_per_row(manager: IcebergTableManager) -> str:
    """The same rows in a file each, which statistics decide about."""
    manager.create_table("bronze.files", ROWS.schema)
    for number in range(4):
        manager.append("bronze.files", ROWS.slice(number, 1))
    return "bronze.files"


@pytest.mark.requirement("S2-FR-036", "S2-US6.3")
def test_scans_find_the_rows(manager: IcebergTableManager, table: str, file_per_row: str) -> None:
    found = [(where, manager.scan(table, ["row"], where)["row"].to_pylist()) for where, _ in MATCHES]
    streamed = [manager.scan_batches(table, ["row"], where).read_all()["row"].to_pylist() for where, _ in MATCHES]
    by_file = [(where, sorted(manager.scan(file_per_row, ["row"], where)["row"].to_pylist())) for where, _ in MATCHES]

    assert found == MATCHES
    assert streamed == [rows for _, rows in MATCHES]
    assert by_file == MATCHES


def test_deletes_remove_the_rows(lake: Lake, manager: IcebergTableManager, table: str, file_per_row: str) -> None:
    expected = [(where, [row for row in range(4) if row not in rows]) for where, rows in MATCHES]

    for name in (table, file_per_row):
        # Each on a branch of its own, which begins with all rows.
        for number, (where, _) in enumerate(MATCHES):
            manager.delete(name, where, branch=f"b{number}")
        deleted = lake.table(name)
        assert [(where, rows_of(deleted, f"b{number}")) for number, (where, _) in enumerate(MATCHES)] == expected


def rows_of(table: Table, branch: str) -> list[int]:
    """What PyIceberg itself finds on a branch; main if nothing was ever deleted there."""
    snapshot = table.snapshot_by_name(branch) or table.current_snapshot()
    assert snapshot is not None
    return sorted(table.scan(selected_fields=("row",), snapshot_id=snapshot.snapshot_id).to_arrow()["row"].to_pylist())


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)], ids=str)
def test_a_partition_of_uuids_is_replaced(
    lake: Lake, manager: IcebergTableManager, transform: IdentityTransform | BucketTransform
) -> None:
    rows = ROWS.select(["u", "row"])
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=transform, name="part"))
    manager.create_table("bronze.by_uuid", rows.schema, spec)
    manager.append("bronze.by_uuid", rows)

    new = pa.table({"u": pa.array([IDS[2].bytes], pa.uuid()), "row": [7]})
    manager.overwrite("bronze.by_uuid", new, overwrite_filter=f"u = '{IDS[2]}'")

    assert {row[1] for row in lake.rows("bronze.by_uuid")} == {0, 1, 3, 7}
    assert manager.scan("bronze.by_uuid", row_filter=f"u in ('{IDS[0]}', '{IDS[2]}')").num_rows == 2


REFUSED: dict[str, str] = {
    "u = 'not-a-uuid'": "column 'u' of type uuid .* that is no uuid. Write it like u = '",
    "u = 7": "column 'u' of type uuid",
    "u like 'f79%'": "column 'u' of type uuid with 'like', which is for text only",
    "u in ('x', 'y')": "column 'u' of type uuid",
    "i = 1.5": "column 'i' of type int .* that is no whole number",
    "i = '1.5'": "column 'i' of type int .* that is no whole number",
    "i in (1.5, 2.5)": "column 'i' of type int .* that is no whole number",
    "i like '1%'": "column 'i' of type int with 'like', which is for text only",
    "l = 'many'": "column 'l' of type long",
    "x = 'NaN'": "column 'x' of type double",
    "m = 0.105": r"column 'm' of type decimal\(9, 2\) .* that has more than 2 decimal places",
    "m = '12345678901'": r"column 'm' of type decimal\(9, 2\) .* that is too large for decimal\(9, 2\)",
    "m = 'much'": r"column 'm' of type decimal\(9, 2\) .* that is no decimal",
    "m = true": r"column 'm' of type decimal\(9, 2\)",
    "big = 12345678901234567.89": "a number of more than 15 digits, which has to be quoted",
    "d = 'yesterday'": "column 'd' of type date .* Write it like d = '2024-01-31'",
    "t = '25:00:00'": "column 't' of type time .* Write it like t = '14:30:00'",
    "ts = '2024-01-01'": "column 'ts' of type timestamp .* Write it like ts = '2024-01-31T14:30:00'",
    "ts = '2024-01-01T00:00:00+00:00'": "column 'ts' of type timestamp",
    "tz = '2024-01-01T00:00:00'": r"column 'tz' of type timestamptz .* '2024-01-31T14:30:00\+00:00'",
    "raw = 'a'": "column 'raw' of type binary .* Use a PyIceberg expression",
    "fix = 'ab'": r"column 'fix' of type fixed\[2\] .* Use a PyIceberg expression",
    "b = 'yes'": "column 'b' of type boolean",
    "s = 5": "column 's' of type string .* Write it like s = 'text'",
    "nothing = 1": "names a column that does not exist",
}


@pytest.mark.parametrize("where", REFUSED)
def test_a_literal_of_another_type_is_refused_and_not_shown(
    lake: Lake, manager: IcebergTableManager, table: str, where: str
) -> None:
    files = lake.files()
    attempts = [
        lambda: manager.scan(table, row_filter=where),
        lambda: manager.delete(table, where),
        lambda: manager.overwrite(table, ROWS, overwrite_filter=where),
    ]

    for attempt in attempts:
        with pytest.raises(ValidationError, match=REFUSED[where]) as raised:
            attempt()
        assert where.partition(" ")[2] not in str(raised.value)
    assert lake.files() == files


def test_a_literal_of_another_type_in_an_expression_is_refused(manager: IcebergTableManager, table: str) -> None:
    bound = EqualTo("i", 1).bind(manager.load_table(table).schema())

    with pytest.raises(ValidationError, match="column 'fix' of type"):
        manager.scan(table, row_filter=EqualTo("fix", b"abc"))
    with pytest.raises(ValidationError, match="column 'i' of type int"):
        manager.scan(table, row_filter=In("i", [1.5, 2.5]))
    with pytest.raises(ValidationError, match="bound to a schema already"):
        manager.scan(table, row_filter=bound)
