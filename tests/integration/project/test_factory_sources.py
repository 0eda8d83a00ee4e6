"""What may be given to the factory as assets, and which IO manager stores those that name none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckResult,
    AssetIn,
    AssetKey,
    AssetOut,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DataVersion,
    Definitions,
    IOManager,
    Output,
    SourceAsset,
    asset,
    asset_check,
    graph_asset,
    job,
    load_from_defs_folder,
    materialize,
    multi_asset,
    observable_source_asset,
    op,
)
from support.maintenance_lake import NeglectedLake

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.models import WriteMode

pytestmark = pytest.mark.requirement("S3-1")


@pytest.fixture
def lake(tmp_path: Path) -> NeglectedLake:
    (tmp_path / "lake").mkdir()
    return NeglectedLake(tmp_path / "lake")


class Memory(IOManager):
    """Keeps values in memory, as an IO manager that is not Iceberg's."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    def handle_output(self, context: Any, obj: object) -> None:
        del context
        self.kept.append(obj)

    def load_input(self, context: Any) -> object:
        del context
        return self.kept[-1]


def run(definitions: Definitions, *keys: AssetKey, **options: Any) -> Any:
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=list(keys), raise_on_error=False, **options
    )


@asset(key=["shop", "orders"])
def orders() -> pa.Table:
    return pa.table({"id": [7]})


def test_an_asset_that_names_no_io_manager_is_stored_in_iceberg(lake: NeglectedLake) -> None:
    bundle = create_iceberg_resources(lake.artifacts(), assets=[orders])

    assert run(bundle.definitions(), orders.key).success
    assert materialize([orders], resources=dict(bundle)).success
    assert lake.ids("shop.orders") == [7, 7]


def test_all_outputs_of_graphs_and_multi_assets_are_stored_in_iceberg(lake: NeglectedLake) -> None:
    @op
    def make() -> pa.Table:
        return pa.table({"id": [1]})

    @graph_asset(key=["shop", "graphed"])
    def graphed() -> Any:
        return make()

    @multi_asset(outs={"left": AssetOut(key_prefix="shop"), "right": AssetOut(key_prefix="shop")})
    def both() -> Iterator[Any]:
        yield Output(pa.table({"id": [2]}), "left")
        yield Output(pa.table({"id": [3]}), "right")

    bundle = create_iceberg_resources(lake.artifacts(), assets=[graphed, both])

    assert run(bundle.definitions(), graphed.key, *both.keys).success
    assert [lake.ids(f"shop.{name}") for name in ("graphed", "left", "right")] == [[1], [2], [3]]


def test_assets_and_ops_that_were_not_given_are_stored_as_without_the_bundle(
    lake: NeglectedLake, tmp_path: Path
) -> None:
    @asset(ins={"orders": AssetIn(orders.key)})
    def other(orders: pa.Table) -> dict[str, int]:
        return {"rows": orders.num_rows}

    @op
    def fetch() -> list[int]:
        return [1]

    @op
    def show(numbers: list[int]) -> None:
        assert numbers == [1]

    @job
    def plain() -> None:
        show(fetch())

    bundle = create_iceberg_resources(lake.artifacts(), assets=[orders])
    mine = Definitions(assets=[other], jobs=[plain])
    definitions = Definitions.merge(bundle.definitions(), mine)

    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert run(definitions, orders.key, other.key, instance=instance).success
        assert definitions.resolve_job_def("plain").execute_in_process(instance=instance).success

    assert lake.ids("shop.orders") == [7]
    assert list(bundle["iceberg"].table_manager.list_tables("shop")) == ["orders"]
    assert (tmp_path / "storage" / "other").is_file()


def test_ops_of_a_given_graph_asset_pass_their_rows_through_iceberg(lake: NeglectedLake) -> None:
    @op
    def make() -> pa.Table:
        return pa.table({"id": [1]})

    @op
    def double(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, rows])

    @graph_asset(key=["shop", "graphed"])
    def graphed() -> Any:
        return double(make())

    bundle = create_iceberg_resources(lake.artifacts(), assets=[graphed])

    assert run(bundle.definitions(), graphed.key).success
    assert lake.ids("shop.graphed") == [1, 1]
    assert bundle["iceberg"].table_manager.scan("shop.shop__graphed_make").num_rows == 1


def test_the_default_io_manager_is_left_alone_if_every_asset_names_one(lake: NeglectedLake) -> None:
    @asset(io_manager_key="iceberg_arrow_io_manager")
    def named() -> pa.Table:
        return pa.table({"id": [1]})

    @asset
    def returns_nothing() -> None: ...

    assert "io_manager" not in create_iceberg_resources(lake.artifacts(), assets=[named, returns_nothing])


def test_a_check_fails_if_another_io_manager_stored_the_asset(lake: NeglectedLake) -> None:
    bundle, kept = create_iceberg_resources(lake.artifacts(), assets=[orders]), Memory()

    with DagsterInstance.ephemeral() as instance:
        resources = {**bundle, "io_manager": kept}
        work = [orders, *bundle.asset_checks]
        checks = AssetSelection.checks(*bundle.asset_checks)
        before = materialize(work, selection=checks, resources=resources, instance=instance)
        after = materialize(work, resources=resources, instance=instance)

    (first,), (second,) = before.get_asset_check_evaluations(), after.get_asset_check_evaluations()
    assert first.passed
    assert first.description == "Table 'shop.orders' does not exist yet."
    assert not second.passed
    assert "was materialized, but there is no table 'shop.orders'" in (second.description or "")


# Dagster's own conversion of an observable source asset reads it.
@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`:DeprecationWarning")
def test_source_assets_and_specs_are_read_from_their_tables(lake: NeglectedLake) -> None:
    @observable_source_asset(key=["shop", "observed"])
    def observed() -> DataVersion:
        return DataVersion("1")

    seen: dict[str, list[int]] = {}

    @asset(
        key=["shop", "report"],
        ins={name: AssetIn(key=["shop", name]) for name in ("observed", "source", "external")},
    )
    def report(observed: pa.Table, source: pa.Table, external: pa.Table) -> None:
        rows = {"observed": observed, "source": source, "external": external}
        seen.update({name: table["id"].to_pylist() for name, table in rows.items()})

    with pytest.warns(DeprecationWarning, match="SourceAsset"):
        source = SourceAsset(["shop", "source"])
    given = [observed, source, AssetSpec(["shop", "external"]), report]
    bundle = create_iceberg_resources(lake.artifacts(), assets=given)
    bundle["iceberg"].table_manager.create_namespace("shop")
    for number, name in enumerate(("observed", "source", "external")):
        bundle["iceberg"].table_manager.create_table(f"shop.{name}", pa.schema([("id", pa.int64())]))
        bundle["iceberg"].table_manager.append(f"shop.{name}", pa.table({"id": [number]}))

    assert run(bundle.definitions(), report.key).success
    assert seen == {"observed": [0], "source": [1], "external": [2]}
    assert len(bundle.asset_checks) == 4


@asset_check(asset=orders)
def orders_have_ids(orders: pa.Table) -> AssetCheckResult:
    return AssetCheckResult(passed="id" in orders.column_names)


@job
def unrelated() -> None: ...


def test_definitions_are_taken_whole(lake: NeglectedLake) -> None:
    @asset(io_manager_key="elsewhere")
    def other() -> int:
        return 1

    kept = Memory()
    mine = Definitions(
        assets=[orders, other], asset_checks=[orders_have_ids], jobs=[unrelated], resources={"elsewhere": kept}
    )
    definitions = create_iceberg_resources(lake.artifacts(), assets=mine).definitions()

    assert run(definitions, orders.key, other.key).success
    assert (lake.ids("shop.orders"), kept.kept) == ([7], [1])
    assert definitions.resolve_job_def("unrelated")
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    assert "dagster/table_name" in specs[orders.key].metadata
    assert "dagster/table_name" not in specs[other.key].metadata
    checks = definitions.resolve_asset_graph().asset_check_keys
    assert {key.name for key in checks if key.asset_key == orders.key} == {"iceberg_table_health", "orders_have_ids"}


def test_definitions_with_a_default_io_manager_of_their_own_keep_it(lake: NeglectedLake) -> None:
    kept = Memory()
    bundle = create_iceberg_resources(
        lake.artifacts(), assets=Definitions(assets=[orders], resources={"io_manager": kept})
    )

    assert run(bundle.definitions(), orders.key).success
    assert len(kept.kept) == 1
    assert bundle.asset_checks == []


def test_the_folder_of_a_project_is_taken_whole(
    lake: NeglectedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "floe_shop" / "defs").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "floe_shop"\n'
    )
    (project / "floe_shop" / "__init__.py").touch()
    (project / "floe_shop" / "defs" / "__init__.py").touch()
    (project / "floe_shop" / "defs" / "orders.py").write_text(
        "import dagster as dg\nimport pyarrow as pa\n\n"
        '@dg.asset(key=["shop", "orders"])\n'
        'def orders() -> pa.Table:\n    return pa.table({"id": [7]})\n'
    )
    monkeypatch.syspath_prepend(str(project))

    loaded = load_from_defs_folder(path_within_project=project)
    definitions = create_iceberg_resources(lake.artifacts(), assets=loaded).definitions()

    assert run(definitions, AssetKey(["shop", "orders"])).success
    assert lake.ids("shop.orders") == [7]


@pytest.mark.parametrize(
    "given",
    ["orders", ["orders"], pytest, lambda: [orders], AssetKey("orders"), AssetSelection.all()],
    ids=["text", "texts", "module", "call", "key", "selection"],
)
def test_what_is_no_asset_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"assets has a value of type \w+\. Give a list of assets"):
        create_iceberg_resources(assets=given)


def test_a_single_asset_needs_no_list(lake: NeglectedLake) -> None:
    assert len(create_iceberg_resources(lake.artifacts(), assets=orders).asset_checks) == 1


@pytest.mark.parametrize("mode", ["overwrite", WriteMode.OVERWRITE])
def test_a_write_mode_holds_for_all_assets_that_set_none(lake: NeglectedLake, mode: Any) -> None:
    definitions = create_iceberg_resources(lake.artifacts(), assets=[orders], write_mode=mode).definitions()

    for _ in range(2):
        assert run(definitions, orders.key).success

    assert lake.ids("shop.orders") == [7]


def test_an_unknown_write_mode_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"write_mode is 'replace'\. Use append, overwrite, upsert"):
        create_iceberg_resources(write_mode="replace")
