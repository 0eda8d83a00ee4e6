"""What the page on catalogs shows opens real catalogs, and its list of lakes is that of the tests."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from support.place import LAKES, empty_place
from support.servers.running import Servers

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "catalogs.md").read_text()


@pytest.mark.requirement("S2-FR-010", "S2-FR-046")
def test_each_configuration_of_the_page_reaches_its_catalog(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "CATALOG_URI": servers.database.sqlalchemy_uri,
        "S3_ENDPOINT": servers.s3.endpoint,
        "S3_KEY": servers.s3.access_key_id,
        "S3_SECRET": servers.s3.secret_access_key,
        "REST_URI": servers.rest_catalog.uri,
        "POLARIS_URI": servers.gateway.uri,
        "POLARIS_CLIENT_ID": servers.gateway.client_id,
        "POLARIS_CLIENT_SECRET": servers.gateway.client_secret,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    configurations = [block for block in blocks if "IcebergResource(" in block]
    names = {"__name__": "docs"}

    assert len(configurations) == 3
    for number, block in enumerate(configurations):
        exec(compile(block, f"catalogs.md, python block {number}", "exec"), names)  # noqa: S102 - the page is ours
        empty_place("rest", tmp_path, servers)
        manager = names["iceberg"].table_manager  # type: ignore[attr-defined]
        manager.create_namespace("public")
        manager.create_table("public.numbers", pa.schema([("n", pa.int64())]))
        manager.append("public.numbers", pa.table({"n": [number]}))
        assert manager.scan("public.numbers")["n"].to_pylist() == [number]


def test_the_page_lists_the_lakes_of_the_tests() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(LAKES)
