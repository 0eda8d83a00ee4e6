"""Schema, spec, snapshot and expiry commits through a REST server, which knows only Iceberg's own requirements."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.http_stub import RestStub, running_stub
from support.racing_catalog import QUICK, RacingCatalog
from support.schema_cases import change, forced
from support.servers.faults import Fault
from support.snapshot_history import NOW, SCHEMA, T, days_ago, grow, numbers

from floe_dagster_iceberg.errors import IcebergError, SchemaEvolutionError
from floe_dagster_iceberg.models import FieldType
from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        stub.catalog = RacingCatalog.of(stub.catalog)
        stub.catalog.create_namespace("bronze")
        yield stub


@pytest.fixture
def beside(stub: RestStub) -> IcebergTableManager:
    """Another client, on the same tables."""
    return IcebergTableManager(stub.catalog, config=QUICK)


@pytest.fixture
def rest(stub: RestStub, beside: IcebergTableManager) -> IcebergTableManager:
    beside.create_table(T, SCHEMA)
    manager = IcebergTableManager(RestCatalog("rest", uri=stub.url), config=QUICK)
    manager.append(T, numbers(1, 2, 3))
    return manager


@pytest.mark.requirement("S2-US1.2", "S2-FR-002", "S2-FR-035")
def test_schema_and_spec_evolve(stub: RestStub, rest: IcebergTableManager) -> None:
    rest.evolve_schema(T, forced(change("add_column", "note", new_type=FieldType.STRING), change("make_required", "n")))
    rest.evolve_partition_spec(T, add=["bucket(4, n)"])

    table = stub.catalog.load_table(T)
    assert [(field.name, field.required) for field in table.schema().fields] == [("n", True), ("note", False)]
    assert [field.name for field in table.spec().fields] == ["n_bucket_4"]


@pytest.mark.requirement("S2-US1.2", "S2-E5")
def test_a_schema_that_changes_before_the_commit_is_checked_again_by_us(
    stub: RestStub, rest: IcebergTableManager, beside: IcebergTableManager
) -> None:
    add = [change("add_column", "note", new_type=FieldType.STRING)]
    stub.catalog.meanwhile = [lambda: beside.evolve_schema(T, add)]

    with pytest.raises(SchemaEvolutionError, match="already has it"):
        rest.evolve_schema(T, add)


@pytest.mark.requirement("S2-US1.2", "S2-FR-003", "S2-FR-007")
def test_names_are_given_and_moved(stub: RestStub, rest: IcebergTableManager) -> None:
    first = rest.get_current_snapshot(T).snapshot_id
    rest.create_tag(T, "v1")
    rest.append(T, numbers(4), branch="staging")
    rest.fast_forward(T, "main", "staging")
    rest.remove_ref(T, "staging")
    rest.rollback_to_snapshot(T, first)

    assert {name: ref.snapshot_id for name, ref in stub.catalog.load_table(T).refs().items()} == {
        "main": first,
        "v1": first,
    }


@pytest.mark.requirement("S2-US1.2", "S2-US4.4")
def test_the_server_is_reported_where_all_names_must_stand(
    stub: RestStub, rest: IcebergTableManager, beside: IcebergTableManager
) -> None:
    grown = grow(stub.catalog.load_table(T), [days_ago(day) for day in (9, 8, 7)])
    rest.create_tag(T, "v1", grown[1])
    stub.catalog.meanwhile = [lambda: beside.rollback_to_snapshot(T, grown[0])]

    assert rest.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 1

    assert stub.catalog.load_table(T).current_snapshot().snapshot_id == grown[0]
    assert set(stub.catalog.load_table(T).refs()) == {"main", "v1"}


@pytest.mark.requirement("S2-US4.4", "S2-FR-003")
@pytest.mark.parametrize("create", ["create_tag", "create_branch"])
def test_a_name_that_the_server_lost_is_brought_back(
    stub: RestStub, rest: IcebergTableManager, beside: IcebergTableManager, create: str
) -> None:
    grown = grow(stub.catalog.load_table(T), [days_ago(day) for day in (9, 8, 7)])
    stub.catalog.meanwhile = [lambda: getattr(beside, create)(T, "late", grown[0])]

    assert rest.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 2

    table = stub.catalog.load_table(T)
    assert {name: ref.snapshot_id for name, ref in table.refs().items()} == {"main": grown[2], "late": grown[0]}
    assert beside.scan(T, ref="late")["n"].to_pylist() == [1, 2, 3]
    rest.append(T, numbers(4))
    assert sorted(beside.scan(T)["n"].to_pylist()) == [1, 2, 3, 4]


def test_a_name_that_cannot_be_brought_back_is_reported(
    stub: RestStub, rest: IcebergTableManager, beside: IcebergTableManager
) -> None:
    grown = grow(stub.catalog.load_table(T), [days_ago(day) for day in (9, 8, 7)])

    def tag_and_go_away() -> None:
        beside.create_tag(T, "late", grown[0])
        stub.fail("POST", "/tables/", Fault(status=403, body="{}"))

    stub.catalog.meanwhile = [tag_and_go_away]

    with pytest.raises(IcebergError, match=r"'bronze.numbers' .* are lost: late\. .* register_table\(\)"):
        rest.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW)


def test_a_commit_of_others_in_between_loses_nothing_that_is_not_lost(
    stub: RestStub, rest: IcebergTableManager, beside: IcebergTableManager
) -> None:
    grown = grow(stub.catalog.load_table(T), [days_ago(day) for day in (9, 8, 7)])
    stub.catalog.meanwhile = [lambda: beside.create_tag(T, "late", grown[2])]

    assert rest.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 3

    assert set(stub.catalog.load_table(T).refs()) == {"main", "late"}
