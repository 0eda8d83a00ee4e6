"""Every field of every built-in plugin, in the words of both engines."""

import os
from typing import Any, NamedTuple

import pytest

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.plugins.mapping import passed_through
from floe_dagster_iceberg.plugins.registry import BUILT_INS, Kind, built_in

REST = {"uri": "http://catalog"}
POLARIS = {"uri": "http://catalog", "warehouse": "w", "token": "tok-en"}
AZURE = {"account_name": "acct"}
HIVE = {"uri": "thrift://h:9083"}
SQLITE = {"uri": "sqlite:////lake/c.db", "warehouse": "file:///lake"}
SECRET = {"access_key_id": "AKIA", "secret_access_key": "s3cret"}


class Row(NamedTuple):
    """A field, and what the engines must hear of it."""

    kind: Kind
    plugin: str
    needed: dict[str, Any]
    field: str
    value: Any
    python: tuple[str, str] | None
    java: tuple[str, str] | None


ROWS = [
    Row("catalog", "sql", SQLITE, "warehouse", "file:///w", ("warehouse", "file:///w"), ("warehouse", "file:///w")),
    Row(
        "catalog",
        "sql",
        SQLITE,
        "uri",
        "sqlite:////x/c.db",
        ("uri", "sqlite:////x/c.db?timeout=60"),
        ("uri", "jdbc:sqlite:/x/c.db"),
    ),
    Row(
        "catalog",
        "sql",
        SQLITE,
        "lock_timeout_seconds",
        7,
        ("uri", "sqlite:////lake/c.db?timeout=7"),
        ("jdbc.busy_timeout", "7000"),
    ),
    Row(
        "catalog",
        "sql",
        {"uri": "postgresql+psycopg2://u:p%40w@db:5432/lake?sslmode=require", "warehouse": "s3://w"},
        "connect_timeout_seconds",
        3,
        ("uri", "postgresql+psycopg2://u:p%40w@db:5432/lake?connect_timeout=3&sslmode=require"),
        ("uri", "jdbc:postgresql://db:5432/lake?sslmode=require"),
    ),
    Row(
        "catalog",
        "sql",
        {"warehouse": "s3://w"},
        "uri",
        "postgresql://u:p%40w@db/lake",
        ("uri", "postgresql+psycopg2://u:p%40w@db/lake?connect_timeout=10"),
        ("jdbc.password", "p@w"),
    ),
    Row("catalog", "rest", REST, "uri", "http://x", ("uri", "http://x"), ("uri", "http://x")),
    Row("catalog", "rest", REST, "warehouse", "w", ("warehouse", "w"), ("warehouse", "w")),
    Row("catalog", "rest", REST, "prefix", "p", ("prefix", "p"), ("prefix", "p")),
    Row("catalog", "rest", REST, "token", "tok-en", ("token", "tok-en"), ("token", "tok-en")),
    Row("catalog", "rest", REST, "credential", "id:secret", None, ("credential", "id:secret")),
    Row("catalog", "rest", {**REST, "client_secret": "s"}, "client_id", "id", None, ("credential", "id:s")),
    Row("catalog", "rest", {**REST, "client_id": "id"}, "client_secret", "s", None, ("credential", "id:s")),
    Row(
        "catalog",
        "rest",
        {**REST, "credential": "a:b"},
        "token_url",
        "http://t",
        None,
        ("oauth2-server-uri", "http://t"),
    ),
    Row("catalog", "rest", REST, "scope", "s", None, ("scope", "s")),
    Row("catalog", "rest", REST, "audience", "a", None, ("audience", "a")),
    Row("catalog", "rest", REST, "resource", "r", None, ("resource", "r")),
    Row("catalog", "rest", REST, "token_refresh_enabled", "false", None, ("token-refresh-enabled", "false")),
    Row("catalog", "rest", REST, "connect_timeout_seconds", 2.5, None, ("rest.client.connection-timeout-ms", "2500")),
    Row("catalog", "rest", REST, "read_timeout_seconds", 30, None, ("rest.client.socket-timeout-ms", "30000")),
    Row("catalog", "rest", REST, "total_timeout_seconds", 30, None, None),
    Row("catalog", "rest", REST, "retry", {"max_attempts": 5}, None, ("rest.client.max-retries", "4")),
    Row(
        "catalog",
        "rest",
        REST,
        "access_delegation",
        "remote-signing",
        ("header.X-Iceberg-Access-Delegation", "remote-signing"),
        ("header.X-Iceberg-Access-Delegation", "remote-signing"),
    ),
    Row("catalog", "glue", {}, "warehouse", "s3://w", ("warehouse", "s3://w"), ("warehouse", "s3://w")),
    Row("catalog", "glue", {}, "region", "eu-west-1", ("glue.region", "eu-west-1"), ("client.region", "eu-west-1")),
    Row("catalog", "glue", {}, "catalog_id", "123", ("glue.id", "123"), ("glue.id", "123")),
    Row("catalog", "glue", {}, "endpoint", "http://g", ("glue.endpoint", "http://g"), ("glue.endpoint", "http://g")),
    Row("catalog", "glue", {}, "access_key_id", "AKIA", ("glue.access-key-id", "AKIA"), None),
    Row("catalog", "glue", {}, "secret_access_key", "s3cret", ("glue.secret-access-key", "s3cret"), None),
    Row("catalog", "glue", {}, "session_token", "tok-en", ("glue.session-token", "tok-en"), None),
    Row("catalog", "hive", HIVE, "uri", "thrift://x:1", ("uri", "thrift://x:1"), ("uri", "thrift://x:1")),
    Row("catalog", "hive", HIVE, "warehouse", "s3://w", ("warehouse", "s3://w"), ("warehouse", "s3://w")),
    Row("storage", "local", {}, "py_io_impl", "a.B", ("py-io-impl", "a.B"), None),
    Row("storage", "s3", {}, "endpoint", "http://s3", ("s3.endpoint", "http://s3"), ("s3.endpoint", "http://s3")),
    Row("storage", "s3", {}, "region", "eu-west-1", ("s3.region", "eu-west-1"), ("client.region", "eu-west-1")),
    Row(
        "storage",
        "s3",
        {},
        "path_style_access",
        "true",
        ("s3.force-virtual-addressing", "false"),
        ("s3.path-style-access", "true"),
    ),
    Row("storage", "s3", SECRET, "access_key_id", "AKIB", ("s3.access-key-id", "AKIB"), ("s3.access-key-id", "AKIB")),
    Row(
        "storage",
        "s3",
        SECRET,
        "secret_access_key",
        "s4cret",
        ("s3.secret-access-key", "s4cret"),
        ("s3.secret-access-key", "s4cret"),
    ),
    Row("storage", "s3", {}, "session_token", "tok-en", ("s3.session-token", "tok-en"), ("s3.session-token", "tok-en")),
    Row(
        "storage",
        "s3",
        {"region": "r"},
        "role_arn",
        "arn:x",
        ("s3.role-arn", "arn:x"),
        ("client.assume-role.arn", "arn:x"),
    ),
    Row(
        "storage",
        "s3",
        {},
        "role_session_name",
        "floe",
        ("s3.role-session-name", "floe"),
        ("client.assume-role.session-name", "floe"),
    ),
    Row(
        "storage",
        "s3",
        {},
        "connect_timeout_seconds",
        5,
        ("s3.connect-timeout", "5.0"),
        ("http-client.apache.connection-timeout-ms", "5000"),
    ),
    Row(
        "storage",
        "s3",
        {},
        "request_timeout_seconds",
        5,
        ("s3.request-timeout", "5.0"),
        ("http-client.apache.socket-timeout-ms", "5000"),
    ),
    Row("storage", "s3", {}, "py_io_impl", "a.B", ("py-io-impl", "a.B"), None),
    Row("storage", "gcs", {}, "project_id", "p", ("gcs.project-id", "p"), ("gcs.project-id", "p")),
    Row("storage", "gcs", {}, "token", "tok-en", ("gcs.oauth2.token", "tok-en"), ("gcs.oauth2.token", "tok-en")),
    Row(
        "storage",
        "gcs",
        {},
        "token_expires_at_ms",
        1,
        ("gcs.oauth2.token-expires-at", "1"),
        ("gcs.oauth2.token-expires-at", "1"),
    ),
    Row(
        "storage", "gcs", {}, "endpoint", "http://g", ("gcs.service.host", "http://g"), ("gcs.service.host", "http://g")
    ),
    Row("storage", "gcs", {}, "py_io_impl", "a.B", ("py-io-impl", "a.B"), None),
    Row(
        "storage",
        "azure",
        {"account_key": "k3y"},
        "account_name",
        "lake",
        ("adls.account-name", "lake"),
        ("adls.auth.shared-key.account.name", "lake"),
    ),
    Row(
        "storage",
        "azure",
        AZURE,
        "account_key",
        "k3ys",
        ("adls.account-key", "k3ys"),
        ("adls.auth.shared-key.account.key", "k3ys"),
    ),
    Row(
        "storage",
        "azure",
        AZURE,
        "sas_token",
        "s4s-token",
        ("adls.sas-token", "s4s-token"),
        ("adls.sas-token.acct.dfs.core.windows.net", "s4s-token"),
    ),
    Row("storage", "azure", AZURE, "tenant_id", "t", ("adls.tenant-id", "t"), None),
    Row("storage", "azure", AZURE, "client_id", "c", ("adls.client-id", "c"), None),
    Row("storage", "azure", AZURE, "client_secret", "s3cret", ("adls.client-secret", "s3cret"), None),
    Row("storage", "azure", AZURE, "py_io_impl", "a.B", ("py-io-impl", "a.B"), None),
]
# They name things for us, or become part of a location; no engine has a property for them.
NOT_PROPERTIES = {"properties", "catalog_name", "bucket", "prefix", "container", "checksums"}


@pytest.mark.requirement("S2-FR-010", "S2-FR-045")
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.plugin}.{row.field}" for row in ROWS])
def test_a_field_is_reported_to_both_engines_in_their_words(row: Row) -> None:
    plugin = built_in(row.kind, row.plugin, {**row.needed, row.field: row.value})
    if row.python is not None:
        assert row.python in plugin.pyiceberg_properties().items()
    if row.java is not None:
        key, value = row.java
        assert (f"spark.sql.catalog.floe.{key}", value) in plugin.spark_conf("floe").items()


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, plugins in BUILT_INS.items() for name in plugins if name != "polaris"]
)
def test_no_field_is_missing_from_the_table_above(kind: Kind, name: str) -> None:
    listed = {row.field for row in ROWS if (row.kind, row.plugin) == (kind, name)}
    fields = set(BUILT_INS[kind][name].config_type.model_fields) - NOT_PROPERTIES
    assert fields - listed - ({"warehouse"} if kind == "storage" else set()) == set()


def test_polaris_says_what_rest_says_and_asks_for_its_roles() -> None:
    assert built_in("catalog", "polaris", POLARIS).spark_properties()["scope"] == "PRINCIPAL_ROLE:ALL"


@pytest.mark.parametrize(
    ("kind", "name", "config", "key", "value"),
    [
        ("catalog", "sql", SQLITE, "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog"),
        ("catalog", "sql", SQLITE, "jdbc.schema-version", "V1"),
        ("catalog", "rest", REST, "type", "rest"),
        ("catalog", "rest", {**REST, "token": "tok-en"}, "rest.auth.type", "oauth2"),
        ("catalog", "glue", {}, "catalog-impl", "org.apache.iceberg.aws.glue.GlueCatalog"),
        ("catalog", "hive", HIVE, "type", "hive"),
        ("storage", "s3", {}, "io-impl", "org.apache.iceberg.aws.s3.S3FileIO"),
        ("storage", "gcs", {}, "io-impl", "org.apache.iceberg.gcp.gcs.GCSFileIO"),
        ("storage", "azure", AZURE, "io-impl", "org.apache.iceberg.azure.adlsv2.ADLSFileIO"),
    ],
)
def test_spark_is_reported_which_classes_to_use(
    kind: Kind, name: str, config: dict[str, Any], key: str, value: str
) -> None:
    assert built_in(kind, name, config).spark_properties()[key] == value


def test_spark_reads_every_catalog_without_a_cache() -> None:
    conf = built_in("catalog", "rest", REST).spark_conf("lake")
    assert conf["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false"


@pytest.mark.parametrize(
    ("given", "python", "java"),
    [
        ({"s3.path-style-access": "true"}, {"s3.force-virtual-addressing": "false"}, {"s3.path-style-access": "true"}),
        (
            {"s3.force-virtual-addressing": "true"},
            {"s3.force-virtual-addressing": "true"},
            {"s3.path-style-access": "false"},
        ),
        ({"py-io-impl": "a.B"}, {"py-io-impl": "a.B"}, {}),
        ({"io-impl": "a.B"}, {}, {"io-impl": "a.B"}),
        ({"header.X-Y": "z"}, {"header.X-Y": "z"}, {"header.X-Y": "z"}),
        ({"s3.region": "r"}, {"s3.region": "r"}, {"client.region": "r"}),
        ({"client.region": "r"}, {"client.region": "r"}, {"client.region": "r"}),
    ],
)
def test_the_users_own_properties_reach_each_engine_in_its_spelling(
    given: dict[str, str], python: dict[str, str], java: dict[str, str]
) -> None:
    assert passed_through(given, "python") == python
    assert passed_through(given, "java") == java


def test_an_endpoint_brings_a_region_and_the_path_style() -> None:
    assert (
        built_in("storage", "s3", {"endpoint": "http://minio:9000"}).spark_properties()
        | {
            "client.region": "us-east-1",
            "s3.path-style-access": "true",
        }
        == built_in("storage", "s3", {"endpoint": "http://minio:9000"}).spark_properties()
    )


def test_checksums_are_reported_to_the_process_because_no_engine_has_a_property_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")
    for variable in variables:
        monkeypatch.setenv(variable, "when_supported")

    built_in("storage", "s3", {}).startup()
    assert {os.environ[variable] for variable in variables} == {"when_supported"}
    built_in("storage", "s3", {"checksums": "when_required"}).startup()
    assert {os.environ[variable] for variable in variables} == {"when_required"}


@pytest.mark.parametrize(
    ("kind", "name", "config", "packages"),
    [
        ("catalog", "sql", SQLITE, ["org.xerial:sqlite-jdbc:3.50.3.0"]),
        ("catalog", "sql", {"uri": "postgresql://h/d"}, ["org.postgresql:postgresql:42.7.7"]),
        ("catalog", "rest", REST, []),
        ("storage", "local", {}, []),
        ("storage", "s3", {}, ["iceberg-aws-bundle"]),
        ("storage", "gcs", {}, ["iceberg-gcp-bundle"]),
        ("storage", "azure", AZURE, ["iceberg-azure-bundle"]),
    ],
)
def test_spark_is_reported_which_jars_it_needs(
    kind: Kind, name: str, config: dict[str, Any], packages: list[str]
) -> None:
    assert built_in(kind, name, config).spark_packages() == packages


def test_spark_must_use_the_name_that_a_sql_catalog_keeps_with_its_tables() -> None:
    with pytest.raises(ValidationError, match="'floe'"):
        built_in("catalog", "sql", SQLITE).spark_conf("other")


def test_spark_cannot_share_a_database_that_lives_in_memory() -> None:
    with pytest.raises(EngineCapabilityError):
        built_in("catalog", "sql", {**SQLITE, "uri": "sqlite:///:memory:"}).spark_conf("floe")
