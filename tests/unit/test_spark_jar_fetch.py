import os
from pathlib import Path
from typing import Any

import pytest

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.plugins.registry import BUILT_INS, built_in
from floe_dagster_iceberg.spark.environment import PLACES, ensure_java, find_jars, find_user_home

CONFIGS: dict[str, dict[str, Any]] = {
    "sql": {"uri": "postgresql+psycopg2://host/db"},
    "rest": {"uri": "http://host"},
    "polaris": {"uri": "http://host", "warehouse": "lake", "token": "a-token"},
    "hive": {"uri": "thrift://host"},
    "azure": {"account_name": "lake"},
}
NOBODY = 54_321


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in BUILT_INS.items() for name in names])
def test_the_jars_of_every_plugin_can_be_fetched_for_an_image(kind: Any, name: str) -> None:
    own = {"catalog_name": "floe"} if kind == "catalog" else {}
    needed = built_in(kind, name, {**own, **CONFIGS.get(name, {})}).spark_packages()

    assert set(needed) <= set(PLACES.values())


def test_a_user_without_a_name_has_the_home_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    monkeypatch.setenv("HOME", "/scratch")

    assert find_user_home() == Path("/scratch")


def test_without_any_home_jars_are_fetched_at_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("FLOE_SPARK_JARS", raising=False)

    assert find_user_home() is None
    assert any("iceberg-spark-runtime" in jar for jar in find_jars([], {}).missing)


def test_spark_is_refused_to_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)

    with pytest.raises(EngineCapabilityError, match=rf"cannot run as user {NOBODY}, who has no name"):
        ensure_java()
