"""IO managers: from Dagster contexts to writes and reads of tables. Storage itself is in `table` and `spark`."""
