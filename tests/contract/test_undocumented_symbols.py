"""What Dagster and PySpark do not document and we use all the same, each named once.

PyIceberg's private symbols are in `test_pyiceberg_contract.py`.
"""

import inspect
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext, AssetKey, asset, materialize

USED_OF_STEP_CONTEXT = (
    "dagster_run",
    "get_io_manager",
    "get_output_asset_keys",
    "get_output_context",
    "instance",
    "run_id",
    "set_data_version",
    "step",
)


def test_a_step_context_has_what_run_identity_asks_of_it() -> None:
    missing: list[str] = []

    class Recorder(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            del obj
            step = context.step_context
            missing.extend(name for name in USED_OF_STEP_CONTEXT if not hasattr(step, name))
            assert step.step.key == context.step_key
            assert list(step.get_output_asset_keys()) == [AssetKey("orders")]

        def load_input(self, context: dg.InputContext) -> None: ...

    @asset(io_manager_key="recorder")
    def orders(context: AssetExecutionContext) -> int:
        assert context.get_step_execution_context().step.key == "orders"
        return 1

    assert materialize(
        [orders], resources={"recorder": dg.IOManagerDefinition.hardcoded_io_manager(Recorder())}
    ).success
    assert missing == []


def test_a_spark_session_has_the_jvm_that_procedures_set_snapshot_properties_through() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only here

    assert "self._jvm" in inspect.getsource(SparkSession.__init__)


def test_a_spark_session_has_the_java_session_that_reserved_properties_are_set_through() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only here

    assert "self._jsparkSession" in inspect.getsource(SparkSession.__init__)
