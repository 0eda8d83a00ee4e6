"""The demo in the Dagster UI, as a first-time visitor sees it."""

import pytest
from dagster_page import DagsterPage
from playwright.sync_api import expect

ASSETS = ("flights", "weather", "planes", "departures", "carrier_punctuality", "day_over_day", "reviewed_routes")
MAINTENANCE = ("table_health", "compaction", "snapshot_expiry", "manifests", "orphan_files")


@pytest.mark.requirement("D6")
def test_the_lineage_shows_every_layer_and_the_maintenance(page: DagsterPage) -> None:
    page.open_lineage()

    for asset in (*ASSETS, *MAINTENANCE):
        page.sees(asset)
    page.take_picture("lineage", size=(1760, 1010))


def test_a_table_shows_its_name_its_rows_its_columns_and_a_chart(page: DagsterPage) -> None:
    page.open("/assets/gold/carrier_punctuality")

    for text in ("Row count", "gold.carrier_punctuality", "late_share"):
        page.sees(text)
    page.sees("[Show Markdown]").click()
    expect(page.tab.get_by_role("img", name="shares")).to_be_visible()


def test_a_day_is_a_partition_with_rows_of_its_own(page: DagsterPage) -> None:
    page.open("/assets/silver/departures?view=partitions&partition=2013-12-31")

    page.sees("dagster/partition_row_count")
    page.take_picture("partitions")


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
    page.tab.set_viewport_size({"width": 1500, "height": 1000})
    page.open("/assets/iceberg_maintenance/compaction")
    page.sees("[Show Markdown]").click()

    page.sees("what happened")
    page.sees("bronze.flights")
    page.take_picture("maintenance", of=page.tab.get_by_role("dialog").first)
