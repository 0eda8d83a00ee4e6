"""Which table an asset is."""

import pytest

from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError


@pytest.mark.requirement("S3-3b", "X8")
@pytest.mark.parametrize(
    ("path", "metadata", "expected"),
    [
        (["customers"], {}, "public.customers"),
        (["bronze", "raw_events"], {}, "bronze.raw_events"),
        (["gold", "metrics", "daily"], {}, "gold.metrics_daily"),
        (["customers"], {"schema": "silver"}, "silver.customers"),
        (["bronze", "raw_events"], {"schema": "silver.clean"}, "silver.clean.raw_events"),
        (["bronze", "raw_events"], {"table": "events"}, "bronze.events"),
        (["gold", "metrics", "daily"], {"table": "m", "schema": "g"}, "g.m"),
        (["customers"], {"table": "c"}, "public.c"),
        (["no good name!"], {"table": "fine"}, "public.fine"),
    ],
)
def test_an_asset_key_is_a_table(path: list[str], metadata: dict[str, str], expected: str) -> None:
    settings = AssetSettings.from_metadata(metadata)

    assert str(table_identifier(path, settings, default_namespace="public")) == expected


def test_the_name_pattern_wraps_the_key_and_leaves_a_set_name_alone() -> None:
    named = AssetSettings(table="t")

    identifiers = [
        table_identifier(["gold", "daily"], settings, default_namespace="public", table_name_pattern="dg_{asset_key}")
        for settings in (AssetSettings(), named)
    ]

    assert [str(identifier) for identifier in identifiers] == ["gold.dg_daily", "gold.t"]


@pytest.mark.parametrize("path", [["my table"], ["ns", "a.b"], ["n s", "a"]])
def test_a_key_that_is_no_table_name_says_what_to_set(path: list[str]) -> None:
    with pytest.raises(ValidationError, match=r'has no valid table name: .*Set metadata \{"schema"'):
        table_identifier(path, AssetSettings(), default_namespace="public")
