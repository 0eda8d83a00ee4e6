"""Names as Spark SQL reads them, whatever characters they have."""

from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.models import TableIdentifier


def quote(*parts: str) -> str:
    """Parts of a name, joined by dots, each meaning just itself.

    >>> quote("a.b", "c`d")
    '`a.b`.`c``d`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def spark_table(catalog: str, table: TableIdentifier, branch: str = MAIN_BRANCH) -> str:
    """The name of a table, or of a branch of it to write to, in a Spark session that knows the catalog."""
    selector = () if branch == MAIN_BRANCH else (f"branch_{branch}",)
    return quote(catalog, *table.as_tuple, *selector)
