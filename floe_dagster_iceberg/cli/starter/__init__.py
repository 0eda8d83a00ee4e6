"""The project that `floe-iceberg init` creates. These files are copied, never imported."""
