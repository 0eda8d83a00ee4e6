"""The results of a run: its metadata, or the reason why it failed."""

from typing import Any

from dagster import ExecuteInProcessResult


def shown(result: ExecuteInProcessResult, node: str) -> dict[str, Any]:
    """The metadata of a node's only materialization, as plain values."""
    (materialization,) = result.asset_materializations_for_node(node)
    return {key: entry.value for key, entry in materialization.metadata.items()}


def failure_of(result: ExecuteInProcessResult, node: str) -> str:
    """What the failed node says to the user."""
    data = result.failure_data_for_node(node)
    assert data is not None
    assert data.user_failure_data is not None
    return str(data.user_failure_data.description)
