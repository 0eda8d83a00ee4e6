"""Catalogs and storage: one mapping of settings becomes PyIceberg properties and Spark conf.

Nothing connects before `connect`, and failures leave as errors of this package, through `error_translation`.
"""
