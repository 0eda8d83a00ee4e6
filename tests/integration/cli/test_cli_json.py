"""What `--json` prints is a contract: fields may join, none may leave or change its name."""

import pytest
from pydantic import BaseModel

from floe_dagster_iceberg.cli import reports

FIELDS = {
    reports.DoctorReport: {"healthy", "checks"},
    reports.Check: {"name", "state", "message"},
    reports.TablesReport: {"catalog", "tables"},
    reports.TableEntry: {"table", "rows", "data_files", "total_bytes", "snapshots", "snapshot", "error"},
    reports.SnapshotEntry: {
        "snapshot_id",
        "parent_snapshot_id",
        "committed_at",
        "operation",
        "refs",
        "added_records",
        "deleted_records",
        "total_records",
        "added_files",
        "deleted_files",
        "run_id",
        "asset_key",
        "partition_key",
    },
    reports.InspectReport: {
        "table",
        "location",
        "format_version",
        "columns",
        "partitioning",
        "sort_order",
        "properties",
        "refs",
        "health",
        "faults",
        "policy",
        "warnings",
        "snapshots",
    },
    reports.PolicyEntry: {"name", "value", "source"},
    reports.Column: {"id", "name", "type", "required", "doc"},
    reports.PartitionEntry: {"name", "transform", "column"},
    reports.RefEntry: {"name", "type", "snapshot_id"},
    reports.BreachEntry: {"message", "grave", "remedy"},
    reports.MaintenanceReport: {"dry_run", "entries"},
    reports.MaintenanceEntry: {"table", "operation", "status", "actionable", "note", "results", "policy"},
}
REPORTS = {
    value
    for value in vars(reports).values()
    if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == reports.__name__
}


def test_every_report_is_part_of_the_contract() -> None:
    assert FIELDS.keys() == REPORTS


@pytest.mark.parametrize("report", FIELDS, ids=lambda report: report.__name__)
def test_no_field_leaves(report: type[BaseModel]) -> None:
    assert FIELDS[report] <= report.model_fields.keys()
    assert all(field.description for field in report.model_fields.values())
