"""Guardrails refuse before anything is changed, say what to do, and give way only to their own name."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table import Table
from support.maintenance_tables import DAY, ORDERS, make_orders

from floe_dagster_iceberg.errors import MaintenanceRefusedError
from floe_dagster_iceberg.maintenance import guardrails
from floe_dagster_iceberg.models import ExpiryPolicy, Guardrail, OrphanPolicy
from floe_dagster_iceberg.table.maintenance.orphan_files import OrphanSearch
from floe_dagster_iceberg.table.maintenance.unreferenced_files import ReferencedFiles, UnreferencedFiles
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.storage import StoredFile

HOUR = timedelta(hours=1)


def found(table: Table, **arguments: Any) -> OrphanSearch:
    orphans = [StoredFile(f"{table.location()}/data/{number}", 1) for number in range(arguments.pop("orphans", 0))]
    given = {"objects": 100, "other_spellings": (), "foreign_metadata": (), "due": (), **arguments}
    return OrphanSearch(orphans=UnreferencedFiles(orphans, ReferencedFiles(table.io)), **given)


def expiry(table: Table, overrides: list[Guardrail], **arguments: Any) -> None:
    # As a policy looks that came past its own checks, by a copy for instance.
    guardrails.check_expiry(table, ExpiryPolicy().model_copy(update={**arguments, "overrides": tuple(overrides)}))


def orphan_policy(table: Table, overrides: list[Guardrail], **arguments: Any) -> None:
    overlapping = arguments.pop("overlapping", [])
    policy = OrphanPolicy().model_copy(update={**arguments, "overrides": tuple(overrides)})
    guardrails.check_orphan_policy(table, policy, overlapping)


def orphans(table: Table, overrides: list[Guardrail], **arguments: Any) -> None:
    guardrails.check_orphans(table, OrphanPolicy(overrides=overrides), found(table, **arguments))


CASES = [
    (expiry, {"max_age": 23 * HOUR}, "expiry_age", "max_age of 23 hours is below 1 day, so running readers"),
    (expiry, {"governance_min_age": 30 * DAY}, "governance_retention", "7 days is below the 30 days that governance"),
    (orphan_policy, {"older_than": 2 * DAY}, "orphan_age", "older_than of 2 days is below 3 days, so files of"),
    (orphan_policy, {"overlapping": ["a.b"]}, "shared_location", "overlaps with that of 'a.b', whose files"),
    (orphan_policy, {"overlapping": list("abcde")}, "shared_location", "'a', 'b', 'c' and 2 more"),
    (orphans, {"foreign_metadata": ["x.json"]}, "shared_location", "the metadata of another table ('x.json')"),
    (orphans, {"other_spellings": ["s3://x/1", "2"]}, "location_mismatch", "names 2 of its files under another scheme"),
    (orphans, {"orphans": 21}, "orphan_share", "21 of 100 files, 21%, would count as orphans, more than 20%"),
]


@pytest.mark.requirement("S2-US4.4", "S2-FR-024")
@pytest.mark.parametrize(("check", "arguments", "guardrail", "message"), CASES)
def test_a_guardrail_refuses_and_is_overridden_by_its_own_name_alone(
    manager: IcebergTableManager, check: Callable[..., None], arguments: dict[str, Any], guardrail: str, message: str
) -> None:
    table = make_orders(manager)
    others = [each for each in Guardrail if each != guardrail]
    own_policy = ExpiryPolicy if check is expiry else OrphanPolicy

    with pytest.raises(MaintenanceRefusedError, match=f"refused by '{guardrail}'") as refused:
        check(table, [each for each in others if each in own_policy.guardrails], **dict(arguments))
    check(table, [Guardrail(guardrail)], **dict(arguments))

    assert message in str(refused.value)
    assert f"or name '{guardrail}' in overrides" in str(refused.value)
    assert (refused.value.table, refused.value.guardrail) == (ORDERS, guardrail)


@pytest.mark.parametrize("check", [expiry, orphan_policy])
def test_a_table_whose_files_may_be_anothers_is_refused(
    manager: IcebergTableManager, check: Callable[..., None]
) -> None:
    table = make_orders(manager)
    table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()

    with pytest.raises(MaintenanceRefusedError, match=r"its property gc\.enabled is false"):
        check(manager.load_table(ORDERS), [])
    check(manager.load_table(ORDERS), [Guardrail.GC_DISABLED])


def test_what_is_within_all_bounds_passes(manager: IcebergTableManager) -> None:
    table = make_orders(manager)

    expiry(table, [], max_age=DAY, governance_min_age=DAY)
    orphan_policy(table, [], older_than=3 * DAY)
    orphans(table, [], orphans=20)
