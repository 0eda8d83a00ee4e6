"""File for file the mirror of `table`, with the same guarantees: PyIceberg does the DDL, Spark moves rows."""
