"""Every public method of the table manager on every hostile table: it succeeds, or raises an error of ours.

After an error the table is as it was, and so are all its files.
"""

import inspect
from contextlib import closing

import pytest
from support.hostile_calls import CALLS, problems_of
from support.hostile_tables import HOSTILE, HostileLake

from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> HostileLake:
    with HostileLake.making(tmp_path_factory.mktemp("hostile")) as lake, closing(lake.connect()) as catalog:
        for name, make in HOSTILE.items():
            make(catalog, name)
    return lake


def test_a_new_public_method_needs_a_call_here() -> None:
    public = {name for name, _ in inspect.getmembers(IcebergTableManager, inspect.isfunction) if name[0] != "_"}

    # Not operations: the one calls any of these again after a repair, the other returns another manager.
    assert public == CALLS.keys() | {"with_metadata_repair", "with_handover"}


@pytest.mark.filterwarnings("ignore:No preferred file implementation for scheme")
@pytest.mark.parametrize("table", HOSTILE)
def test_every_method_succeeds_or_raises_an_error_of_ours_and_changes_nothing(lake: HostileLake, table: str) -> None:
    assert problems_of(lake, table) == []
