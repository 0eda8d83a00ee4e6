"""Filters for rows and files: pure functions, metadata in, predicate out."""
