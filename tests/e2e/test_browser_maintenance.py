"""Maintenance as a person runs it: from the launchpad, and by a schedule that is turned on."""

import pytest
from dagster_page import LOCATION, DagsterPage
from demo_folder import DemoFolder
from playwright.sync_api import expect

COMPACTION = "iceberg_maintenance_compaction_job"
SCHEDULE = "iceberg_maintenance_table_health_schedule"


def compaction_of(table: str, *, dry_run: bool) -> str:
    config = f"{{tables: [{table}], dry_run: {str(dry_run).lower()}}}"
    return f"{{ops: {{iceberg_maintenance__compaction: {{config: {config}}}}}}}"


@pytest.mark.requirement("D6")
def test_a_dry_run_from_the_launchpad_plans_and_changes_nothing(page: DagsterPage, demo: DemoFolder) -> None:
    demo.write_small_files("shop.planned", files=12)
    before = demo.pointers("shop")

    page.launch(COMPACTION, compaction_of("shop.planned", dry_run=True))
    page.open("/assets/iceberg_maintenance/compaction")

    page.sees("iceberg/planned_files")
    assert demo.pointers("shop") == before


@pytest.mark.requirement("D6")
def test_a_run_from_the_launchpad_compacts_the_table(page: DagsterPage, demo: DemoFolder) -> None:
    demo.write_small_files("shop.orders", files=12)

    page.launch(COMPACTION, compaction_of("shop.orders", dry_run=False))
    page.open("/assets/iceberg_maintenance/compaction")

    page.sees("12 → 1")
    assert demo.count_files("shop.orders") == 1


@pytest.mark.requirement("D6")
def test_materialize_all_plans_maintenance_and_changes_no_table(page: DagsterPage, demo: DemoFolder) -> None:
    demo.write_small_files("shop.clicked", files=12)
    before = demo.pointers("shop")

    page.open("/asset-groups~group%3A%22iceberg_maintenance%22/")
    page.sees("compaction")
    page.tab.get_by_role("button", name="Materialize all").click()
    # The run has been launched before the page is left.
    page.tab.wait_for_timeout(6_000)
    page.open("/assets/iceberg_maintenance/compaction")

    page.sees("iceberg/how_to_run", minutes=4)
    assert demo.pointers("shop") == before


@pytest.mark.requirement("D6")
def test_the_launchpad_of_a_job_shows_what_can_be_set(page: DagsterPage) -> None:
    page.open(f"{LOCATION}/jobs/{COMPACTION}/playground")

    for setting in ("tables", "dry_run", "engine"):
        expect(page.tab.locator(".CodeMirror").first).to_contain_text(setting)


@pytest.mark.requirement("D6")
def test_the_launchpad_begins_with_something_that_can_be_launched(page: DagsterPage) -> None:
    page.open(f"{LOCATION}/jobs/iceberg_maintenance_table_health_job/playground")

    page.launch_as_it_stands()


@pytest.mark.requirement("D6")
def test_a_schedule_that_is_turned_on_ticks_and_starts_a_run(page: DagsterPage) -> None:
    page.open(f"{LOCATION}/schedules/{SCHEDULE}")
    switch, status = page.tab.locator("label:has(input[type=checkbox])").first, page.tab.get_by_role("checkbox").first
    expect(status).not_to_be_checked()
    switch.click()

    page.sees("1 run requested", minutes=3)
    expect(status).to_be_checked()
    switch.click()
    expect(status).not_to_be_checked()
