"""Dagster's default IO manager for code locations in which some assets without an IO manager key belong to Iceberg.

Dagster has no public way to give a finished asset another IO manager key; docs/decisions/0023 has what was tried.
"""

from collections.abc import Collection
from typing import Any

import dagster as dg


class DefaultIOManager(dg.IOManager):
    """Stores the given assets in Iceberg, and everything else in files, as Dagster does without an `io_manager`."""

    def __init__(
        self, iceberg: dg.IOManager, files: dg.IOManager, assets: Collection[dg.AssetKey], graphs: Collection[str]
    ) -> None:
        self._iceberg, self._files = iceberg, files
        self._assets, self._graphs = frozenset(assets), frozenset(graphs)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self._choose(context, context).handle_output(context, obj)

    def load_input(self, context: dg.InputContext) -> Any:
        return self._choose(context, context.upstream_output).load_input(context)

    def _choose(self, context: dg.OutputContext | dg.InputContext, output: dg.OutputContext | None) -> dg.IOManager:
        if context.has_asset_key:
            return self._iceberg if context.asset_key in self._assets else self._files
        # The step of an op inside a graph asset begins with the graph's name.
        is_inside = output is not None and output.step_key.partition(".")[0] in self._graphs
        return self._iceberg if is_inside else self._files


def build_default_io_manager(
    assets: Collection[dg.AssetKey], graphs: Collection[str], *, iceberg_key: str
) -> dg.IOManagerDefinition:
    """Define Dagster's default IO manager.

    Args:
        assets: The assets to store in Iceberg.
        graphs: Names of the graphs behind them, whose ops pass their values through Iceberg, too.
        iceberg_key: Resource key of the IO manager for them.
    """

    def create(context: dg.InitResourceContext) -> DefaultIOManager:
        files = dg.FilesystemIOManager().create_io_manager(context)
        return DefaultIOManager(getattr(context.resources, iceberg_key), files, assets, graphs)

    names = ", ".join(sorted(key.to_user_string() for key in assets))
    return dg.IOManagerDefinition(
        resource_fn=create,
        required_resource_keys={iceberg_key},
        description=f"Stores {names} with {iceberg_key}; all other outputs in files, as Dagster does by default.",
    )
