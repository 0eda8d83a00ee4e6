"""Catalogs and storage: the one place where an Iceberg configuration becomes a connection.

The rule of this folder: a plugin is a Pydantic configuration and a small class, and says the
same thing twice, once as PyIceberg properties and once as Spark conf, from one mapping.
Nothing here connects before `connect`, and whatever fails leaves as an error of
`floe_dagster_iceberg.errors`, through `translation`.
"""
