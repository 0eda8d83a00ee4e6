"""`python -m floe_dagster_iceberg.cli`, the same as `floe-iceberg`."""

from floe_dagster_iceberg.cli.app import main

if __name__ == "__main__":
    main(prog_name="floe-iceberg")
