"""The tables that a SELECT names, and the same SELECT with DataFrames in their places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floe_dagster_iceberg.errors import ValidationError


@dataclass(frozen=True)
class NamedTable:
    """A table in the text of a SELECT.

    Attributes:
        parts: Namespace and name, as written.
        start: Where its name begins.
        end: Where the text after it begins.
        has_alias: Whether the SELECT gives it another name.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    has_alias: bool

    @property
    def name(self) -> str:
        return ".".join(self.parts)


def find_tables(sql: str) -> Sequence[NamedTable]:
    """Return the tables of a SELECT in Spark's SQL, without those that it defines itself with WITH.

    Raises:
        ValidationError: The text is not one SELECT.
    """
    import sqlglot  # noqa: PLC0415 - as slow to import as a code location may take
    from sqlglot.optimizer.scope import traverse_scope  # noqa: PLC0415

    try:
        statements = sqlglot.parse(sql, read="spark")
    except sqlglot.errors.SqlglotError as error:
        places: list[dict[str, object]] = getattr(error, "errors", None) or [{}]
        line = places[0].get("line")
        where = "" if line is None else f" in its line {line}"
        raise ValidationError(f"The SQL is not valid{where}. Write one SELECT as Spark takes it.") from None
    if len(statements) != 1 or not isinstance(statements[0], sqlglot.exp.Query):
        raise ValidationError("The SQL is not one SELECT. Write only a SELECT: this package writes the table.")
    found = [
        source
        for scope in traverse_scope(statements[0])
        for source in scope.sources.values()
        if isinstance(source, sqlglot.exp.Table) and isinstance(source.this, sqlglot.exp.Identifier)
    ]
    tables: dict[int, NamedTable] = {}
    for table in found:
        if table.args.get("version") is not None:
            raise ValidationError(
                f"The SQL reads a version of '{table.name}'. Leave VERSION and TIMESTAMP AS OF out: it reads what the "
                "upstream asset wrote."
            )
        start, end = table.parts[0].meta["start"], table.parts[-1].meta["end"] + 1
        tables[start] = NamedTable(tuple(part.name for part in table.parts), start, end, bool(table.alias))
    return [tables[start] for start in sorted(tables)]


def with_frames(sql: str, tables: Sequence[NamedTable], frames: Mapping[str, str]) -> str:
    """Return the SELECT with a placeholder for the DataFrame of each table, by the tables' names."""
    pieces, position = [], 0
    for table in tables:
        # Columns may be qualified by the table's name.
        alias = "" if table.has_alias else f" AS `{table.parts[-1]}`"
        pieces += [_escaped(sql[position : table.start]), f"{{{frames[table.name]}}}{alias}"]
        position = table.end
    return "".join([*pieces, _escaped(sql[position:])])


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
