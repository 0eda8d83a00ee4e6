"""Catalogs and storage: the one place where an Iceberg configuration becomes a connection.

The rule of this folder: a plugin is a Pydantic configuration and a small class, and one mapping gives
both its PyIceberg properties and its Spark conf. Nothing here connects before `connect`, and failures
are raised as errors of `floe_dagster_iceberg.errors`, through `error_translation`.
"""
