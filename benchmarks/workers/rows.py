"""The rows that all contenders write, derived from their ids, so that all contenders write the same.

Arrow only; the peer's environment has no NumPy.
"""

from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

# Ten years of days in the past: Dagster has no partitions in the future.
FIRST_DAY = date(2010, 1, 1)
_REGIONS = pa.array(["north", "east", "south", "west"])
_MIX, _POSITIVE = pa.scalar(2654435761), pa.scalar(0x7FFF_FFFF)


def day_of(number: int) -> date:
    """The day of a partition."""
    return FIRST_DAY + timedelta(days=number)


def daily_rows(number: int, count: int, *, version: int = 0) -> pa.Table:
    """Rows of one day: id, day, amount, quantity, region and a note that hardly compresses."""
    ids = pa.arange(number * 10_000_000, number * 10_000_000 + count)
    return _order_rows(ids, pa.repeat(pa.scalar(day_of(number), pa.date32()), count), version)


def orders(first_id: int, count: int, *, days: int, version: int = 0) -> pa.Table:
    """Rows with consecutive ids and alternating days."""
    ids = pa.arange(first_id, first_id + count)
    return orders_of(ids, days=days, version=version)


def orders_of(ids: pa.Array, *, days: int, version: int = 0) -> pa.Table:
    """The rows of these ids."""
    start = pa.scalar((FIRST_DAY - date(1970, 1, 1)).days, pa.int64())
    number = pc.subtract(ids, pc.multiply(pc.divide(ids, days), days))
    return _order_rows(ids, pc.add(number, start).cast(pa.int32()).cast(pa.date32()), version)


def wide_rows(number: int, count: int, columns: int) -> pa.Table:
    """Rows of one day with many columns of numbers."""
    rows = daily_rows(number, count).select(["id", "day"])
    for column in range(columns - 2):
        mixed = _mixed(pc.add(rows.column("id"), column * 7919))
        rows = rows.append_column(f"m{column}", pc.divide(mixed.cast(pa.float64()), 1000.0))
    return rows


def _order_rows(ids: pa.Array, days: pa.Array, version: int) -> pa.Table:
    mixed = _mixed(pc.add(ids, version * 104_729))
    return pa.table(
        {
            "id": ids,
            "day": days,
            "amount": pc.divide(mixed.cast(pa.float64()), 100.0),
            "quantity": pc.bit_wise_and(mixed, pa.scalar(0xFF)).cast(pa.int32()),
            "region": _REGIONS.take(pc.bit_wise_and(mixed, pa.scalar(3))),
            "note": pc.binary_join_element_wise(mixed.cast(pa.string()), _mixed(mixed).cast(pa.string()), "-"),
        }
    )


def _mixed(ids: pa.Array) -> pa.Array:
    """Numbers that look random, always the same for the same ids."""
    first = pc.bit_wise_and(pc.multiply(ids, _MIX), _POSITIVE)
    return pc.bit_wise_and(pc.multiply(pc.bit_wise_xor(first, pc.shift_right(first, 13)), _MIX), _POSITIVE)
