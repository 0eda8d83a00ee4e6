"""The contenders' processes. Each module is one program and imports only what that contender would.

`protocol.py` is spoken by all of them, the peer's included, and `rows.py` and `pipeline.py` are what they
share: the same rows, and the same Dagster assets around an IO manager.
"""
