"""What we rely on in PyIceberg without its promise. When one of these fails, PyIceberg has changed under us."""

import importlib
import importlib.util
import inspect

import pytest
from pyiceberg import exceptions
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from floe_dagster_iceberg.plugins.error_translation import TRANSLATIONS


@pytest.mark.requirement("S0-X1..6")
def test_every_exception_of_pyiceberg_is_translated() -> None:
    known = {
        f"pyiceberg.exceptions.{name}"
        for name, thing in vars(exceptions).items()
        if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    assert known == {name for name in TRANSLATIONS if name.startswith("pyiceberg.")}


@pytest.mark.parametrize("name", [name for name in TRANSLATIONS if not name.startswith("pyiceberg.")])
def test_every_other_translated_exception_exists(name: str) -> None:
    module, _, cls = name.rpartition(".")
    installed = importlib.util.find_spec(module.partition(".")[0]) is not None
    assert not installed or issubclass(getattr(importlib.import_module(module), cls), BaseException)


def test_the_rest_catalog_makes_its_sessions_and_file_ios_where_we_hook_in() -> None:
    source = inspect.getsource(RestCatalog)
    assert source.count("Session()") == 1
    assert "session = Session()" in inspect.getsource(RestCatalog._create_session)
    assert source.count("self._create_session()") == 2
    assert source.count("load_file_io(merged_properties, location)") == 1
    assert "self._auth_manager: AuthManager | None = None" in inspect.getsource(RestCatalog.__init__)
    assert "_response_to_staged_table" in inspect.getsource(RestCatalog.create_table_transaction)


def test_the_rest_catalog_still_sends_every_request_through_its_session() -> None:
    assert "requests." not in inspect.getsource(RestCatalog).replace("import requests", "").replace(
        "from requests.adapters import HTTPAdapter", ""
    )


def test_the_sql_catalog_still_creates_its_tables_where_we_hook_in() -> None:
    assert "self.create_tables()" in inspect.getsource(SqlCatalog)
    assert "create_engine(uri_prop" in inspect.getsource(SqlCatalog.__init__)
