"""Compiled artifacts: two shapes, many ways to hand them over, one thing to read."""

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from floe_dagster_iceberg.artifacts import CompiledArtifacts, EnforcementLevel, Governance, SparkSettings
from floe_dagster_iceberg.errors import ValidationError

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "artifacts"
CANARY = "canary-44ab-secret"


def sample(name: str) -> CompiledArtifacts:
    return CompiledArtifacts.from_json_file(SAMPLES / name)


class LiveArtifacts:
    """Stands for the producer's own object, of which we know one method."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return json.loads((SAMPLES / "floe_minimal.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "source",
    [
        SAMPLES / "floe_minimal.json",
        str(SAMPLES / "floe_minimal.json"),
        (SAMPLES / "floe_minimal.json").read_text(),
        json.loads((SAMPLES / "floe_minimal.json").read_text()),
        sample("floe_minimal.json"),
        LiveArtifacts(),
    ],
    ids=["path", "path text", "JSON text", "dict", "artifacts", "live object"],
)
def test_artifacts_are_read_from_whatever_holds_them(source: object) -> None:
    assert CompiledArtifacts.load(source) == sample("floe_minimal.json")


def test_a_config_map_is_looked_through() -> None:
    catalog = sample("floe_config_map.yaml").catalog
    assert catalog is not None
    assert (catalog.type, catalog.config) == ("rest", {"uri": "${CATALOG_URI}"})


def test_floes_shape_is_read_in_full() -> None:
    artifacts = sample("floe_polaris_full.json")
    assert artifacts.catalog is not None
    assert artifacts.catalog.config == {
        "uri": "${CATALOG_URI}",
        "warehouse": "analytics",
        "client_id": "analyst",
        "client_secret": {"source": "kubernetes", "name": "polaris", "key": "client-secret"},
        "token_url": "${CATALOG_URI}/v1/oauth/tokens",
        "scope": "PRINCIPAL_ROLE:ANALYST",
        "connect_timeout_seconds": 5,
        "read_timeout_seconds": 20,
        "retry": {"max_attempts": 3},
        "access_delegation": "none",
    }
    assert artifacts.storage is not None
    assert artifacts.storage.type == "s3"
    assert artifacts.storage.config["secret_access_key"] == {"secret_ref": "minio-secret-key"}
    assert artifacts.transforms == [{"name": "stg_customers", "compute": "spark"}]


def test_our_own_settings_are_found_inside_the_plugins_configurations() -> None:
    artifacts = sample("floe_polaris_full.json")
    assert artifacts.maintenance["tables"] == ["sales.*"]
    assert artifacts.resource_presets["small"]["cpu"] == "500m"
    assert artifacts.executor["type"] == "k8s"
    assert artifacts.spark == SparkSettings(remote="sc://spark:15002", conf={"spark.executor.memory": "2g"})


def test_the_older_shape_is_read_in_full() -> None:
    artifacts = sample("runtime_full.json")
    assert artifacts.catalog is not None
    assert artifacts.catalog.config == {
        "uri": {"secret_ref": "catalog-uri"},
        "warehouse": "analytics",
        "client_id": {"secret_ref": "polaris-client-id"},
        "client_secret": {"secret_ref": "polaris-client-secret"},
        "scope": "PRINCIPAL_ROLE:ANALYST",
        "access_delegation": "none",
        "token_refresh_enabled": True,
        "rest-page-size": "100",
    }
    assert artifacts.storage is not None
    assert artifacts.storage.config["bucket"] == "lake-data"
    assert artifacts.storage.config["access_key_id"] == {
        "source": "kubernetes",
        "name": "lake-keys",
        "key": "access-key-id",
    }
    assert artifacts.layer_namespaces == {"bronze": "bronze", "gold": "gold"}
    assert artifacts.spark.master == "local[1]"


def test_shapes_are_reported_apart_by_keys_and_not_by_version() -> None:
    floe = {"version": "1.0.0", "plugins": {"catalog": {"type": "rest", "config": {"uri": "http://a"}}}}
    older = {"version": "0.3.0", "catalog": {"type": "rest", "uri": "http://a"}}
    assert CompiledArtifacts.from_dict(floe).catalog == CompiledArtifacts.from_dict(older).catalog


def test_keys_we_do_not_know_are_ignored() -> None:
    data = json.loads((SAMPLES / "floe_minimal.json").read_text())
    data["plugins"]["ingestion"] = {"type": "dlt"}
    data["something_new"] = {"a": 1}
    assert CompiledArtifacts.from_dict(data) == sample("floe_minimal.json")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"plugins": {"orchestratr": {"type": "dagster"}}}, r"plugins: 'orchestratr' .*did you mean 'orchestrator'\?"),
        ({"plugins": {"catalogue": {"type": "sql"}}}, r"did you mean 'catalog'\?"),
        ({"plugins": {}, "governence": {}}, r"'governence' would be ignored \(did you mean 'governance'\?"),
        ({"plugins": {}, "governance": {"default_ttl_hour": 9}}, r"did you mean 'default_ttl_hours'\?"),
        (
            {"plugins": {"orchestrator": {"type": "dagster", "config": {"maintenence": {}}}}},
            r"plugins\.orchestrator\.config: 'maintenence' .*did you mean 'maintenance'\?",
        ),
    ],
)
def test_a_key_that_is_only_misspelled_is_refused(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CompiledArtifacts.from_dict(data)


@pytest.mark.requirement("S0-F4")
def test_artifacts_without_a_catalog_are_artifacts() -> None:
    assert sample("floe_without_catalog.json").catalog is None


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("floe_minimal.json", "customer_360"),
        ("floe_sql.yaml", "sales"),
        ("floe_polaris_full.json", "sales"),
        ("runtime_full.json", "default"),
        ("runtime_minimal.json", "public"),
    ],
)
def test_the_default_namespace_is_named_or_is_the_products_slug(name: str, namespace: str) -> None:
    assert sample(name).default_namespace == namespace


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"plugins": {"catalog": {"config": {}}}}, r"plugins\.catalog\.type"),
        ({"plugins": {"catalog": {"type": "sql", "config": [CANARY]}}}, r"plugins\.catalog\.config"),
        ({"plugins": {"catalog": {"type": "rest", "config": {"oauth2": CANARY}}}}, r"plugins\.catalog\.config\.oauth2"),
        ({"plugins": CANARY}, "plugins"),
        ({"catalog": {"type": {"a": CANARY}}}, r"catalog\.type"),
        ({"resolved_profiles": {"storage": CANARY}}, r"resolved_profiles\.storage"),
        ({"resolved_layers": {"bronze": {}}}, r"resolved_layers\.bronze\.namespace"),
        ({"plugins": {}, "governance": {"default_ttl_hours": 0}}, r"governance\.default_ttl_hours"),
        ({"plugins": {}, "governance": {"policy_enforcement_level": CANARY}}, r"governance\.policy_enforcement_level"),
        ({"hello": CANARY}, "hello"),
        ({"kind": "ConfigMap", "data": {"a": "x: 1", "b": "y: 2"}}, "a, b"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_and_never_by_its_value(data: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError, match=path) as caught:
        CompiledArtifacts.from_dict(data)
    assert CANARY not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("text", [f'{{"plugins": "{CANARY}', f"a: [\n{CANARY}", "just words", ""])
def test_text_that_is_no_mapping_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CompiledArtifacts.from_text(text)
    assert CANARY not in f"{caught.value} {caught.value.__cause__}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"nothing\.json"):
        CompiledArtifacts.from_json_file(tmp_path / "nothing.json")


def test_settings_that_are_no_mapping_are_named() -> None:
    data = {"plugins": {"orchestrator": {"type": "dagster", "config": {"maintenance": ["a"]}}}}
    with pytest.raises(ValidationError, match=r"plugins\.orchestrator\.config\.maintenance"):
        _ = CompiledArtifacts.from_dict(data).maintenance


@pytest.mark.requirement("S0-I2", "S2-C5")
def test_governance_is_passed_on_to_the_hour() -> None:
    assert sample("floe_polaris_full.json").governance == Governance(
        snapshot_max_age=timedelta(hours=36),
        snapshot_keep_last=5,
        data_retention_days=90,
        enforcement=EnforcementLevel.STRICT,
    )


STRICT = Governance(snapshot_max_age=timedelta(days=7), snapshot_keep_last=10, enforcement=EnforcementLevel.STRICT)


@pytest.mark.parametrize(
    "setting", [{"max_age": timedelta(days=6, hours=23)}, {"min_snapshots_to_keep": 9}], ids=["age", "count"]
)
def test_strict_governance_refuses_to_keep_less(setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="governance requires"):
        STRICT.check_expiry(**setting)


def test_strict_governance_lets_keep_as_much_or_more() -> None:
    STRICT.check_expiry(max_age=timedelta(days=7), min_snapshots_to_keep=10)
    STRICT.check_expiry(max_age=timedelta(days=30), min_snapshots_to_keep=50)


@pytest.mark.parametrize(("level", "warnings"), [(EnforcementLevel.WARN, 1), (EnforcementLevel.OFF, 0)])
def test_milder_governance_warns_or_is_silent(
    level: EnforcementLevel, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    STRICT.model_copy(update={"enforcement": level}).check_expiry(max_age=timedelta(days=1))
    assert len(caplog.records) == warnings


@pytest.mark.requirement("S2-FR-046")
def test_artifacts_do_not_print_their_configurations() -> None:
    artifacts = CompiledArtifacts.from_dict({"catalog": {"type": "rest", "uri": "http://a", "token": CANARY}})
    assert CANARY not in repr(artifacts)
