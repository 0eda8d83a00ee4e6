"""What an engine must do for the IO managers, so that they need not know which one they use."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.asset_settings import InputSettings
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.table.deposit import Deposit, Deposited
from floe_dagster_iceberg.table.slice_filter import DEFAULT_NAIVE_TIMEZONE


@dataclass(frozen=True)
class Withdrawal:
    """Which rows of which table an input asks for.

    Attributes:
        table: The table.
        rows: The rows of the upstream partitions.
        settings: Columns, filter and version.
        naive_timezone: Time zone of timestamps that have none.
        empty_schema: Columns of the frame that stands for a table that is not there yet, as for an
            asset that reads its own earlier partition in its first run; None when that is an error.
    """

    table: TableIdentifier
    rows: PartitionSlice
    settings: InputSettings = field(default_factory=InputSettings)
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
    empty_schema: Schema | None = None

    @property
    def ref(self) -> str | None:
        """Branch or tag to read; None is main."""
        ref = self.settings.tag or self.settings.branch
        return None if ref == MAIN_BRANCH else ref


class Engine(Protocol):
    """Moves rows between frames of its own kind and tables."""

    name: str
    accepted_types: str
    loadable_types: str

    def accepts(self, data: Any) -> bool:
        """Whether it can write this frame."""

    def deposit(self, data: Any, deposit: Deposit) -> Deposited:
        """Write a frame into its table, exactly once."""

    def loads(self, annotation: Any) -> bool:
        """Whether it can read a table as what the annotation names."""

    def withdraw(self, withdrawal: Withdrawal, annotation: Any) -> Any:
        """Read rows as what the annotation names."""
