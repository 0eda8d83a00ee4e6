"""IO managers: a Dagster context and a frame in, a table out. Storage itself lives in `table` and `spark`."""
