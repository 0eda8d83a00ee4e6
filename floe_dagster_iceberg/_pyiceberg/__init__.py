"""The door to PyIceberg's private parts: the only code that may break when PyIceberg changes.

Pinned to PyIceberg 0.12. `tests/contract/test_pyiceberg_contract.py` names every private symbol that is used here
and fails when a new version drops one. Imports nothing of ours above `telemetry`.
"""
