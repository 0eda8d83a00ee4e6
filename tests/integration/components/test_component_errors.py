"""YAML that is not valid: each error names the file, the line, the field and what to write instead."""

import pytest
from support.component_project import ComponentProject

LAKEHOUSE, MAINTENANCE, SQL = "IcebergLakehouseComponent", "IcebergMaintenanceComponent", "IcebergSparkSqlComponent"
ASSET = "asset: {key: silver/orders}\n"
DELETE = "sql: DELETE FROM bronze.orders"


@pytest.mark.parametrize(
    ("component", "attributes", "line", "field", "remedy"),
    [
        (LAKEHOUSE, "catalog_tpye: rest", 3, "catalog_tpye", "did you mean 'catalog_type'"),
        (LAKEHOUSE, "catalog_type: [rest]", 3, "catalog_type", "should be a valid string"),
        (LAKEHOUSE, "catalog_type: sql\nwrite_mode: replace", 4, "write_mode", "'append', 'overwrite' or 'upsert'"),
        (LAKEHOUSE, "format_version: 4", 3, "format_version", "should be 1, 2 or 3"),
        (LAKEHOUSE, "default_namespace: a b", 3, "default_namespace", "use parts of letters, digits"),
        (LAKEHOUSE, "qualified_table_names: perhaps", 3, "qualified_table_names", "should be a valid boolean"),
        (LAKEHOUSE, "token: {source: vault, nmae: x}", 3, "token", "{secret_ref: polaris-secret}"),
        (LAKEHOUSE, "catalog_uri: '{{ enw.URI }}'", 3, "catalog_uri", "available scope is: env"),
        (MAINTENANCE, "policies:\n- expiry:\n    max_age: 3 parsecs", 5, "policies.0.expiry.max_age", "'36h', '7d'"),
        (MAINTENANCE, "policies:\n- expiry:\n    max_agee: 3d", 5, "policies.0.expiry.max_agee", "mean 'max_age'"),
        (MAINTENANCE, "policies:\n- expiry:\n    max_age: 1h", 4, "policies.0.expiry", "below the floor of 1 day"),
        (MAINTENANCE, "policies:\n- compaction:\n    sort_columns: [a]", 4, "policies.0.compaction", "sort"),
        (MAINTENANCE, "policies:\n- tables: []", 4, "policies.0.tables", "at least 1 item"),
        (MAINTENANCE, "policies:\n- dry_run: true", 3, "policies", "Move it out of 'policies'"),
        (MAINTENANCE, "budget:\n  max_rewrite_bytes: many", 4, "budget.max_rewrite_bytes", "'512MB', '1GiB'"),
        (MAINTENANCE, "schedules:\n  compact: {}", 3, "schedules", "did you mean 'compaction'"),
        (MAINTENANCE, "schedules:\n  compaction: {cron: nightly}", 3, "schedules", "Write five fields"),
        (MAINTENANCE, "timezone: Mars/Base", 3, "timezone", "use a name such as 'UTC'"),
        (MAINTENANCE, "sensor: {interval_seconds: 5}", 3, "sensor.interval_seconds", "greater than or equal to 30"),
        (SQL, "sql: SELECT 1", 2, "asset", "Field required"),
        (SQL, ASSET + DELETE, 4, "sql", "Write only a SELECT"),
        (SQL, ASSET + "sql: SELECT FROM WHERE (", 4, "sql", "Write one SELECT as Spark takes it"),
        (SQL, ASSET + "sql: SELECT 1\nchecks:\n- {type: not_nul}", 6, "checks.0.type", "'not_null'"),
        (SQL, ASSET + "sql: SELECT 1\nchecks:\n- {type: not_null}", 6, "checks.0", "Name at least one"),
        (SQL, ASSET + "sql: SELECT 1\nupsert_keys: id", 5, "upsert_keys", "should be a valid list"),
    ],
)
def test_bad_yaml_is_refused_with_its_place_and_what_to_write(
    project: ComponentProject, *, component: str, attributes: str, line: int, field: str, remedy: str
) -> None:
    path = project.write("one", component, attributes)

    message = refusal(project)

    assert remedy in message
    assert field in message
    assert f"{path.name}:{line}" in message


@pytest.mark.parametrize(
    ("attributes", "remedy"),
    [
        ("", "Give either 'sql' or 'sql_file'"),
        ("sql_file: missing.sql", "There is no file 'missing.sql'"),
        ("sql: SELECT * FROM bronze.o WHERE a > {{ least }}", "Name variables in 'sql_vars'"),
        ("sql: SELECT * FROM silver.orders", "the table that it writes"),
        ("sql: SELECT * FROM a.b.c", "Name its asset in 'upstream'"),
        ("sql: SELECT 1\nwrite_mode: upsert", "set 'iceberg/upsert_keys'"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused_with_the_asset(
    project: ComponentProject, attributes: str, remedy: str
) -> None:
    path = project.write("one", SQL, ASSET + attributes)

    message = refusal(project)

    assert remedy in message
    assert f"asset 'silver/orders' in '{path.parent}'" in message


def refusal(project: ComponentProject) -> str:
    """Everything that a failed load says."""
    with pytest.raises(Exception, match="Error while") as failed:
        project.load()
    messages, error = [], failed.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return "\n".join(messages)
