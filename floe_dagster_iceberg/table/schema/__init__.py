"""Schemas and partition specs: pure functions, until a change is staged in a transaction."""
