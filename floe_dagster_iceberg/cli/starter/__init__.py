"""What `floe-iceberg init` writes. The files here are copied, never imported."""
