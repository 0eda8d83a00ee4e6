"""The demo in the Dagster UI, as a first-time visitor sees it."""

import pytest
from dagster_page import DagsterPage
from playwright.sync_api import FloatRect, expect

# The graph of all assets is small, and abbreviates longer names.
ASSETS = ("flights", "weather", "planes", "departures", "weather_effect", "day_over_day", "reviewed_routes")
MAINTENANCE = ("table_health", "retention", "compaction", "snapshot_expiry", "manifests", "orphan_files")


@pytest.mark.requirement("D6")
def test_the_lineage_shows_every_layer_and_the_maintenance(page: DagsterPage) -> None:
    page.open_lineage()

    for asset in (*ASSETS, *MAINTENANCE):
        page.sees(asset)


def test_the_lineage_of_a_few_assets_fits_a_picture(page: DagsterPage) -> None:
    names = ("bronze/flights", "bronze/weather", "bronze/planes", "silver/departures", "gold/carrier_punctuality")

    where = page.open_graph_of(*names, "gold/day_over_day", "gold/reviewed_routes")

    for asset in ("flights", "departures", "day_over_day"):
        page.sees(asset)
    page.take_picture("lineage", clip=where)


def test_a_table_shows_its_name_its_rows_its_columns_and_a_chart(page: DagsterPage) -> None:
    page.open("/assets/gold/carrier_punctuality")

    for text in ("Row count", "gold.carrier_punctuality", "late_share"):
        page.sees(text)
    page.sees("[Show Markdown]").click()
    expect(page.tab.get_by_role("img", name="shares")).to_be_visible()


def test_a_day_is_a_partition_with_rows_of_its_own(page: DagsterPage) -> None:
    page.tab.set_viewport_size({"width": 1200, "height": 800})
    page.open("/assets/silver/departures?view=partitions&partition=2013-12-31")

    page.sees("dagster/partition_row_count")
    page.sees("iceberg/rows_added")
    # The address of the table is a path of this machine, and further down.
    page.take_picture("partitions", clip=FloatRect(x=240, y=0, width=960, height=800))


def test_a_day_that_the_audit_rejected_is_a_failed_run_that_says_why(page: DagsterPage) -> None:
    page.tab.set_viewport_size({"width": 1200, "height": 1040})
    page.open_rejected_run("silver__departures")

    page.sees("every_day_is_complete")
    said = page.tab.get_by_text("The rows for 'silver.departures' failed 1 check (every_day_is_complete)").first
    expect(said).to_contain_text("The rows are on branch 'floe-rejected-")
    # What follows are the paths of this machine.
    end = page.sees("AuditFailedError").bounding_box()
    assert end is not None
    page.take_picture("audit", clip=FloatRect(x=241, y=0, width=959, height=end["y"] - 8))


def test_the_checks_of_an_audit_show_the_day_that_was_cut_off(page: DagsterPage) -> None:
    page.open("/assets/silver/departures?view=checks&checkDetail=every_day_is_complete")

    page.sees("fewest flights of a day")
    page.sees("Passed")
    page.sees("Execution history").click()
    page.sees("Failed")


def test_an_incremental_asset_shows_what_its_second_run_read(page: DagsterPage) -> None:
    page.open("/assets/gold/flights_per_hour?view=events")

    for text in ("days read", "flights read", "iceberg/changes"):
        page.sees(text)


@pytest.mark.parametrize(
    ("asset", "number"),
    [("gold/carrier_punctuality", "dagster/row_count"), ("iceberg_maintenance/compaction", "iceberg/files_before")],
)
def test_numbers_are_plotted_over_time(page: DagsterPage, asset: str, number: str) -> None:
    page.open(f"/assets/{asset}")
    page.sees("Plots").click()

    page.sees(number)
    expect(page.tab.locator("canvas").first).to_be_visible()


def test_checks_of_the_data_and_of_the_tables_health_have_passed(page: DagsterPage) -> None:
    page.open("/assets/bronze/flights?view=checks")

    for check in ("flights_are_in_their_day", "iceberg_table_health"):
        page.sees(check)
    expect(page.tab.get_by_text("Succeeded", exact=True)).to_have_count(2)


@pytest.mark.requirement("D6")
def test_a_maintenance_run_shows_the_outcome_of_each_table(page: DagsterPage) -> None:
    page.tab.set_viewport_size({"width": 1650, "height": 900})
    page.open("/assets/iceberg_maintenance/compaction?view=events")

    for text in ("what happened", "bronze.flights", "snapshots", "manifests"):
        page.sees(text)
    # Without the list of events on the left, and the columns that need scrolling on the right.
    page.take_picture("maintenance", clip=FloatRect(x=600, y=170, width=1000, height=640))
