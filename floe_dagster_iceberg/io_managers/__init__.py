"""IO managers: a Dagster context becomes a `TableWrite` or a `ReadRequest`; `table` and `spark` do the work."""
