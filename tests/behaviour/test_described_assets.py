"""What Dagster shows of an asset before it ever ran, and what is refused before it runs."""

from typing import Any

import pytest
from dagster import AssetKey, AssetsDefinition, AssetSpec, asset, multi_asset
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_metadata import describe_iceberg_assets, tables_of
from floe_dagster_iceberg.errors import ValidationError

pytestmark = pytest.mark.requirement("S3-3b", "S0-I1")


def asset_named(*key: str, **metadata: Any) -> AssetsDefinition:
    @asset(key=list(key), metadata=metadata)
    def described() -> None:
        return None

    return described


def specs_of(*assets: AssetsDefinition | AssetSpec, **settings: Any) -> dict[str, AssetSpec]:
    described = describe_iceberg_assets(assets, tables_of(assets, unique=True, **settings))
    specs = [spec for item in described for spec in (item.specs if isinstance(item, AssetsDefinition) else [item])]
    return {spec.key.to_user_string(): spec for spec in specs}


def table_of(spec: AssetSpec) -> Any:
    return spec.metadata["dagster/table_name"].value


def test_the_table_and_the_kind_are_on_the_definition() -> None:
    specs = specs_of(asset_named("orders"), asset_named("gold", "metrics", "daily"), AssetSpec(["crm", "people"]))

    assert [table_of(spec) for spec in specs.values()] == ["public.orders", "gold.metrics_daily", "crm.people"]
    assert all("iceberg" in spec.kinds for spec in specs.values())


def test_namespace_and_pattern_are_those_of_the_io_manager() -> None:
    specs = specs_of(asset_named("orders"), default_namespace="bronze", table_name_pattern="raw_{asset_key}")

    assert table_of(specs["orders"]) == "bronze.raw_orders"


def test_it_is_the_table_that_a_run_fills(warehouse: Warehouse) -> None:
    @asset(metadata={"schema": "sales", "table": "all_orders"})
    def orders() -> Any:
        return warehouse.frame({"id": [1]})

    (described,) = describe_iceberg_assets([orders], tables_of([orders]))
    assert isinstance(described, AssetsDefinition)
    warehouse.run(described)

    assert table_of(described.get_asset_spec(AssetKey("orders"))) == "sales.all_orders"
    assert warehouse.rows("sales.all_orders") == [(1,)]


def test_what_the_user_put_on_an_asset_stays() -> None:
    spec = AssetSpec("orders", kinds={"python", "csv", "s3"}, metadata={"team": "sales"}, tags={"tier": "gold"})

    described = specs_of(spec)["orders"]

    assert described.kinds == {"python", "csv", "s3"}
    assert described.metadata["team"] == "sales"
    assert described.tags["tier"] == "gold"


def test_each_asset_of_a_multi_asset_is_described() -> None:
    @multi_asset(specs=[AssetSpec("left"), AssetSpec(["b", "right"])])
    def both() -> tuple[None, None]:
        return None, None

    assert [table_of(spec) for spec in specs_of(both).values()] == ["public.left", "b.right"]


def test_two_assets_on_one_table_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"'sales/a_b' and 'sales/a/b' would both be stored in 'sales\.a_b'"):
        specs_of(asset_named("sales", "a_b"), asset_named("sales", "a", "b"))


def test_assets_that_name_their_table_may_share_it() -> None:
    specs = specs_of(
        asset_named("eu", table="orders", schema="sales"), asset_named("us", table="orders", schema="sales")
    )

    assert {table_of(spec) for spec in specs.values()} == {"sales.orders"}


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValidationError, match=r"'iceberg/wirte_mode' of asset 'orders' is not a setting\. Did you mean"
    ):
        specs_of(asset_named("orders", **{"iceberg/wirte_mode": "append"}))
