"""The command line `floe-iceberg`: options, exit codes and output only; the layers below work on tables."""
