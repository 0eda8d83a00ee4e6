"""A catalog in a SQL database: SQLite in a file, or PostgreSQL. PyIceberg and Spark share its tables."""

import re
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from pydantic import Field

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.plugins.base import BuiltInCatalog, CatalogConfig, required
from floe_dagster_iceberg.plugins.mapping import Setting
from floe_dagster_iceberg.secrets import SecretValue, remember_secret, resolve_text, secret_as_text

SQLITE_JDBC = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRESQL_JDBC = "org.postgresql:postgresql:42.7.7"


class SqlCatalogConfig(CatalogConfig):
    """Address of the database, and timeouts."""

    uri: SecretValue = Field(
        description="SQLAlchemy URL: sqlite:///<file> or postgresql+psycopg2://user:password@host/db."
    )
    lock_timeout_seconds: float = Field(
        default=60, ge=0, description="Longest wait for another process that writes to the same SQLite file."
    )
    connect_timeout_seconds: int = Field(default=10, ge=1, description="Longest wait for a connection to PostgreSQL.")


class SqlCatalogPlugin(BuiltInCatalog[SqlCatalogConfig]):
    """PyIceberg's `SqlCatalog` and Iceberg's `JdbcCatalog` on one database."""

    name: ClassVar[str] = "sql"
    description: ClassVar[str] = "Iceberg catalog in SQLite or PostgreSQL."
    config_type: ClassVar[type[CatalogConfig]] = SqlCatalogConfig
    settings: ClassVar[tuple[Setting, ...]] = (Setting("warehouse", python="warehouse", java="warehouse"),)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL; a SQLite path is made absolute, because Spark has another working directory."""
        # Only the password is a secret; masking the whole URL would make messages unreadable.
        url = resolve_text(secret_as_text(self.config.uri))
        if password := urlsplit(url).password:
            remember_secret(unquote(password))
        # Without a driver SQLAlchemy takes psycopg 3; the extra of this package installs psycopg 2.
        url = re.sub("^postgres(ql)?://", "postgresql+psycopg2://", url)
        scheme, _, rest = url.partition(":///")
        path, _, query = rest.partition("?")
        if not url.startswith("sqlite") or path in ("", ":memory:"):
            return url
        return f"{scheme}:///{Path(path).absolute()}{'?' if query else ''}{query}"

    def pyiceberg_properties(self) -> dict[str, str]:
        # Both engines use the newer table layout, so neither has to migrate tables of the other.
        defaults = {"pool_pre_ping": "true", "schema_version": "v1"}
        return {**defaults, **super().pyiceberg_properties(), "uri": self._url_with_timeouts()}

    def open_catalog(self, properties: dict[str, str]) -> Any:
        # Importing SQLAlchemy takes a third of a second, and a code location does not need it.
        from floe_dagster_iceberg._pyiceberg.sql_catalog import FloeSqlCatalog  # noqa: PLC0415

        if (file := self._sqlite_file()) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        return FloeSqlCatalog(self.config.catalog_name, **properties)

    def spark_conf(self, catalog_name: str) -> dict[str, str]:
        if catalog_name != self.config.catalog_name:
            raise ValidationError(
                f"A SQL catalog stores its name with every table: in Spark its name must be "
                f"'{self.config.catalog_name}', not '{catalog_name}'."
            )
        return super().spark_conf(catalog_name)

    def spark_properties(self) -> dict[str, str]:
        required(self.config.warehouse, plugin=self.name, field="warehouse")
        return {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "jdbc.schema-version": "V1",
            **super().spark_properties(),
            **self._jdbc_properties(),
        }

    def spark_packages(self) -> list[str]:
        return [SQLITE_JDBC if self.url.startswith("sqlite") else POSTGRESQL_JDBC]

    def _sqlite_file(self) -> Path | None:
        scheme, _, rest = self.url.partition(":///")
        path = rest.partition("?")[0]
        return Path(path) if scheme.startswith("sqlite") and path not in ("", ":memory:") else None

    def _url_with_timeouts(self) -> str:
        # PyIceberg passes no arguments to its SQLAlchemy engine, but the drivers read these from the URL.
        if self.url.startswith("sqlite"):
            return _with_query(self.url, timeout=f"{self.config.lock_timeout_seconds:g}")
        if self.url.startswith("postgresql"):
            return _with_query(self.url, connect_timeout=str(self.config.connect_timeout_seconds))
        return self.url

    def _jdbc_properties(self) -> dict[str, str]:
        if (file := self._sqlite_file()) is not None:
            lock_timeout = str(int(self.config.lock_timeout_seconds * 1000))
            return {"uri": f"jdbc:sqlite:{file}", "jdbc.busy_timeout": lock_timeout}
        if self.url.startswith("postgresql"):
            return _postgresql_properties(self.url)
        raise EngineCapabilityError(
            f"Spark cannot open the SQL catalog '{self.config.catalog_name}': "
            "it only supports SQLite files and PostgreSQL.",
            engine="spark",
        )


def _postgresql_properties(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    properties = {"uri": urlunsplit(("jdbc:postgresql", host, parts.path, parts.query, ""))}
    if parts.username:
        properties["jdbc.user"] = unquote(parts.username)
    if parts.password:
        properties["jdbc.password"] = unquote(parts.password)
    return properties


def _with_query(url: str, **defaults: str) -> str:
    base, _, query = url.partition("?")
    return f"{base}?{urlencode({**defaults, **dict(parse_qsl(query))})}"
