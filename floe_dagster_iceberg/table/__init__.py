"""What happens to a table, through PyIceberg and Arrow. Knows neither Dagster nor Spark."""
