"""The peer, dagster-iceberg 0.3.14 with its own pins, in its own environment.

`environment.py` makes it; `worker.py` runs in it and imports nothing of ours but what all workers share.
"""
