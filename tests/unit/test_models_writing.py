"""How one write is described."""

from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg.expressions import And, EqualTo, GreaterThan

from floe_dagster_iceberg.models import WriteConfig, WriteMode

UPSERT = {"mode": "upsert", "join_columns": ["a"]}
CANARY = "canary-4711"


@pytest.mark.requirement("S1-T054/61b/c")
def test_a_write_appends_with_the_managers_strategy_by_default() -> None:
    config = WriteConfig()

    assert (config.mode, config.commit_strategy, config.overwrite_filter) == (WriteMode.APPEND, None, None)
    assert (config.join_columns, config.snapshot_properties, config.branch) == ((), {}, None)


@pytest.mark.requirement("S1-T054/61b/c")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "upsert"}, "upsert needs join_columns: name the columns"),
        ({"mode": "upsert", "join_columns": []}, "upsert needs join_columns"),
        ({"mode": "upsert", "join_columns": [""]}, "at least 1 character"),
        ({"mode": "upsert", "join_columns": ["a", "b", "a"]}, "join column 'a' is named twice"),
        ({"mode": "upsert", "join_columns": ["a"], "overwrite_filter": "a = 1"}, "upsert takes no overwrite_filter"),
        ({"mode": "append", "join_columns": ["a"]}, "append takes no join_columns"),
        ({"mode": "overwrite", "join_columns": ["a"]}, "overwrite takes no join_columns"),
        ({"overwrite_filter": "a = 1"}, "append takes no overwrite_filter: leave it out, or set mode to overwrite"),
        ({"delete_when": "a = 1"}, "append does not merge rows: leave the options of upsert out"),
        ({"mode": "overwrite", "on_missing": "delete"}, "overwrite does not merge rows"),
        ({**UPSERT, "order_by": ["b", "b"]}, "column 'b' is named twice"),
        ({**UPSERT, "order_by": ["a"]}, "'order_by' has the key column 'a'"),
        ({**UPSERT, "update_columns": ["a", "b"]}, "'update_columns' has the key column 'a'"),
        ({**UPSERT, "update_columns": ["b"], "order_by": ["c"]}, "'order_by' has column 'c', which 'update_columns'"),
        ({**UPSERT, "update_columns": ["b"], "on_match": "ignore"}, "'update_columns' has no effect if 'on_match'"),
        ({**UPSERT, "on_match": "delete"}, "on_match"),
        ({**UPSERT, "delete_when": " "}, "a row filter is a text"),
        ({"mode": "merge"}, "mode"),
        ({"commit_strategy": "slow"}, "commit_strategy"),
        ({"branch": ""}, "branch"),
        ({"snapshot_properties": {"a": 1}}, "snapshot_properties"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WriteConfig(**arguments)


@pytest.mark.parametrize(
    "key", ["operation", "added-records", "total-files-size", "partitions.a", "changed-partition-count"]
)
def test_a_property_that_iceberg_computes_cannot_be_set(key: str) -> None:
    with pytest.raises(ValidationError, match=f"snapshot property '{key}' is computed by Iceberg"):
        WriteConfig(snapshot_properties={key: "1"})


def test_other_snapshot_properties_are_free() -> None:
    properties = {"dagster.run-id": "1", "added": "x", "operation.note": "y"}

    assert WriteConfig(snapshot_properties=properties).snapshot_properties == properties


@pytest.mark.parametrize("row_filter", ["a = 1", EqualTo("a", 1), And(EqualTo("a", 1), GreaterThan("b", "x"))])
def test_a_filter_is_text_or_an_expression_and_survives_json(row_filter: Any) -> None:
    config = WriteConfig(mode=WriteMode.OVERWRITE, overwrite_filter=row_filter)

    assert config.overwrite_filter == row_filter
    assert WriteConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("bad", ["", "  ", True, 5, {}, {"type": "unheard-of"}, {"type": "eq", "term": "a"}])
def test_what_is_no_filter_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError, match=r"is a text such as|no Iceberg expression"):
        WriteConfig(mode=WriteMode.OVERWRITE, overwrite_filter=bad)


@pytest.mark.parametrize(
    "arguments",
    [
        {"overwrite_filter": f"name = '{CANARY}'"},
        {"mode": "overwrite", "overwrite_filter": {"type": "unheard-of", "value": CANARY}},
        {"mode": "overwrite", "overwrite_filter": {"type": "eq", "term": {"x": CANARY}, "value": CANARY}},
        {"mode": "overwrite", "overwrite_filter": [CANARY]},
    ],
)
def test_values_of_a_filter_stay_out_of_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        WriteConfig(**arguments)

    assert CANARY not in str(raised.value)


def test_values_of_a_filter_stay_out_of_the_repr() -> None:
    config = WriteConfig(mode=WriteMode.OVERWRITE, overwrite_filter=EqualTo("name", CANARY))

    assert CANARY not in repr(config)
    assert CANARY not in str(config)
