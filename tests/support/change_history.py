"""A table with a random past, and a reader that follows it by its changes alone."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.types import IntegerType, StringType
from support.delete_files import delete_positions
from support.warehouse import Warehouse

from floe_dagster_iceberg.models import CompactionStrategy, ManifestPolicy
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.maintenance.manifests import rewrite_manifests
from floe_dagster_iceberg.table.manager.changes import TableChanges

TABLE = "public.orders"
FIRST_DAY = date(2024, 1, 1)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.int64())])
CHANGE_COLUMNS = ("_change_type", "_change_ordinal", "_commit_snapshot_id")
Row = tuple[Any, ...]


def orders(*rows: tuple[int, int, int]) -> pa.Table:
    """Rows of an id, the number of a day and an amount."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    columns[1] = [FIRST_DAY + timedelta(days=number) for number in columns[1]]
    return pa.table(columns, schema=SCHEMA)


def create_orders(warehouse: Warehouse, *, partitioned: bool = True) -> None:
    warehouse.manager.create_namespace("public", if_not_exists=True)
    table = warehouse.iceberg.catalog.create_table(TABLE, SCHEMA)
    if partitioned:
        with table.update_spec() as spec:
            spec.add_field("day", "day", "day_day")


def head(warehouse: Warehouse) -> int | None:
    return warehouse.table(TABLE).metadata.current_snapshot_id


def read(warehouse: Warehouse, changes: TableChanges) -> pa.Table:
    """The changes as the engine of the warehouse reads them."""
    if warehouse.engine == "arrow":
        return changes.to_arrow()
    from floe_dagster_iceberg.spark.changes import open_changes  # noqa: PLC0415 - needs a session

    return open_changes(warehouse.io_manager.pyspark.spark_session, changes).toArrow()


def rows_of(rows: pa.Table, columns: list[str]) -> Counter[Row]:
    """Rows as a bag; what a row lacks is NULL."""
    return Counter(tuple(row.get(column) for column in columns) for row in rows.to_pylist())


class Follower:
    """Holds a copy of the table that it changes only by what the changelog says."""

    def __init__(self, warehouse: Warehouse, **options: Any) -> None:
        self._warehouse, self._options = warehouse, options
        self.copy: Counter[Row] = Counter()
        self.position: int | None = None

    def catch_up(self) -> None:
        columns = self._warehouse.table(TABLE).schema().column_names
        missing = len(columns) - len(next(iter(self.copy), columns))
        self.copy = Counter({(*row, *[None] * missing): count for row, count in self.copy.items()})
        changes = self._warehouse.manager.scan_changes(TABLE, self.position, **self._options)
        for row in sorted(read(self._warehouse, changes).to_pylist(), key=_in_order):
            kind = row["_change_type"]
            values = tuple(row[column] for column in columns)
            self.copy[values] += 1 if kind in {"INSERT", "UPDATE_AFTER"} else -1
            assert self.copy[values] >= 0, "a row is deleted that is not there"
        self.copy = +self.copy
        self.position = changes.cursor.snapshot_id


def _in_order(row: dict[str, Any]) -> tuple[int, bool]:
    return row["_change_ordinal"], row["_change_type"] in {"INSERT", "UPDATE_AFTER"}


class RandomHistory:
    """Does random things to the table."""

    def __init__(self, warehouse: Warehouse, seed: int) -> None:
        self._warehouse, self._random = warehouse, random.Random(seed)  # noqa: S311 - repeatable
        self._columns = 0
        self.kinds: list[str] = []

    def step(self) -> None:
        actions: dict[str, tuple[int, Callable[[], None]]] = {
            "append": (4, self._append),
            "replace a day": (4, self._replace_day),
            "upsert": (3, self._upsert),
            "delete": (2, self._delete),
            "delete positions": (2, self._delete_positions),
            "compact": (2, self._compact),
            "rewrite manifests": (1, self._rewrite_manifests),
            "add a column": (1, self._add_column),
            "roll back": (1, self._roll_back),
            "publish a branch": (2, self._publish),
        }
        weights = [weight for weight, _ in actions.values()]
        name = self._random.choices(list(actions), weights)[0]
        self.kinds.append(name)
        actions[name][1]()

    def _rows(self, day: int | None = None, branch: str | None = None) -> pa.Table:
        del branch

        def one(id_: int) -> tuple[int, int, int]:
            return id_, day if day is not None else self._random.randrange(4), self._random.randrange(5)

        return orders(*map(one, self._random.sample(range(30), self._random.randrange(1, 8))))

    def _append(self) -> None:
        self._warehouse.manager.append(TABLE, self._rows())

    def _replace_day(self) -> None:
        number = self._random.randrange(4)
        day = FIRST_DAY + timedelta(days=number)
        self._warehouse.manager.overwrite(TABLE, self._rows(number), overwrite_filter=f"day = '{day}'")

    def _upsert(self) -> None:
        # By all columns but the amount, as an id may be there several times.
        known = self._warehouse.manager.scan(TABLE).select(["id", "day"]).group_by(["id", "day"]).aggregate([])
        rows = self._rows()
        if rows.num_rows and known.num_rows:
            self._warehouse.manager.upsert(TABLE, rows, ["id", "day"])

    def _delete(self) -> None:
        self._warehouse.manager.delete(TABLE, f"id = {self._random.randrange(30)}")

    def _delete_positions(self) -> None:
        table = self._warehouse.table(TABLE)
        files = [task.file for task in table.scan().plan_files()]
        if files:
            file = self._random.choice(files)
            delete_positions(table, file, self._random.randrange(file.record_count))

    def _compact(self) -> None:
        self._warehouse.manager.compact_table(TABLE, CompactionStrategy(target_file_size_bytes=1024 * 1024))

    def _rewrite_manifests(self) -> None:
        rewrite_manifests(
            self._warehouse.manager.load_table(TABLE), ManifestPolicy(min_manifests=2), CommitBudget(4, 0.01)
        )

    def _add_column(self) -> None:
        with self._warehouse.table(TABLE).update_schema() as update:
            update.add_column(f"extra_{self._columns}", self._random.choice([IntegerType(), StringType()]))
        self._columns += 1

    def _roll_back(self) -> None:
        table = self._warehouse.table(TABLE)
        known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        snapshot = table.current_snapshot()
        for _ in range(self._random.randrange(1, 4)):
            snapshot = None if snapshot is None else known.get(snapshot.parent_snapshot_id)
            if snapshot is not None:
                table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
                table.refresh()

    def _publish(self) -> None:
        manager = self._warehouse.manager
        if head(self._warehouse) is None:
            return
        manager.create_branch(TABLE, "audit")
        for _ in range(2):
            manager.append(TABLE, self._rows(branch="audit"), branch="audit")
        manager.fast_forward(TABLE, "main", "audit")
        manager.remove_ref(TABLE, "audit")


class KeyedHistory(RandomHistory):
    """Random things, after each of which no two rows have the same id."""

    def _rows(self, day: int | None = None, branch: str | None = None) -> pa.Table:
        taken = self._warehouse.manager.scan(TABLE, ref=branch).select(["id", "day"]).to_pylist()
        replaced = None if day is None else FIRST_DAY + timedelta(days=day)
        used = {row["id"] for row in taken if row["day"] != replaced}
        free = sorted(set(range(60)) - used)
        chosen = self._random.sample(free, min(len(free), self._random.randrange(1, 8)))
        number = self._random.randrange
        return orders(*((id_, number(4) if day is None else day, number(5)) for id_ in chosen))

    def _upsert(self) -> None:
        known = self._warehouse.manager.scan(TABLE)["id"].to_pylist()
        changed = self._random.sample(known, min(len(known), 3))
        rows = [self._rows(), orders(*((id_, self._random.randrange(4), 9) for id_ in changed))]
        self._warehouse.manager.upsert(TABLE, pa.concat_tables(rows), ["id"])


def expire_all_but_the_newest(warehouse: Warehouse) -> None:
    warehouse.manager.expire_snapshots(
        TABLE,
        older_than=datetime.now(UTC) + timedelta(days=1),
        retain_last=1,
        now=datetime.now(UTC) + timedelta(days=2),
    )
