"""Operations on a table, through PyIceberg and Arrow. Imports neither Dagster nor Spark."""
