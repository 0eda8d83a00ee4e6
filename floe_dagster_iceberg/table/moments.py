"""Moments in time as Iceberg counts them."""

from datetime import UTC, datetime, timedelta

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.quantities import format_duration

_EPOCH = datetime.fromtimestamp(0, tz=UTC)


def to_timestamp_ms(moment: datetime, *, argument: str, table: str) -> int:
    """Milliseconds since 1970 UTC.

    Raises:
        ValidationError: The time has no zone, so it could mean any of 26 hours.
    """
    if moment.utcoffset() is None:
        raise ValidationError(
            f"{argument} for '{table}' has no time zone, so it is not one moment. Use datetime.now(UTC) or add tzinfo.",
            table=table,
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_milliseconds(duration: timedelta | None, *, argument: str, table: str) -> int | None:
    """A duration in milliseconds, or None when there is none.

    Raises:
        ValidationError: It is shorter than a millisecond.
    """
    if duration is None:
        return None
    milliseconds = duration // timedelta(milliseconds=1)
    if milliseconds < 1:
        raise ValidationError(
            f"{argument} for '{table}' must be longer than nothing, got {format_duration(duration)}.", table=table
        )
    return milliseconds
