"""Plugins are found by name, installed ones first, and refuse what does not fit them."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io import load_file_io

from floe_dagster_iceberg.errors import FloeStorageError, PluginNotFoundError, ValidationError
from floe_dagster_iceberg.plugins.protocols import Catalog, CatalogPlugin, FileIO, StoragePlugin
from floe_dagster_iceberg.plugins.registry import (
    BUILT_INS,
    built_in,
    known_plugins,
    open_catalog_plugin,
    open_storage_plugin,
)

CANARY = "canary-91cc-secret"


class TheirOAuth2(BaseModel, extra="forbid"):
    client_id: str
    client_secret: SecretStr


class TheirConfig(BaseModel, extra="forbid"):
    uri: str
    oauth2: TheirOAuth2 | None = None
    max_retries: int = 5
    credential_vending_enabled: bool = True


class TheirCatalog:
    """A catalog plugin as floe ships them: no base class of ours, and no idea of Spark."""

    name, version, floe_api_version = "polaris", "1.2.3", "1.0"

    def __init__(self, config: TheirConfig) -> None:
        self.config = config

    def get_config_schema(self) -> type[BaseModel]:
        return TheirConfig

    def connect(self, config: dict[str, Any]) -> Any:
        return InMemoryCatalog("theirs", **config)

    def _not_asked(self, *_: Any) -> None:
        raise AssertionError

    startup = shutdown = health_check = create_namespace = list_namespaces = delete_namespace = _not_asked
    create_table = list_tables = drop_table = vend_credentials = _not_asked


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package on the path that offers TheirCatalog as 'polaris'."""
    info = tmp_path / "theirs-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[floe.catalogs]\npolaris = {__name__}:TheirCatalog\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.requirement("S0-P5")
@pytest.mark.usefixtures("installed")
def test_an_installed_plugin_wins_over_the_built_in() -> None:
    plugin = open_catalog_plugin("polaris", {"uri": "http://x"})
    assert isinstance(plugin, TheirCatalog)
    assert plugin.config == TheirConfig(uri="http://x")


@pytest.mark.requirement("S0-P5")
@pytest.mark.usefixtures("installed")
def test_an_installed_plugin_is_configured_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARIS_SECRET", CANARY)
    ours = {
        "catalog_name": "floe",
        "uri": "http://x",
        "client_id": "a",
        "client_secret": "${POLARIS_SECRET}",
        "access_delegation": "none",
        "retry": '{"max_attempts": 3}',
    }
    plugin: Any = open_catalog_plugin("polaris", ours)
    assert plugin.config.oauth2.client_secret.get_secret_value() == CANARY
    assert plugin.config.max_retries == 2
    assert not plugin.config.credential_vending_enabled


@pytest.mark.requirement("S0-P5")
def test_without_installed_plugins_the_built_ins_are_there() -> None:
    assert known_plugins("catalog") == ["glue", "hive", "polaris", "rest", "sql"]
    assert known_plugins("storage") == ["azure", "gcs", "local", "s3"]


@pytest.mark.requirement("S0-P2", "S0-P4")
def test_a_floe_plugin_fits_by_its_methods_alone() -> None:
    assert isinstance(TheirCatalog(TheirConfig(uri="x")), CatalogPlugin)
    assert "floe_core" not in sys.modules


@pytest.mark.requirement("S0-P1", "S0-P2", "S0-P4")
@pytest.mark.parametrize(
    ("plugin", "protocol"),
    [
        (built_in("catalog", "sql", {"uri": "sqlite:///x"}), CatalogPlugin),
        (built_in("catalog", "rest", {"uri": "http://x"}), CatalogPlugin),
        (built_in("catalog", "polaris", {"uri": "http://x", "warehouse": "w", "token": "tok-en"}), CatalogPlugin),
        (built_in("catalog", "glue", {}), CatalogPlugin),
        (built_in("catalog", "hive", {"uri": "thrift://x"}), CatalogPlugin),
        (built_in("storage", "local", {}), StoragePlugin),
        (built_in("storage", "s3", {}), StoragePlugin),
        (built_in("storage", "gcs", {}), StoragePlugin),
        (built_in("storage", "azure", {"account_name": "a"}), StoragePlugin),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_built_in_plugin_says_who_it_is(plugin: Any, protocol: type) -> None:
    assert isinstance(plugin, protocol)
    assert plugin.version.count(".") == 2
    assert plugin.floe_api_version.count(".") == 1
    assert issubclass(plugin.get_config_schema(), BaseModel)


@pytest.mark.requirement("S0-P3")
def test_pyicebergs_own_objects_fit_our_protocols(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("memory", warehouse=str(tmp_path))
    assert isinstance(catalog, Catalog)
    assert isinstance(load_file_io({}, str(tmp_path)), FileIO)
    catalog.close()


@pytest.mark.requirement("S2-FR-045")
def test_every_configuration_has_a_json_schema() -> None:
    for plugins in BUILT_INS.values():
        for plugin in plugins.values():
            assert plugin.config_type.model_json_schema()["additionalProperties"] is False


def test_an_unknown_plugin_names_the_known_ones() -> None:
    with pytest.raises(PluginNotFoundError, match="glue, hive, polaris, rest, sql"):
        open_catalog_plugin("unity", {})


def test_an_unknown_setting_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ValidationError, match=r"endpont.*Known: .*endpoint"):
        open_storage_plugin("s3", {"endpont": "http://x"})


@pytest.mark.requirement("S2-FR-045")
@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        ("polaris", {"uri": "http://x"}, "warehouse: Field required"),
        ("polaris", {"uri": "http://x", "warehouse": "w"}, "needs client_id and client_secret"),
        ("rest", {"uri": "http://x", "client_id": "a"}, "belong together"),
        ("rest", {"uri": "http://x", "token": CANARY, "credential": CANARY}, "exclude each other"),
        ("rest", {"uri": "http://x", "retry": {"max_attempts": 99}}, "retry.max_attempts"),
        ("rest", {"uri": "http://x", "access_delegation": CANARY}, "access_delegation"),
    ],
)
def test_a_faulty_configuration_names_the_key_and_never_the_value(
    name: str, config: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint) as caught:
        open_catalog_plugin(name, config)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.requirement("S2-FR-046")
def test_a_plugin_does_not_print_its_secrets() -> None:
    plugins = [
        built_in("catalog", "rest", {"uri": "http://x", "credential": CANARY}),
        built_in("catalog", "sql", {"uri": f"postgresql://u:{CANARY}@h/d"}),
        built_in("storage", "s3", {"access_key_id": CANARY, "secret_access_key": CANARY, "s3.session-token": CANARY}),
    ]
    assert CANARY not in repr(plugins)


@pytest.mark.requirement("S0-P1", "S2-FR-011")
@pytest.mark.parametrize(
    ("name", "config", "uri"),
    [
        ("s3", {"bucket": "lake", "prefix": "bronze"}, "s3://lake/bronze/raw/events"),
        ("s3", {"warehouse": "s3://lake/w/"}, "s3://lake/w/raw/events"),
        ("gcs", {"bucket": "lake"}, "gs://lake/raw/events"),
        ("azure", {"account_name": "a", "container": "c"}, "abfss://c@a.dfs.core.windows.net/raw/events"),
        ("local", {"warehouse": "/lake"}, "file:///lake/raw/events"),
    ],
)
def test_a_namespace_has_a_place_in_the_warehouse(name: str, config: dict[str, str], uri: str) -> None:
    assert open_storage_plugin(name, config).get_warehouse_uri("raw.events") == uri


def test_a_storage_without_a_location_says_so() -> None:
    with pytest.raises(ValidationError, match="bucket"):
        open_storage_plugin("s3", {}).get_warehouse_uri("raw")


@pytest.mark.requirement("S0-P1")
def test_other_tools_get_the_storage_without_its_secrets() -> None:
    plugin = open_storage_plugin("s3", {"bucket": "lake", "access_key_id": CANARY, "secret_access_key": CANARY})
    assert plugin.get_dbt_profile_config()["warehouse"] == "s3://lake"
    assert plugin.get_dagster_io_manager_config()["storage_type"] == "s3"
    assert plugin.get_helm_values_override() == {}
    assert CANARY not in f"{plugin.get_dbt_profile_config()}{plugin.get_dagster_io_manager_config()}"


@pytest.mark.requirement("S2-FR-010")
def test_a_storages_properties_are_those_of_its_file_io(tmp_path: Path) -> None:
    plugin = open_storage_plugin("s3", {"bucket": "lake", "endpoint": "http://minio:9000"})
    assert plugin.get_pyiceberg_fileio().properties["s3.endpoint"] == "http://minio:9000"
    local = open_storage_plugin("local", {"warehouse": str(tmp_path)}).get_pyiceberg_fileio()
    with local.new_output(f"file://{tmp_path}/x").create() as stream:
        stream.write(b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_a_plugin_that_comes_onto_the_search_path_later_is_found(request: pytest.FixtureRequest) -> None:
    ours = open_catalog_plugin("polaris", {"uri": "http://x", "warehouse": "w", "token": "t"})
    assert not isinstance(ours, TheirCatalog)

    request.getfixturevalue("installed")

    assert isinstance(open_catalog_plugin("polaris", {"uri": "http://x"}), TheirCatalog)


@pytest.mark.usefixtures("installed")
def test_two_packages_that_offer_the_same_plugin_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "more" / "others-1.0.0.dist-info"
    second.mkdir(parents=True)
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0.0\n")
    (second / "entry_points.txt").write_text("[floe.catalogs]\npolaris = elsewhere:Other\n")
    monkeypatch.syspath_prepend(str(second.parent))
    with pytest.raises(ValidationError, match="elsewhere:Other"):
        open_catalog_plugin("polaris", {})


def test_a_missing_library_or_service_is_reported_as_one_of_our_errors() -> None:
    plugin = open_catalog_plugin("hive", {"uri": "thrift://127.0.0.1:1"})
    with pytest.raises(FloeStorageError):
        plugin.connect({})
