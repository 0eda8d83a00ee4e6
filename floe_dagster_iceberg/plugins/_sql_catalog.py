"""PyIceberg's SQL catalog, made safe for many processes. Imported only when a SQL catalog is opened."""

import time
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException, NamespaceAlreadyExistsError
from sqlalchemy.exc import DBAPIError, IntegrityError

_CREATE_ATTEMPTS = 10
_CREATE_WAIT_SECONDS = 0.05


class FloeSqlCatalog(SqlCatalog):
    """The same catalog; only what concurrent processes do to each other is told differently."""

    def create_tables(self) -> None:
        """Create the catalog's own tables, also while other processes do the same."""
        for attempt in range(1, _CREATE_ATTEMPTS + 1):
            try:
                super().create_tables()
            except DBAPIError as error:
                # Between the look and the creation another process was quicker; the next look sees its table.
                if attempt == _CREATE_ATTEMPTS or not _made_by_another(error):
                    raise
                time.sleep(_CREATE_WAIT_SECONDS)
            else:
                return

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        """Create a namespace; one that appears meanwhile counts as existing."""
        try:
            super().create_namespace(namespace, properties or {})
        except IntegrityError as error:
            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        """Commit; a connection that breaks on the way leaves the outcome unknown."""
        try:
            return super().commit_table(table, requirements, updates)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise CommitStateUnknownException("the connection to the catalog's database broke") from error


def _made_by_another(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or "already exists" in str(error.orig)
